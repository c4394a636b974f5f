"""Patches as tensors: drawing them, and changing images with them.

What is drawn is a record of its own, so that a draw can be looked at and applied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "Patches",
    "Spots",
    "Spread",
    "average_out",
    "black_out",
    "darken",
    "draw_angles",
    "draw_elsewhere",
    "draw_patches",
    "draw_spots",
    "mean_colours",
    "paste",
]

Spread = float | Tensor | Sequence[float | Tensor]
"""One value for all images, or a (low, high) range from which each draws its own log-uniformly."""

FADE_VARIANCE = 0.1
"""Of CutDiff's spot, in squared patch heights and widths."""
PASTED_AT_ONCE = 8
"""Images. What CutPaste computes for each pixel takes several times the memory of the image, and stays in the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """One rectangle in each image, in whole pixels: integer tensors of shape (images,)."""

    tops: Tensor
    lefts: Tensor
    heights: Tensor
    widths: Tensor

    def some(self, rows: slice) -> Patches:
        """Return the patches of some of the images."""
        return Patches(self.tops[rows], self.lefts[rows], self.heights[rows], self.widths[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Spots:
    """One soft patch in each image, in fractions of pixels: floating tensors of shape (images,).

    The centres are measured from the image's upper left corner, so the centre of the first pixel is at (0.5, 0.5).
    """

    centre_rows: Tensor
    centre_columns: Tensor
    heights: Tensor
    widths: Tensor


# ---------------------------------------------------------------------------
# Drawing
# ---------------------------------------------------------------------------


def draw_patches(images: Tensor, patch_size: Spread, aspect: Spread, *, generator: torch.Generator) -> Patches:
    """Draw a patch for each image: at least one pixel, clipped to the image, anywhere it fits.

    Args:
        images: Of shape (images, channels, height, width).
        patch_size: The patch's share of the image's area.
        aspect: The patch's width over its height.
        generator: On the images' device.
    """
    rows, columns = images.shape[-2:]
    heights, widths = _draw_sizes(images, patch_size, aspect, generator)
    heights = heights.round().clamp(1, rows).long()
    widths = widths.round().clamp(1, columns).long()
    positions = (rows - heights + 1) * (columns - widths + 1)
    return _patches_at(_draw_below(positions, generator), heights, widths, columns)


def draw_elsewhere(images: Tensor, patches: Patches, *, generator: torch.Generator) -> Patches:
    """Draw another position for each patch, among all others; a patch with only one position stays there."""
    rows, columns = images.shape[-2:]
    across = columns - patches.widths + 1
    positions = (rows - patches.heights + 1) * across
    # A step of 1 to positions - 1 reaches every other position once; with one position, a step of 1 returns to it.
    steps = 1 + _draw_below((positions - 1).clamp(min=1), generator)
    position = (patches.tops * across + patches.lefts + steps) % positions
    return _patches_at(position, patches.heights, patches.widths, columns)


def draw_angles(images: Tensor, angle: float, *, generator: torch.Generator) -> Tensor:
    """Draw an angle for each image, in degrees, uniform from `-angle` to `angle`."""
    return angle * (2 * _draw_uniform(images, generator) - 1)


def draw_spots(images: Tensor, patch_size: Spread, aspect: Spread, *, generator: torch.Generator) -> Spots:
    """Draw a soft patch for each image, anywhere it fits; one larger than the image stays in the middle.

    Arguments as in `draw_patches`. Gradients pass from the spots to `patch_size` and `aspect`.
    """
    rows, columns = images.shape[-2:]
    heights, widths = _draw_sizes(images, patch_size, aspect, generator)
    centre_rows = rows / 2 + (_draw_uniform(images, generator) - 0.5) * (rows - heights).clamp(min=0)
    centre_columns = columns / 2 + (_draw_uniform(images, generator) - 0.5) * (columns - widths).clamp(min=0)
    return Spots(centre_rows, centre_columns, heights, widths)


def _draw_sizes(
    images: Tensor, patch_size: Spread, aspect: Spread, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw heights and widths in fractions of pixels."""
    rows, columns = images.shape[-2:]
    areas = rows * columns * _draw_spread(images, patch_size, generator)
    aspects = _draw_spread(images, aspect, generator)
    return (areas / aspects).sqrt(), (areas * aspects).sqrt()


def _draw_spread(images: Tensor, spread: Spread, generator: torch.Generator) -> Tensor:
    if isinstance(spread, Sequence):
        low, high = (torch.as_tensor(end, dtype=_precision(images), device=images.device) for end in spread)
        return low * (high / low) ** _draw_uniform(images, generator)
    return torch.as_tensor(spread, dtype=_precision(images), device=images.device).expand(len(images))


def _draw_uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(len(images), generator=generator, dtype=_precision(images), device=images.device)


def _draw_below(limits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a whole number from 0 up to each limit, the limit excluded."""
    # So large a range makes the remainder's preference for small numbers immeasurable.
    return torch.randint(2**62, limits.shape, generator=generator, device=limits.device) % limits


def _precision(images: Tensor) -> torch.dtype:
    """Half precision cannot tell the pixels of a large image apart."""
    return torch.promote_types(images.dtype, torch.float32)


def _patches_at(position: Tensor, heights: Tensor, widths: Tensor, columns: int) -> Patches:
    """Return the patches at these positions, counted row by row over those at which each fits."""
    across = columns - widths + 1
    return Patches(position // across, position % across, heights, widths)


# ---------------------------------------------------------------------------
# Changing images
# ---------------------------------------------------------------------------


def black_out(images: Tensor, patches: Patches) -> Tensor:
    """CutOut: black patches."""
    return images.masked_fill(_mask(images, patches), 0.0)


def average_out(images: Tensor, patches: Patches) -> Tensor:
    """CutAvg: patches of their own mean colour."""
    means = mean_colours(images, patches).to(images.dtype)
    return torch.where(_mask(images, patches), means[:, :, None, None], images)


def darken(images: Tensor, spots: Spots) -> Tensor:
    """CutDiff: subtract exp(-r²/(2·0.1)), with r measured in patch heights and widths from the centre."""
    rows, columns = _grid(images)
    # r² is the sum of a row's part and a column's, so its exponential is a product: none is taken per pixel.
    row_fades = _fade(rows, spots.centre_rows, spots.heights).to(images.dtype)
    column_fades = _fade(columns, spots.centre_columns, spots.widths).to(images.dtype)
    return torch.addcmul(images, row_fades[:, None], column_fades[:, None], value=-1).clamp_(0, 1)


def paste(images: Tensor, coloured: Tensor, source: Patches, destination: Patches, degrees: Tensor) -> Tensor:
    """CutPaste: copy patches, turned about their centre; what falls out of the image is dropped.

    Args:
        images: What the patches are pasted onto.
        coloured: What they are cut from: the images themselves, or the same in other colours.
        source: Where they are cut.
        destination: Where they are pasted, in the same sizes.
        degrees: By how much each is turned, anticlockwise.
    """
    result = torch.empty_like(images)
    for start in range(0, len(images), PASTED_AT_ONCE):
        some = slice(start, start + PASTED_AT_ONCE)
        result[some] = _pasted(images[some], coloured[some], source.some(some), destination.some(some), degrees[some])
    return result


def _pasted(images: Tensor, coloured: Tensor, source: Patches, destination: Patches, degrees: Tensor) -> Tensor:
    rows, columns = _grid(images)
    below = rows - _centres(destination.tops, destination.heights)
    right = columns - _centres(destination.lefts, destination.widths)
    cosine, sine = torch.deg2rad(degrees).cos()[:, None, None], torch.deg2rad(degrees).sin()[:, None, None]
    # For each pixel of the image, the one that comes to lie there: the nearest, so that it is copied verbatim.
    source_rows = below * cosine + (right * sine + _centres(source.tops, source.heights))
    source_columns = right * cosine - (below * sine - _centres(source.lefts, source.widths))
    source_rows, source_columns = source_rows.round(), source_columns.round()
    pasted = _inside(source_rows, source.tops, source.heights) & _inside(source_columns, source.lefts, source.widths)
    # Memory is the cost here, so 64 bits only for gather, which needs them.
    origins = ((source_rows.int() * images.shape[-1] + source_columns.int()) * pasted).long()
    moved = coloured.flatten(2).gather(2, origins.flatten(1)[:, None].expand(-1, images.shape[1], -1))
    return torch.where(pasted[:, None], moved.view_as(images), images)


def mean_colours(images: Tensor, patches: Patches) -> Tensor:
    """Return the mean of each patch in each channel, of shape (images, channels)."""
    precise = images.to(_precision(images))
    rows, columns = (inside.to(precise) for inside in _covered(images, patches))
    # A patch's sum is the product rows · image · columns.
    sums = rows.mT[:, None] @ (precise @ columns.mT[:, None])
    return sums[..., 0, 0] / (patches.heights * patches.widths)[:, None]


def _mask(images: Tensor, patches: Patches) -> Tensor:
    """Return what is true in the patches, of shape (images, 1, height, width)."""
    rows, columns = _covered(images, patches)
    return (rows & columns)[:, None]


def _covered(images: Tensor, patches: Patches) -> tuple[Tensor, Tensor]:
    """Return which rows and which columns each patch covers, of shapes (images, height, 1) and (images, 1, width)."""
    rows, columns = _grid(images)
    return _inside(rows, patches.tops, patches.heights), _inside(columns, patches.lefts, patches.widths)


def _grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of the rows and of the columns, of shapes (height, 1) and (1, width)."""
    height, width = images.shape[-2:]
    return torch.arange(height, device=images.device)[:, None], torch.arange(width, device=images.device)[None]


def _inside(positions: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    return (positions >= starts[:, None, None]) & (positions < (starts + lengths)[:, None, None])


def _centres(starts: Tensor, lengths: Tensor) -> Tensor:
    return (starts + (lengths - 1) / 2)[:, None, None]


def _fade(positions: Tensor, centres: Tensor, lengths: Tensor) -> Tensor:
    distances = (positions + 0.5 - centres[:, None, None]) / lengths[:, None, None]
    return (distances.square() / (-2 * FADE_VARIANCE)).exp()
