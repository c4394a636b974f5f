"""Pillow's antialiased bilinear resize as tensor operations, so that a file of `dsv export` resizes as `dsv score`."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv_plugins.types import Size, height_and_width

__all__ = ["resized_eight_bits", "resized_maps"]

BITS = 22
"""Pillow rounds weights to this many bits behind the point."""
LOW_BITS = 9
"""Weights are multiplied in two parts: a product of pixels with both at once has more digits than single precision."""


def resized_eight_bits(images: Tensor, size: Size) -> Tensor:
    """Return whole numbers from 0 to 255 as floats (images, channels, height, width), resized to the last bit alike.

    Pillow resizes rows first, rounds to eight bits, and then resizes columns.
    """
    height, width = height_and_width(size)
    rows = _in_eight_bits(images, images.shape[-1], width)
    return _in_eight_bits(rows.transpose(-1, -2), images.shape[-2], height).transpose(-1, -2)


def resized_maps(maps: Tensor, height: int, width: int) -> Tensor:
    """Return maps (images, height, width) at another size, by the same filter without the rounding."""
    (across, all_across), (down, all_down) = _triangles(maps.shape[-1], width), _triangles(maps.shape[-2], height)
    return (down / all_down).T @ (maps @ (across / all_across))


def _in_eight_bits(values: Tensor, source: int, target: int) -> Tensor:
    high, low = _weights(source, target)
    total = values @ high + torch.floor(values @ low / 2**LOW_BITS)  # in units of 2 ** (LOW_BITS - BITS), and exact
    rest = BITS - LOW_BITS
    return torch.floor((total + 2 ** (rest - 1)) / 2**rest).clamp(0, 255)


def _weights(source: int, target: int) -> tuple[Tensor, Tensor]:
    """Return the weights of pixels, rounded as Pillow does, in two parts: the first times `2 ** LOW_BITS`, and a rest.

    They are divided in two steps, as by hand: a quotient in single precision is not exact to so many bits.
    """
    triangles, total = _triangles(source, target)
    half = 2 ** (BITS // 2)
    first = torch.floor(triangles * half / total)
    second = torch.floor((triangles * half - first * total) * half / total + 0.5)
    weights = first * half + second
    high = torch.floor(weights / 2**LOW_BITS)
    return high, weights - high * 2**LOW_BITS


def _triangles(source: int, target: int) -> tuple[Tensor, Tensor]:
    """Return how much each pixel of a row counts in each of the resized one (source, target), and what that adds up to.

    Places are counted in whole numbers, `2 * source * target` for the row, so that they are exact on any runtime.
    """
    places = (2 * torch.arange(source) + 1) * target
    centres = (2 * torch.arange(target) + 1) * source
    reach = 2 * torch.sym_max(source, target)
    distances: Tensor = (places[:, None] - centres).abs()
    triangles = (-(distances - reach)).clamp(min=0).float()
    return triangles, triangles.sum(dim=0)
