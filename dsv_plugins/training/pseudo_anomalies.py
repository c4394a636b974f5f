"""Pseudo-anomalies that are the same for every candidate of a study, so that selectors can compare scores of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv_plugins.plugins.records import AugmentationPlugin
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.seeding import derived_seed
from dsv_plugins.transforms import as_float

__all__ = ["NEUTRAL", "SIZES", "pseudo_anomalies"]

AUGMENTATIONS = ("cutout", "cutavg", "cutdiff", "cutpaste")
NEUTRAL = AUGMENTATIONS[-1]
"""What makes the augmented copies of a detector that learns from none."""
SIZES = (0.0025, 0.16)
"""Of patches, as shares of the image: from the smallest defects that show at all to large ones."""
DRAWS = 7
"""Separates these draws from others."""


def pseudo_anomalies(registry: Registry, images: Tensor, seed: int) -> Tensor:
    """Return one pseudo-anomaly of each image, by the built-in augmentations in turn, with patches of all sizes.

    They do not depend on what the study tries, so that no candidate is judged by its own augmentation alone.

    Args:
        registry: Where the augmentations are found.
        images: Good images that were kept out of training, uint8.
        seed: Fixes all draws.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, DRAWS))
    made = torch.empty_like(images)
    for first, name in enumerate(AUGMENTATIONS):
        augmentation = registry.create(AugmentationPlugin, name, {"patch_size": SIZES})
        for row in range(first, len(images), len(AUGMENTATIONS)):  # one at a time: floats need four times the memory
            copy = augmentation(as_float(images[row : row + 1]), generator=generator)
            made[row] = (copy[0] * 255).round().to(torch.uint8)
    return made
