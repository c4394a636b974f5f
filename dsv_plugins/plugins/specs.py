"""The hooks that a plugin may implement.

All are called once, while `build_registry()` runs, each plugin on its own and in no promised order. Each returns one
record or several. Commands that only list plugins call them too, so they must be quick: import what is heavy in the
factory.
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


# ---------------------------------------------------------------------------
# What is selected, and for what
# ---------------------------------------------------------------------------


@hookspec
def augmentation() -> AugmentationPlugin | Iterable[AugmentationPlugin]:  # type: ignore[empty-body]
    """Ways to make pseudo-anomalies, with the hyperparameters among which to select.

    Returns:
        One record or several. Each factory returns an `Augmentation`.
    """


@hookspec
def detector_encoder() -> DetectorEncoderPlugin | Iterable[DetectorEncoderPlugin]:  # type: ignore[empty-body]
    """Detectors that learn from pseudo-anomalies and expose their embedding.

    Returns:
        One record or several. Each factory returns a `DetectorEncoder`.
    """


# ---------------------------------------------------------------------------
# How it is selected
# ---------------------------------------------------------------------------


@hookspec
def selector() -> SelectorPlugin | Iterable[SelectorPlugin]:  # type: ignore[empty-body]
    """Losses that rank candidates without labels.

    Returns:
        One record or several. Each factory returns a `Selector`.
    """


@hookspec
def search() -> SearchPlugin | Iterable[SearchPlugin]:  # type: ignore[empty-body]
    """Ways to decide which candidates are trained, and how far: all of them, or the promising ones.

    Returns:
        One record or several. Each factory returns a `Search`.
    """


# ---------------------------------------------------------------------------
# Where the work runs
# ---------------------------------------------------------------------------


@hookspec
def executor() -> ExecutorPlugin | Iterable[ExecutorPlugin]:  # type: ignore[empty-body]
    """Ways to run many candidates: in this process, in several, on a cluster.

    Returns:
        One record or several. Each factory returns an `Executor`.
    """


# ---------------------------------------------------------------------------
# Who is notified
# ---------------------------------------------------------------------------


@hookspec
def observer() -> ObserverPlugin | Iterable[ObserverPlugin]:  # type: ignore[empty-body]
    """Loggers and displays. A study notifies those that its `observers` setting names.

    Returns:
        One record or several. Each factory returns an `Observer`.
    """
