"""All built-in augmentations at once, for the start that the trainings of a study share."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv_plugins import Augmentation
from dsv_plugins.builtin.augmentations.cut import CutAvg, CutDiff, CutOut, CutPaste

__all__ = ["Mixture"]

SIZES = (0.0025, 0.64)
"""From patches that are still several pixels of a small image to the largest of the paper."""


class Mixture:
    """Every image draws one of the four augmentations, and a size from the whole range."""

    kinds: tuple[Augmentation, ...] = (CutOut(SIZES), CutAvg(SIZES), CutDiff(SIZES), CutPaste(SIZES))

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return augmented copies of the images; see `Augmentation`."""
        drawn = torch.randint(len(self.kinds), (len(images),), generator=generator, device=images.device)
        augmented = torch.empty_like(images)
        for index, kind in enumerate(self.kinds):
            chosen = drawn == index
            if chosen.any():
                augmented[chosen] = kind(images[chosen], generator=generator)
        return augmented
