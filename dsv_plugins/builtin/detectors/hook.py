"""The built-in detectors."""

from __future__ import annotations

from dsv_plugins import DetectorEncoderPlugin, hookimpl
from dsv_plugins.builtin.augmentations.hook import PAPER_PATCH_SIZES
from dsv_plugins.builtin.detectors.cutpaste_resnet18 import resnet18_settings
from dsv_plugins.builtin.detectors.patch_memory import patch_settings

__all__ = ["detector_encoder"]

PAPER = {"selector": "dsv", "holdout": 0.0, "grid": {"patch_size": PAPER_PATCH_SIZES}}
"""The rest of the paper's protocol."""


@hookimpl
def detector_encoder() -> list[DetectorEncoderPlugin]:
    """Return the two detectors of pretrained patches, and the one of the paper."""
    return [
        DetectorEncoderPlugin(
            name="patch-fusion",
            factory=patch_settings.patch_fusion,
            summary="Distances of patches to those of good images; pseudo-anomalies teach it which of them count",
            check_params={"image_size": 64},
            settings=patch_settings.PatchSettings(),
            preflight=patch_settings.check_backbone,
        ),
        DetectorEncoderPlugin(
            name="patch-memory",
            factory=patch_settings.patch_memory,
            summary="The same without pseudo-anomalies: it learns from good images alone, and nothing is selected",
            check_params={"image_size": 64},
            settings=patch_settings.PatchSettings(),
            preflight=patch_settings.check_backbone,
        ),
        DetectorEncoderPlugin(
            name="cutpaste-resnet18",
            factory=resnet18_settings.cutpaste_resnet18,
            summary="ResNet18 trained to tell normal from augmented images; Gaussian score (Li et al. 2021)",
            check_params={"image_size": 32, "width": 4, "updates": 30, "shared_updates": 10, "batch_size": 8},
            settings=resnet18_settings.PRESETS["quick"],
            presets={"quick": {}, "paper": PAPER},
        ),
    ]
