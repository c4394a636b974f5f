"""What a worker does before its first job. Free of torch, so that sending it to a worker takes no time."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Mapping

from dsv_plugins.errors import PluginSettingsError
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import Registry, build_registry
from dsv_plugins.study.check import detector_settings
from dsv_plugins.study.settings import StudySettings

__all__ = ["preparation"]

MODULES = ("dsv_plugins.training.job", "sklearn.manifold", "threadpoolctl")
"""Needed by each job, whatever the detector."""


def preparation(settings: StudySettings, registry: Registry) -> Callable[[], None]:
    """Return what each worker of a study does before its first job; it can be pickled."""
    detectors = {name: detector_settings(settings, registry, name)[0] for name in settings.detectors}
    return functools.partial(_prepare, detectors, settings.plugins)


def _prepare(detectors: Mapping[str, Mapping[str, object]], plugins: tuple[object, ...]) -> None:
    """Import what the trainings of a study need, and find the plugins.

    Args:
        detectors: The settings of each detector, by its name.
        plugins: Plugins that are in no package.
    """
    for module in MODULES:
        importlib.import_module(module)
    registry = build_registry(plugins)
    for name, settings in detectors.items():
        with contextlib.suppress(PluginSettingsError):  # a study leaves such settings out
            registry.create(DetectorEncoderPlugin, name, settings).warm_up()
