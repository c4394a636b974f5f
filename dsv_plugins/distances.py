"""Sums over the distances of all pairs of two sets, in float64 and block by block: memory does not grow with the pairs.

`torch.cdist` expands |x - y|² for all but small sets, which is off by about 1e-16 (|x|² + |y|²). Rows are therefore
seen from the mean of the first set: no offset of the sets costs digits, and a distance is right to about 1e-8 of
|x| + |y|, even that of an image and its copy with a tiny patch. Sets are finite matrices of the same width, on the same
device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["distance_blocks", "distance_means", "distance_moments", "mean_row"]

BLOCK_ELEMENTS = 2**22
"""Distances, or numbers in rows, that are held at once: 32 MiB."""


def distance_blocks(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """Yield the distances of some rows of `a` to all rows of `b`, in the order of the rows of `a`."""
    centre = mean_row(a)
    right = b.double() - centre
    for rows in torch.split(a, max(1, BLOCK_ELEMENTS // max(len(b), a.shape[1]))):
        yield torch.cdist(rows.double() - centre, right)


def distance_means(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean distance of each row of `a` to all rows of `b`, and of each row of `b` to all rows of `a`."""
    # Made before the blocks: what is kept between two of them would keep their memory from being used again.
    of_rows, of_columns = (torch.zeros(len(each), dtype=torch.float64, device=each.device) for each in (a, b))
    first = 0
    for distances in distance_blocks(a, b):
        of_rows[first : first + len(distances)] = distances.mean(dim=1)
        of_columns += distances.sum(dim=0)
        first += len(distances)
    return of_rows, of_columns / len(a)


def distance_moments(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and population variance of the distances of each row of `b` to all rows of `a`."""
    blocks = distance_blocks(a, b)
    first = next(blocks)
    near = first.mean(dim=0)  # from zero, the mean square less the squared mean would cancel
    sums, squares = torch.zeros(2, len(b), dtype=torch.float64, device=b.device)
    for distances in itertools.chain([first], blocks):
        deviations = distances - near
        sums += deviations.sum(dim=0)
        squares += deviations.square().sum(dim=0)
    shifts = sums / len(a)
    return near + shifts, (squares / len(a) - shifts.square()).clamp(min=0)


def mean_row(points: Tensor) -> Tensor:
    """Return the mean row in float64, summed relative to the first row: exact if all rows are equal."""
    first = points[0].double()
    blocks = torch.split(points, max(1, BLOCK_ELEMENTS // points.shape[1]))
    return first + torch.stack([(rows.double() - first).sum(dim=0) for rows in blocks]).sum(dim=0) / len(points)
