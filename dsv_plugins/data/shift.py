"""Whether test images look like train images in colour and brightness.

Selectors assume that normal test images are distributed as train images. Other light or another camera breaks that
assumption. It shows in the images' mean colour before anything is trained.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dsv_plugins.transforms import mean_colours

__all__ = ["FEW", "photometric_shift", "shift_warning"]

FEW = 0.3
"""The share of the test images that anomalies may well be, and not a shift of all images."""
CRITICAL = 1.747
"""Which Kuiper's statistic, times √(nm / (n + m)), exceeds in one of twenty pairs of samples of one distribution."""


def photometric_shift(train: Tensor, test: Tensor, tiles: int = 1) -> float:
    """Return the share of the test images, at least, whose mean colour is not distributed as that of the train images.

    If a share γ of the test images is changed and the others are distributed as train, then the shares of test and
    train images in any interval of a channel's mean differ by at most γ. The largest difference is Kuiper's statistic;
    minus its critical value, it is a lower bound of γ. Intervals also detect changes in both directions, such as darker
    normals with brighter anomalies.

    Args:
        train: Normal images, (images, channels, height, width).
        test: Unlabelled images, likewise.
        tiles: How many rows are one image; those of an image after each other.

    Returns:
        The largest bound over the channels and the brightness, from 0 to 1.
    """
    colours = [mean_colours(images, tiles) for images in (train, test)]
    chance = CRITICAL * math.sqrt(sum(map(len, colours)) / math.prod(map(len, colours)))
    pairs = zip(colours[0].T, colours[1].T, strict=True)
    return max(0.0, max(_kuiper(*pair) for pair in pairs) - chance)


def shift_warning(train: Tensor, test: Tensor, tiles: int = 1) -> str | None:
    """Return a warning if more test images differ from the train images than a few anomalies explain; None if not."""
    shift = photometric_shift(train, test, tiles)
    if shift <= FEW:
        return None
    return (
        f"at least {shift:.0%} of the test images have another mean colour or brightness than the train images, more "
        "than a few anomalies explain: under other light or with another camera, comparing test with train misleads"
    )


def _kuiper(first: Tensor, second: Tensor) -> float:
    """Return the largest difference between the shares of the two that lie in an interval."""
    values = torch.cat([first, second])
    below = [torch.searchsorted(each.sort().values, values, right=True) / len(each) for each in (first, second)]
    difference = below[0] - below[1]
    return float(difference.max().clamp(min=0) - difference.min().clamp(max=0))
