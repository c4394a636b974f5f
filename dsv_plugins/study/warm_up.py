"""What a worker does before its first job. Free of torch, so that sending it to a worker takes no time."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping

from dsv_plugins.errors import PluginSettingsError
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import build_registry

__all__ = ["prepare_worker"]

MODULES = ("dsv_plugins.training.job", "sklearn.manifold", "threadpoolctl")
"""Needed by each job, whatever the detector."""


def prepare_worker(detectors: Mapping[str, Mapping[str, object]], plugins: tuple[object, ...]) -> None:
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
