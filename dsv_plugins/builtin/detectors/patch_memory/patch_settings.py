"""The detector plugins `patch-memory` and `patch-fusion`. The network is imported when one is made."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv_plugins import DetectorEncoderPlugin, hookimpl
from dsv_plugins.toolkit.checks import check_choice, check_integer
from dsv_plugins.toolkit.weights import DEFAULT_BACKBONE, check_weights

if TYPE_CHECKING:
    from dsv_plugins.builtin.detectors.patch_memory.detector import PatchMemoryDetector
    from dsv_plugins.builtin.detectors.patch_memory.fusion import PatchFusionDetector

__all__ = ["PatchSettings", "check_backbone", "detector_encoder", "patch_fusion", "patch_memory"]

SCORES = ("both", "raw", "standardised", "whole")


@dataclass(frozen=True)
class PatchSettings:
    """Every setting of the two detectors; docs/benchmarks.md has how the defaults were found.

    Attributes:
        backbone: "efficientnet-lite0", whose weights come with an installed package, or a model of timm.
        weights: A safetensors file with the weights; by default those of timm, or of the installed package.
        image_size: Height and width, in pixels, to which square images are resized; others get the same area.
        layers: The feature maps of the backbone that are used, as indices into timm's list of them; by default those
            of strides 8 and 16, or of a transformer those at a half and at three quarters of its depth.
        window: How many steps away a patch may be compared with those of good images, up, down, left or right.
        memory_images: The train images in the memory at most; if there are more, those that differ most.
        score: What `patch-memory` scores by: "raw" distances of patches, "standardised" ones, "both", or "whole" for
            the image as one.
        largest: How many of the largest patch distances count for the score of `patch-memory`.
    """

    backbone: str = DEFAULT_BACKBONE
    weights: str | None = None
    image_size: int = 256
    layers: Sequence[int] | None = None
    window: int = 1
    memory_images: int = 400
    score: str = "both"
    largest: int = 3

    def __post_init__(self) -> None:
        check_integer("image_size", self.image_size, least=32)
        check_integer("window", self.window, least=0)
        check_integer("memory_images", self.memory_images, least=2)
        check_integer("largest", self.largest, least=1)
        check_choice("score", self.score, SCORES)
        if self.layers is not None:
            if isinstance(self.layers, str) or not isinstance(self.layers, Sequence) or not self.layers:
                raise ValueError(f"layers is {self.layers!r}; give a list of whole numbers such as [2, 3]")
            for layer in self.layers:
                check_integer("a layer", layer, least=0)


def patch_memory(
    *,
    backbone: str = PatchSettings.backbone,
    weights: str | None = None,
    image_size: int = PatchSettings.image_size,
    layers: Sequence[int] | None = None,
    window: int = PatchSettings.window,
    memory_images: int = PatchSettings.memory_images,
    score: str = PatchSettings.score,
    largest: int = PatchSettings.largest,
) -> PatchMemoryDetector:
    """Make the detector that learns from good images alone; see `PatchSettings` for what the settings mean."""
    settings = PatchSettings(backbone, weights, image_size, layers, window, memory_images, score, largest)

    from dsv_plugins.builtin.detectors.patch_memory.detector import PatchMemoryDetector

    return PatchMemoryDetector(settings)


def patch_fusion(
    *,
    backbone: str = PatchSettings.backbone,
    weights: str | None = None,
    image_size: int = PatchSettings.image_size,
    layers: Sequence[int] | None = None,
    window: int = PatchSettings.window,
    memory_images: int = PatchSettings.memory_images,
) -> PatchFusionDetector:
    """Make the detector that learns from pseudo-anomalies what counts; see `PatchSettings` for the settings."""
    settings = PatchSettings(backbone, weights, image_size, layers, window, memory_images)

    from dsv_plugins.builtin.detectors.patch_memory.fusion import PatchFusionDetector

    return PatchFusionDetector(settings)


def check_backbone(backbone: str = DEFAULT_BACKBONE, weights: str | None = None, **others: object) -> None:
    """Check that the weights can be had; called before any image is read or any worker started."""
    check_weights(backbone, weights)


_plugin = functools.partial(
    DetectorEncoderPlugin, check_params={"image_size": 64}, settings=PatchSettings(), preflight=check_backbone
)


@hookimpl
def detector_encoder() -> list[DetectorEncoderPlugin]:
    """The detectors of pretrained patches."""
    return [
        _plugin(
            "patch-fusion",
            patch_fusion,
            "Distances of patches to those of good images; pseudo-anomalies teach it which of them count",
        ),
        _plugin(
            "patch-memory",
            patch_memory,
            "The same without pseudo-anomalies: it learns from good images alone, and nothing is selected",
            learns_from=None,
        ),
    ]
