"""The detector plugin `cutpaste-resnet18`: its settings and presets. The network is imported when one is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv_plugins import DetectorEncoderPlugin, hookimpl
from dsv_plugins.builtin.augmentations.cut import PAPER_PATCH_SIZES
from dsv_plugins.toolkit.checks import check_choice, check_integer, check_positive, check_range

if TYPE_CHECKING:
    from dsv_plugins.builtin.detectors.cutpaste_resnet18.detector import CutPasteResNet18

__all__ = ["DENSITIES", "PRESETS", "Settings", "cutpaste_resnet18", "detector_encoder"]

DENSITIES = ("gaussian", "kde")
PAPER = {"selector": "dsv", "holdout": 0.0, "grid": {"patch_size": PAPER_PATCH_SIZES}}
"""The rest of the paper's protocol."""


@dataclass(frozen=True)
class Settings:
    """Every number of the CutPaste ResNet18; the defaults are the paper's.

    Attributes:
        image_size: Height and width, in pixels, to which images are resized.
        width: Channels of the first stage; 64 is the full ResNet18. The embedding is eight times as wide.
        updates: The training budget of a candidate, and the length of its cosine schedule.
        batch_size: Normal images in a batch; as many augmented ones join them.
        learning_rate: Initial learning rate of SGD.
        shared_updates: Updates before those of the candidate, on all built-in augmentations at once. They are the same
            for every candidate, so that a study makes them once. The paper has none.
        shared_learning_rate: Initial learning rate of the shared updates, which have a cosine schedule of their own.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        colour_jitter: Strength of the colour jitter on the training input.
        pretrained: Start from torchvision's ImageNet weights instead of from scratch.
        density: How normal embeddings are modelled for the score: "gaussian" (Ledoit–Wolf) or "kde".
    """

    image_size: int = 256
    width: int = 64
    updates: int = 10_000
    batch_size: int = 32
    learning_rate: float = 0.03
    shared_updates: int = 0
    shared_learning_rate: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 3e-5
    colour_jitter: float = 0.1
    pretrained: bool = False
    density: str = "gaussian"

    def __post_init__(self) -> None:
        for name in ("image_size", "width", "updates", "batch_size"):
            check_integer(name, getattr(self, name), least=1)
        check_integer("shared_updates", self.shared_updates, least=0)
        for name in ("momentum", "weight_decay"):
            check_range(name, getattr(self, name), 1.0, below=True)
        check_range("colour_jitter", self.colour_jitter, 0.5)
        for name in ("learning_rate", "shared_learning_rate"):
            check_positive(name, getattr(self, name))
        check_choice("density", self.density, DENSITIES)
        if not isinstance(self.pretrained, bool):
            raise ValueError(f"pretrained is {self.pretrained!r}; give true or false")
        if self.pretrained and self.width != 64:
            raise ValueError(f"pretrained weights exist for width 64 only, not {self.width}")


PRESETS = {
    "paper": Settings(),
    "quick": Settings(image_size=64, width=16, updates=100, learning_rate=0.01, shared_updates=400),
}


def cutpaste_resnet18(
    preset: str = "quick",
    *,
    image_size: int | None = None,
    width: int | None = None,
    updates: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    shared_updates: int | None = None,
    shared_learning_rate: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    colour_jitter: float | None = None,
    pretrained: bool | None = None,
    density: str | None = None,
) -> CutPasteResNet18:
    """Make the detector from a preset, with any of its numbers replaced; see `Settings` for what they mean.

    If `updates` is given and `shared_updates` is not, the preset's shared updates are scaled too.
    """
    # All arguments: the signature is what the registry shows and checks, so it cannot be **settings.
    given = {name: value for name, value in locals().items() if name != "preset" and value is not None}
    check_choice("preset", preset, PRESETS)
    settings = replace(PRESETS[preset], **given)
    if updates is not None and shared_updates is None:
        scale = updates / PRESETS[preset].updates
        settings = replace(settings, shared_updates=round(settings.shared_updates * scale))

    from dsv_plugins.builtin.detectors.cutpaste_resnet18.detector import CutPasteResNet18

    return CutPasteResNet18(settings)


@hookimpl
def detector_encoder() -> DetectorEncoderPlugin:
    """The detector of the paper."""
    return DetectorEncoderPlugin(
        name="cutpaste-resnet18",
        factory=cutpaste_resnet18,
        summary="ResNet18 trained to tell normal from augmented images; Gaussian score (Li et al. 2021)",
        check_params={"image_size": 32, "width": 4, "updates": 30, "shared_updates": 10, "batch_size": 8},
        settings=PRESETS["quick"],
        presets={"quick": {}, "paper": PAPER},
    )
