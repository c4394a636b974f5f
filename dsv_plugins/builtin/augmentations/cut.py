"""The paper's augmentations: `cutout`, `cutavg`, `cutdiff` and `cutpaste`.

Every image draws a patch of its own. Two hyperparameters are common to all:

- `patch_size`: the patch's share of the image's area, above 0 and at most 1;
- `aspect`: the patch's width over its height.

Each is one number, or a (low, high) range from which every image draws its own value: log-uniformly, as the paper
spreads its sizes and aspects. A patch has at least one pixel and is clipped to the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv_plugins import Augmentation, AugmentationPlugin, hookimpl
from dsv_plugins.toolkit.checks import check_range

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dsv_plugins.builtin.augmentations.patches import Spread

__all__ = ["PAPER_PATCH_SIZES", "PATCH_SIZES", "CutAvg", "CutDiff", "CutOut", "CutPaste", "augmentation"]

PAPER_PATCH_SIZES: tuple[float, ...] = (
    *(round(0.00001 * 2**k, 5) for k in range(10)),
    *(round(0.01 * 2**k, 2) for k in range(7)),
)
"""The 17 sizes among which the paper selects."""
PATCH_SIZES = PAPER_PATCH_SIZES[8::2]
"""From 0.00256 on, each four times the one before. Those below are a few pixels or a single one, unless the images are
large; those between make no better ensemble (docs/benchmarks.md) and take as long again."""


@dataclass(frozen=True)
class _PatchAugmentation:
    patch_size: Spread
    aspect: Spread = (0.3, 1.0)

    def __post_init__(self) -> None:
        _check_spread("patch_size", self.patch_size, highest=1.0)
        _check_spread("aspect", self.aspect)


@dataclass(frozen=True)
class CutOut(_PatchAugmentation):
    """Blackens a patch."""

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return augmented copies of the images; see `Augmentation`."""
        from dsv_plugins.builtin.augmentations.patches import black_out, draw_patches

        return black_out(images, draw_patches(images, self.patch_size, self.aspect, generator=generator))


@dataclass(frozen=True)
class CutAvg(_PatchAugmentation):
    """Fills a patch with its own mean colour."""

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return augmented copies of the images; see `Augmentation`."""
        from dsv_plugins.builtin.augmentations.patches import average_out, draw_patches

        return average_out(images, draw_patches(images, self.patch_size, self.aspect, generator=generator))


@dataclass(frozen=True)
class CutDiff(_PatchAugmentation):
    """Darkens a spot, black in the middle and fading outwards.

    Differentiable in `patch_size` and `aspect`, which may be tensors: nothing is rounded, and the spot has no edge.
    """

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return augmented copies of the images; see `Augmentation`."""
        from dsv_plugins.builtin.augmentations.patches import darken, draw_spots

        return darken(images, draw_spots(images, self.patch_size, self.aspect, generator=generator))


@dataclass(frozen=True)
class CutPaste(_PatchAugmentation):
    """Copies a patch to another position of the same image.

    Attributes:
        angle: Largest rotation of the patch in degrees, to either side; every image draws its own.
        jitter: Strength of the colour jitter of the patch, from 0 to 0.5.
    """

    angle: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("angle", self.angle, 180.0)
        check_range("jitter", self.jitter, 0.5)

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return augmented copies of the images; see `Augmentation`."""
        from dsv_plugins.builtin.augmentations.colour import jitter_colours
        from dsv_plugins.builtin.augmentations.patches import (
            draw_angles,
            draw_elsewhere,
            draw_patches,
            mean_colours,
            paste,
        )

        source = draw_patches(images, self.patch_size, self.aspect, generator=generator)
        destination = draw_elsewhere(images, source, generator=generator)
        degrees = draw_angles(images, self.angle, generator=generator)
        coloured = images
        if self.jitter:
            means = mean_colours(images, source)
            coloured = jitter_colours(images, self.jitter, generator=generator, means=means)
        return paste(images, coloured, source, destination, degrees)


@hookimpl
def augmentation() -> list[AugmentationPlugin]:
    """Return the four augmentations over five patch sizes."""
    return [
        _plugin("cutout", CutOut, "A black patch"),
        _plugin("cutavg", CutAvg, "A patch filled with its own mean colour"),
        _plugin("cutdiff", CutDiff, "A dark spot that fades outwards; differentiable"),
        _plugin("cutpaste", CutPaste, "A patch copied to another position of the image"),
    ]


def _plugin(name: str, factory: Callable[..., Augmentation], summary: str) -> AugmentationPlugin:
    return AugmentationPlugin(name, factory, summary, space={"patch_size": PATCH_SIZES})


def _check_spread(name: str, value: Spread, highest: float = math.inf) -> None:
    ends = tuple(value) if isinstance(value, Sequence) else (value, value)
    try:
        low, high = ends
        valid = 0 < low <= high <= highest and high < math.inf
    except (TypeError, ValueError):  # not two of them, or not numbers
        valid = False
    if not valid:
        limits = "above 0" if highest == math.inf else f"above 0 and at most {highest:g}"
        raise ValueError(f"{name} is {value!r}; give a number {limits}, or a (low, high) range of such numbers")
