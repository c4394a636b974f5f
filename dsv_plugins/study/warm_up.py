"""What a worker does before its first job. Free of torch, so that sending it to a worker takes no time."""

from __future__ import annotations

from collections.abc import Mapping

from dsv_plugins.hooks.records import DetectorEncoderPlugin
from dsv_plugins.hooks.registry import build_registry

__all__ = ["prepare_worker"]


def prepare_worker(detector: str, detector_params: Mapping[str, object], plugins: tuple[object, ...]) -> None:
    """Import what the trainings of a study need."""
    build_registry(plugins).create(DetectorEncoderPlugin, detector, detector_params).warm_up()
