"""Sums over the distances of all pairs of two sets, block by block: memory does not grow with the pairs.

Sets are finite matrices of the same width, on the same device. Sums of blocks are added in float64. The rest, where the
time goes, is in float32 if the sets are (or shorter), because that is exact enough:

- Rows are seen from the mean of the first set, rounded to float32. A difference of two float32 numbers is off by at
  most u = 2⁻²⁴ of itself, so no offset of the sets costs digits, as it would in |x|² + |y|² - 2xy as they are.
- In that sum, the rounding errors of about √width additions remain (the others cancel, with high probability: Higham
  and Mary 2019), each at most u (|x|² + |y|²). So a distance is off by at most √width · u / (2 r) of itself, with
  r = |x - y|² / (|x|² + |y|²). A pair counts as near if r is below √width · u / 1e-5. The distances of all other pairs
  are then right to 5e-6, and a mean over many pairs is far closer. This is a bound for rounding errors as they occur,
  not for the worst case: if all of them had one sign, it would be √width times as large.
- Near pairs, such as a train image and its copy with a tiny patch, are computed again in float64: by the difference of
  the two rows if there are few in a block, else the whole block. There |x|² + |y|² - 2xy is off by at most about
  √2⁻⁵³ ≈ 1e-8 of |x| + |y|, which is on average within three times d(a, b): by the triangle inequality, rows of `b` are
  within d(a, b) of the mean of `a`, and rows of `a` within d(a, a) ≤ 2 d(a, b).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from dsv_plugins.sharing import shared

__all__ = ["Means", "distance_blocks", "distance_means", "distance_moments", "mean_row", "row_blocks", "total"]

ROUNDING = 2.0**-24
TOLERANCE = 1e-5

# The distances of a block, 4 MiB in float32, stay in the cache from the product to the sums.
BLOCK_ROWS = 2**10
# Rows are centred a strip at a time: 32 MiB in float64. Embeddings wider than 4,096 get smaller blocks.
STRIP_ELEMENTS = 2**22
# Fewer pairs take no time in float64, and their rounding errors do not average out.
FEWEST_PAIRS = 2**15
# From here on, the float64 product of a block takes less time than the differences of its near pairs.
NEAR_SHARE = 1 / 128
# Squares outside lose digits in float32, or overflow.
SMALLEST, LARGEST = 2.0**-80, 2.0**80


class Means(NamedTuple):
    """Mean distances between two sets, in float64: of each row of the first, and of each row of the second."""

    rows: Tensor
    columns: Tensor


@shared
def distance_means(a: Tensor, b: Tensor) -> Means:
    """Return the mean distance of each row of a set to all rows of another."""
    row_sums, column_sums = (torch.zeros(len(each), dtype=torch.float64, device=each.device) for each in (a, b))
    for rows, columns, distances in distance_blocks(a, b):
        row_sums[rows].add_(distances.sum(dim=1))
        column_sums[columns].add_(distances.sum(dim=0))
    return Means(row_sums / len(b), column_sums / len(a))


@shared
def distance_moments(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and population variance of the distances of each row of `b` to all rows of `a`."""
    means, variances = torch.zeros(2, len(b), dtype=torch.float64, device=b.device)
    for rows, columns, distances in distance_blocks(a, b):
        # Merged as Chan, Golub and LeVeque do: the mean square less the squared mean would cancel.
        share = len(distances) / (rows.start + len(distances))
        block_means = distances.mean(dim=0)
        block_variances = distances.sub_(block_means).square_().mean(dim=0)
        shifts = block_means - means[columns]
        spread = block_variances + (1 - share) * shifts.square()
        variances[columns] += share * (spread - variances[columns])
        means[columns] += share * shifts
    return means, variances


def distance_blocks(a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the matrix of pairwise distances in blocks, each with the rows of `a` and of `b` that it covers.

    The blocks of some rows of `b` come in the order of the rows of `a`.
    """
    dtype = _product_dtype(a, b)
    exact_centre: Tensor | None = None
    centre = a.mean(dim=0, dtype=dtype) if dtype == torch.float32 else mean_row(a)
    step = _block_rows(b)
    for strip in _slices(0, len(b), max(step, STRIP_ELEMENTS // b.shape[1])):
        slices = _slices(strip.start, min(strip.stop, len(b)), step)
        right_blocks = [(columns, _centred(b[columns], centre, dtype)) for columns in slices]
        for rows in _slices(0, len(a), step):
            left = _centred(a[rows], centre, dtype)
            for columns, right in right_blocks:
                squares = _squares(left, right)
                if dtype == torch.float32 and not _mended(squares, left, right, a[rows], b[columns]):
                    exact_centre = mean_row(a) if exact_centre is None else exact_centre
                    points = a[rows], b[columns]
                    squares = _squares(*(_centred(each, exact_centre, torch.float64) for each in points))
                if squares.dtype == torch.float64:
                    squares.clamp_(min=0)  # equal rows may be at a square just below zero
                yield rows, columns, squares.sqrt_()


def row_blocks(points: Tensor, centre: Tensor) -> Iterator[Tensor]:
    """Yield the rows less the centre, in float64."""
    return (points[rows].double() - centre for rows in _slices(0, len(points), _block_rows(points)))


def mean_row(points: Tensor) -> Tensor:
    """Return the mean row in float64, summed relative to the first row: exact if all rows are equal."""
    first = points[0].double()
    return first + total(rows.sum(dim=0) for rows in row_blocks(points, first)) / len(points)


def total(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of one or more tensors."""
    return reduce(torch.add, terms)


class _Centred(NamedTuple):
    rows: Tensor
    squared_norms: Tensor


def _centred(points: Tensor, centre: Tensor, dtype: torch.dtype) -> _Centred:
    rows = points.to(dtype) - centre
    return _Centred(rows, torch.linalg.vector_norm(rows, dim=1).square_())


def _squares(left: _Centred, right: _Centred) -> Tensor:
    """Return |x|² + |y|² - 2xy, in place and without autocast, which leaves such products alone."""
    return (left.squared_norms[:, None] + right.squared_norms).addmm_(left.rows, right.rows.T, alpha=-2)


def _mended(squares: Tensor, left: _Centred, right: _Centred, a: Tensor, b: Tensor) -> bool:
    """Compute near pairs of a float32 block again, in place; False if the whole block must be."""
    threshold = a.shape[1] ** 0.5 * ROUNDING / TOLERANCE
    highest = threshold * float(left.squared_norms.max() + right.squared_norms.max())
    if not SMALLEST < highest < LARGEST:
        return False
    if float(squares.amin()) >= highest:
        return True
    near = squares < threshold * (left.squared_norms[:, None] + right.squared_norms)
    if near.sum() > min(NEAR_SHARE * squares.numel(), STRIP_ELEMENTS / a.shape[1]):
        return False
    rows, columns = near.nonzero(as_tuple=True)
    squares[near] = a[rows].double().sub_(b[columns]).square_().sum(dim=1).float()
    return True


def _product_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """Return float32 if neither set has more digits, the pairs are many, and torch computes such products in full."""
    short = all(each.is_floating_point() and each.dtype != torch.float64 for each in (a, b))
    many = len(a) * len(b) >= FEWEST_PAIRS
    return torch.float32 if short and many and torch.get_float32_matmul_precision() == "highest" else torch.float64


def _block_rows(points: Tensor) -> int:
    return max(1, min(BLOCK_ROWS, STRIP_ELEMENTS // points.shape[1]))


def _slices(start: int, stop: int, step: int) -> list[slice]:
    return [slice(first, first + step) for first in range(start, stop, step)]
