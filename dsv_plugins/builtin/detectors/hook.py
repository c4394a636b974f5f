"""The built-in detectors."""

from __future__ import annotations

from dsv_plugins import DetectorEncoderPlugin, hookimpl
from dsv_plugins.builtin.detectors.cutpaste_resnet18 import resnet18_settings
from dsv_plugins.builtin.detectors.patch_memory import patch_settings

__all__ = ["detector_encoder"]


@hookimpl
def detector_encoder() -> list[DetectorEncoderPlugin]:
    """Return the two detectors of pretrained patches, and the one of the paper."""
    return [*patch_settings.PLUGINS, resnet18_settings.PLUGIN]
