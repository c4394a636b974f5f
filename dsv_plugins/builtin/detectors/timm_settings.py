"""The settings and presets of the detector `cutpaste-timm`. The network itself is imported when one is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv_plugins.builtin.detectors.checks import check_density, check_positive, check_whole
from dsv_plugins.detectors.weights import DEFAULT_BACKBONE, check_weights

if TYPE_CHECKING:
    from dsv_plugins.builtin.detectors.cutpaste_timm import CutPasteTimm
    from dsv_plugins.builtin.detectors.frozen_timm import FrozenTimm

__all__ = ["PRESETS", "TimmSettings", "check_timm", "cutpaste_timm", "frozen_timm"]


@dataclass(frozen=True)
class TimmSettings:
    """Every number of the pretrained detector; docs/benchmarks.md has how they were found.

    Attributes:
        backbone: "efficientnet-lite0", whose weights come with an installed package, or a convolutional model of timm.
        weights: A safetensors file with the weights; by default those of timm, or of the installed package.
        image_size: Height and width, in pixels, to which images are resized.
        trained_stages: How many of the last stages are trained; the others stay as they are.
        copies: Augmented copies of each train image, made once.
        updates: Training updates of the last stages and of the local head.
        batch_size: Normal images in a batch; as many augmented ones join them.
        learning_rate: Initial learning rate of the last stages.
        local_updates: Updates of the local head for each of the others.
        density: How normal embeddings are modelled for the score: "gaussian" (Ledoit–Wolf) or "kde".
    """

    backbone: str = DEFAULT_BACKBONE
    weights: str | None = None
    image_size: int = 192
    trained_stages: int = 1
    copies: int = 2
    updates: int = 60
    batch_size: int = 16
    learning_rate: float = 1e-3
    local_updates: int = 5
    density: str = "gaussian"

    def __post_init__(self) -> None:
        check_whole("image_size", self.image_size, least=32)
        for name in ("trained_stages", "copies", "updates", "batch_size", "local_updates"):
            check_whole(name, getattr(self, name), least=1)
        check_positive("learning_rate", self.learning_rate)
        check_density(self.density)


PRESETS = {
    "quick": TimmSettings(),
    "large": TimmSettings(image_size=256, updates=120),  # for large images with fine details
}


def cutpaste_timm(
    preset: str = "quick",
    *,
    backbone: str | None = None,
    weights: str | None = None,
    image_size: int | None = None,
    trained_stages: int | None = None,
    copies: int | None = None,
    updates: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    local_updates: int | None = None,
    density: str | None = None,
) -> CutPasteTimm:
    """Make the detector from a preset, with any of its numbers replaced; see `TimmSettings` for what they mean."""
    given = {name: value for name, value in locals().items() if name != "preset" and value is not None}
    if preset not in PRESETS:
        paper = "; the paper's detector is cutpaste-resnet18" if preset == "paper" else ""
        raise ValueError(f"preset is {preset!r}; give one of {', '.join(PRESETS)}{paper}")

    from dsv_plugins.builtin.detectors.cutpaste_timm import CutPasteTimm

    return CutPasteTimm(replace(PRESETS[preset], **given))


def frozen_timm(
    *,
    backbone: str = TimmSettings.backbone,
    weights: str | None = None,
    image_size: int = TimmSettings.image_size,
    trained_stages: int = TimmSettings.trained_stages,
    density: str = TimmSettings.density,
) -> FrozenTimm:
    """Make the same detector without its training; see `TimmSettings` for what the settings mean."""
    from dsv_plugins.builtin.detectors.frozen_timm import FrozenTimm

    return FrozenTimm(TimmSettings(backbone, weights, image_size, trained_stages, updates=1, density=density))


def check_timm(backbone: str = DEFAULT_BACKBONE, weights: str | None = None, **others: object) -> None:
    """Check that the weights can be had; called before any image is read or any worker started."""
    check_weights(backbone, weights)
