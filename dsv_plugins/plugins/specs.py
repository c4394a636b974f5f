"""The hooks that a plugin may implement.

Each is called once, without arguments, while `build_registry()` runs, and returns one record or several. The factory of
a record makes the plugin's object. Commands that only list plugins call the hooks too, so they must be quick: import
what is heavy in the factory. Each implementation is called on its own, in no promised order.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from dsv_plugins.plugins.records import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    ObserverPlugin,
    SearchPlugin,
    SelectorPlugin,
)

__all__ = ["PROJECT", "augmentation", "detector_encoder", "executor", "hookimpl", "observer", "search", "selector"]

PROJECT = "dsv_plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def augmentation() -> AugmentationPlugin | Iterable[AugmentationPlugin]:  # type: ignore[empty-body]
    """Return ways to make pseudo-anomalies, with the hyperparameters among which to select.

    Each factory returns an `Augmentation`.
    """


@hookspec
def detector_encoder() -> DetectorEncoderPlugin | Iterable[DetectorEncoderPlugin]:  # type: ignore[empty-body]
    """Return detectors that learn from pseudo-anomalies and expose their embedding.

    Each factory returns a `DetectorEncoder`.
    """


@hookspec
def selector() -> SelectorPlugin | Iterable[SelectorPlugin]:  # type: ignore[empty-body]
    """Return losses that rank candidates without labels.

    Each factory returns a `Selector`.
    """


@hookspec
def search() -> SearchPlugin | Iterable[SearchPlugin]:  # type: ignore[empty-body]
    """Return ways to decide which candidates are trained, and how far: all of them, or the promising ones.

    Each factory returns a `Search`.
    """


@hookspec
def executor() -> ExecutorPlugin | Iterable[ExecutorPlugin]:  # type: ignore[empty-body]
    """Return ways to run many candidates: in this process, in several, on a cluster.

    Each factory returns an `Executor`.
    """


@hookspec
def observer() -> ObserverPlugin | Iterable[ObserverPlugin]:  # type: ignore[empty-body]
    """Return loggers and displays. A study notifies those that its `observers` setting names.

    Each factory returns an `Observer`.
    """
