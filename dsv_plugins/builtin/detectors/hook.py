"""The built-in detectors."""

from __future__ import annotations

from dsv_plugins import DetectorEncoderPlugin, hookimpl
from dsv_plugins.builtin.augmentations.hook import PAPER_PATCH_SIZES
from dsv_plugins.builtin.detectors import resnet18_settings, timm_settings

__all__ = ["detector_encoder"]

PAPER = {"selector": "dsv", "holdout": 0.0, "grid": {"patch_size": PAPER_PATCH_SIZES}}
"""The rest of the paper's protocol."""


@hookimpl
def detector_encoder() -> list[DetectorEncoderPlugin]:
    """The pretrained detector, the same untrained, and the one of the paper."""
    return [
        DetectorEncoderPlugin(
            name="cutpaste-timm",
            factory=timm_settings.cutpaste_timm,
            summary="A pretrained network fine-tuned to tell normal from augmented images, with heatmaps",
            check_params={"image_size": 64, "updates": 10, "batch_size": 8},
            settings=timm_settings.PRESETS["quick"],
            presets={name: {} for name in timm_settings.PRESETS},
            combines=True,  # docs/benchmarks.md: better than a random candidate on 10 of 13 tasks, worse on 1
            preflight=timm_settings.check_timm,
        ),
        DetectorEncoderPlugin(
            name="frozen-timm",
            factory=timm_settings.frozen_timm,
            summary="The same network without training, to compare with: it learns from no augmentation",
            settings=timm_settings.PRESETS["quick"],
            check_params={"image_size": 64},
            preflight=timm_settings.check_timm,
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
