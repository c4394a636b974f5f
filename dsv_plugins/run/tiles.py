"""What is done to a whole image before a detector sees it: resized, and cut into tiles if it is large."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dsv_plugins.types import SIDE_MULTIPLE, Size, height_and_width

if TYPE_CHECKING:
    from torch import Tensor

Pixels = TypeVar("Pixels", bound="Any")

__all__ = ["Loading", "Tiles"]

LEAST_VISIBLE = 3
"""Pixels across, after resizing, of the smallest defect that shows: docs/benchmarks.md has how that was found."""
TILED = 2
"""How many times the detector's size a tile is that the note suggests: it takes a fourth of the tiles of full size."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Overlapping squares that cover an image of a certain size: the same ones for all images.

    Attributes:
        side: Pixels on a side of each.
        counts: How many there are in a column and in a row.
        steps: Pixels from one to the next, down and to the right.
    """

    side: int
    counts: tuple[int, int]
    steps: tuple[int, int]

    @classmethod
    def over(cls, height: float, width: float, side: int, overlap: float) -> Tiles:
        """Return the tiles over an image of about that size, whose neighbours share about that part of their side.

        Steps are what patches of any detector divide, so that the heatmaps of tiles fit together.
        """

        def along(length: float) -> tuple[int, int]:
            count = max(1, math.ceil((length - side) / (side * (1 - overlap)) - 1e-9) + 1)
            step = (length - side) / max(1, count - 1)
            return count, max(1, round(step / SIDE_MULTIPLE)) * SIDE_MULTIPLE

        (rows, down), (columns, right) = along(height), along(width)
        return cls(side, (rows, columns), (down, right))

    @property
    def count(self) -> int:
        """How many tiles an image has."""
        return math.prod(self.counts)

    @property
    def canvas(self) -> tuple[int, int]:
        """Height and width that an image must have to be cut."""
        height, width = (self.side + (count - 1) * step for count, step in zip(self.counts, self.steps, strict=True))
        return height, width

    @property
    def corners(self) -> list[tuple[int, int]]:
        """The upper and the left edge of each tile, row by row."""
        (rows, columns), (down, right) = self.counts, self.steps
        return [(row * down, column * right) for row in range(rows) for column in range(columns)]

    def parts(self, pixels: Pixels) -> list[Pixels]:
        """Return the tiles of an image, or of several, each as large as the canvas."""
        side = self.side
        return [pixels[..., top : top + side, left : left + side] for top, left in self.corners]

    def cut(self, images: Tensor) -> Tensor:
        """Return the tiles of images (images, channels, height, width) as rows, those of an image after each other."""
        import torch

        return torch.stack(self.parts(images), dim=1).flatten(0, 1)

    def joined(self, maps: Tensor) -> Tensor:
        """Join maps of tiles (images × tiles, …, height, width) into maps of images.

        Where tiles overlap, their mean counts, and a tile the less the nearer its edge is: neither the largest value,
        which is larger where more tiles are, nor an edge shows as a line then.
        """
        import torch
        from torch.nn import functional

        unit = math.gcd(self.side, *self.steps)
        side = self.side // unit * max(1, round(maps.shape[-1] * unit / self.side))
        if tuple(maps.shape[-2:]) != (side, side):
            maps = functional.interpolate(maps[:, None], size=(side, side), mode="bilinear", align_corners=False)[:, 0]
        height, width = (length * side // self.side for length in self.canvas)
        places = torch.arange(1, side + 1)
        ramp = torch.minimum(places, side + 1 - places).float()
        weight = ramp[:, None] * ramp
        parts = maps.reshape(-1, self.count, *maps.shape[1:]).unbind(dim=1)
        total, weights = torch.zeros(()), torch.zeros(height, width)
        for part, (top, left) in zip(parts, self.corners, strict=True):
            top, left = top * side // self.side, left * side // self.side
            edges = (left, width - left - side, top, height - top - side)
            total = total + functional.pad(part.float() * weight, edges)
            weights = weights + functional.pad(weight, edges)
        joined = total / weights
        return joined if maps.is_floating_point() else joined.round().to(maps.dtype)


@dataclass(frozen=True, slots=True)
class Loading:
    """How the images of a study are loaded.

    Attributes:
        size: The size to which whole images are resized.
        own: Height and width that most of them have; None if they are not resized.
        tiles: The tiles into which they are cut then; None for none.
    """

    size: Size
    own: tuple[int, int] | None = None
    tiles: Tiles | None = None

    def __str__(self) -> str:
        """Say what becomes of an image, and what is lost; empty if it is not made smaller."""
        if self.own is None:
            return ""
        size = height_and_width(self.size)
        factor = max(own / length for own, length in zip(self.own, size, strict=True))
        if factor <= 1:
            return ""
        tiled = f", cut into {self.tiles.count} tiles of {_told((self.tiles.side,) * 2)}" if self.tiles else ""
        tile = TILED * 2 ** round(math.log2(math.prod(size)) / 2)
        keeps = f"; --tile {tile} keeps those of {TILED * LEAST_VISIBLE} px" if factor > TILED else ""
        return (
            f"images of {_told(self.own)} are resized to {_told(size)}{tiled}: defects below about "
            f"{LEAST_VISIBLE * factor:.0f} px are lost, since they are below {LEAST_VISIBLE} px then{keeps}"
        )


def _told(size: Iterable[int]) -> str:
    height, width = size
    return f"{width} × {height}"
