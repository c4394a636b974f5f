"""The losses of DSV and the distances they are made of, as functions of sets of embeddings.

A set is a tensor of shape (images, width), of any real dtype. The arithmetic is in float64 on the set's own device (on
the CPU for MPS, which has no float64), block by block: memory does not grow with the pairs. No gradients flow.

Every function raises `EmbeddingError`, naming the set, for a set that is empty, not a matrix, not finite or of another
width than the others. What comes back is a float64 scalar tensor, or an `Estimate` of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from dsv_plugins.errors import EmbeddingError
from dsv_plugins.types import SEPARABILITY_CAP

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "VARIANTS",
    "Estimate",
    "Limits",
    "concentration",
    "discordance",
    "distance_std",
    "dsv",
    "energy_distance",
    "relative_energy",
    "separability",
    "set_distance",
    "shift_cosine",
    "squared_mmd",
]

VARIANTS: Mapping[str, float] = {"paper": 1.0, "reference": 2.0}
"""What separability is multiplied by before the cap: the paper's reference code halves every distance."""

KERNELS = ("linear", "rbf")
MAX_PAIRS = 2**29
SAMPLE = 8192
BANDWIDTH_ROWS = 512

# A block of 2,048 rows keeps the matrix product efficient, and its 2,048 × 2,048 distances take 32 MiB.
# Embeddings wider than 4,096 get fewer rows, so that a block stays at 64 MiB.
BLOCK_ROWS = 2**11
BLOCK_ELEMENTS = 2**23


class Limits(TypedDict, total=False):
    """When to sample instead of visiting every pair, and how; see `set_distance`."""

    max_pairs: int
    sample: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A mean over pairs; `float(estimate)` is its value.

    Attributes:
        value: The mean, a float64 scalar.
        standard_error: Of the sampling, a float64 scalar; zero if every pair was visited.
    """

    value: Tensor
    standard_error: Tensor

    def __float__(self) -> float:
        return float(self.value)


def set_distance(a: Tensor, b: Tensor, *, max_pairs: int = MAX_PAIRS, sample: int = SAMPLE, seed: int = 0) -> Estimate:
    """Return the mean Euclidean distance over all pairs of a row of `a` and a row of `b`.

    Args:
        a: A set of embeddings.
        b: Another of the same width, or the same; a row's distance to itself then counts.
        max_pairs: Up to this many pairs the mean is exact. Past it, it is that of a random sample of each set.
        sample: Rows drawn from each set, without replacement; at least two.
        seed: Fixes the draw; the global random state is neither used nor changed.
    """
    a, b = _checked(a=a, b=b)
    return _set_distance(a, b, max_pairs=max_pairs, sample=sample, seed=seed)


def discordance(train: Tensor, augmented: Tensor, test: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return L_dis = d(train ∪ augmented, test) / d(train, augmented): lower is better.

    Infinite if d(train, augmented) is zero. `limits` are those of `set_distance`, for each of the distances.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    return _discordance(train, augmented, test, _set_distance(train, augmented, **limits).value, limits)


def separability(train: Tensor, augmented: Tensor, test: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return L_sep, without its cap: higher is better, up to 1/2.

    It is the population standard deviation of the projections of every test row on the direction from the mean of train
    to every augmented row, divided by d(train, augmented). An augmented row that equals the mean of train has no
    direction: its projections are zero. Zero if d(train, augmented) is zero.
    `limits` are those of `set_distance`, for that distance.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    return _separability(train, augmented, test, _set_distance(train, augmented, **limits).value)


def dsv(
    train: Tensor,
    augmented: Tensor,
    test: Tensor,
    variant: Literal["paper", "reference"] = "paper",
    **limits: Unpack[Limits],
) -> Tensor:
    """Return L_DSV = L_dis - min(L_sep, 1/2) / L_dis: the candidate with the smallest wins.

    Args:
        train: Embeddings of the normal images.
        augmented: Embeddings of their augmented copies.
        test: Embeddings of the unlabelled images.
        variant: "reference" halves every distance, as the paper's reference code does: L_sep doubles before the cap.
        limits: Those of `set_distance`, for each of the distances.

    Returns:
        The loss; infinite if d(train, augmented) is zero.

    Raises:
        ValueError: The variant is unknown.
    """
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; known are {', '.join(VARIANTS)}")
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    scale = _set_distance(train, augmented, **limits).value
    l_dis = _discordance(train, augmented, test, scale, limits)
    l_sep = VARIANTS[variant] * _separability(train, augmented, test, scale)
    return l_dis - l_sep.clamp(max=SEPARABILITY_CAP) / l_dis


def concentration(train: Tensor, augmented: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return d(train, train) / d(train, augmented), which the theory of DSV assumes to be far below one.

    Infinite if d(train, augmented) is zero. `limits` are those of `set_distance`.
    """
    train, augmented = _checked(train=train, augmented=augmented)
    scale = _set_distance(train, augmented, **limits).value
    return _ratio(_set_distance(train, train, **limits).value, scale, at_zero=math.inf)


def distance_std(a: Tensor, b: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return the population standard deviation of the distances that `set_distance` takes the mean of."""
    a, b = _checked(a=a, b=b)
    return _distance_moments(*_sampled(a, b, pairs=len(a) * len(b), **limits)).variance.sqrt()


def energy_distance(a: Tensor, b: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return E(a, b) = 2 d(a, b) - d(a, a) - d(b, b): zero if the two have the same distribution, and never negative.

    It is the squared distance of the two distributions in a Hilbert space, and what is left of d(a, b) once the spread
    within the sets is taken out. `limits` are those of `set_distance`, for the pairs within the larger set.
    """
    a, b = _checked(a=a, b=b)
    return _energy_distance(*_sampled(a, b, pairs=max(len(a), len(b)) ** 2, **limits))


def relative_energy(train: Tensor, test: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return E(train, test) / d(train, train): how far test is from train in units of the spread of train.

    NaN if d(train, train) is zero. `limits` are those of `energy_distance`.
    """
    train, test = _checked(train=train, test=test)
    train, test = _sampled(train, test, pairs=max(len(train), len(test)) ** 2, **limits)
    return _ratio(_energy_distance(train, test), _mean_distance(train, train), at_zero=math.nan)


def shift_cosine(train: Tensor, augmented: Tensor, test: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return the cosine between the shifts train → test and train → augmented in the Hilbert space of E, from -1 to 1.

    It is 1 if test is distributed as a mixture of train and augmented, in any shares: augmented images then
    explain the whole difference between train and test. NaN if one of the shifts is zero.
    `limits` are those of `energy_distance`.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    pairs = max(len(train), len(augmented), len(test)) ** 2
    train, augmented, test = _sampled(train, augmented, test, pairs=pairs, **limits)
    inner = (
        _mean_distance(test, train)
        + _mean_distance(train, augmented)
        - _mean_distance(test, augmented)
        - _mean_distance(train, train)
    )
    norms = (_energy_distance(train, test) * _energy_distance(train, augmented)).sqrt()
    return _ratio(inner, norms, at_zero=math.nan).clamp(-1, 1)


def squared_mmd(
    a: Tensor,
    b: Tensor,
    kernel: Literal["linear", "rbf"] = "linear",
    *,
    bandwidth: float | None = None,
    **limits: Unpack[Limits],
) -> Tensor:
    """Return the squared maximum mean discrepancy, biased (a V-statistic, never negative).

    Args:
        a: A set of embeddings.
        b: Another of the same width.
        kernel: "linear", which compares the means, or "rbf", exp(-|x - y|² / (2 · bandwidth²)).
        bandwidth: Of the rbf kernel. None for the median heuristic: the median distance between distinct rows of a
            random sample, seeded by `seed`, of up to 512 rows of each set.
        limits: Those of `set_distance`, for the rbf kernel: if a set has more pairs than that, both are sampled.

    Raises:
        ValueError: The kernel is unknown or the bandwidth not positive.
    """
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}; known are {', '.join(KERNELS)}")
    if bandwidth is not None and not bandwidth > 0:
        raise ValueError(f"the bandwidth must be positive, not {bandwidth}")
    a, b = _checked(a=a, b=b)
    if kernel == "linear":
        return (_mean(a) - _mean(b)).square().sum()
    if bandwidth is None:
        bandwidth = _median_distance(a, b, limits.get("seed", 0))
    a, b = _sampled(a, b, pairs=max(len(a), len(b)) ** 2, **limits)
    within = _mean_rbf(a, a, bandwidth) + _mean_rbf(b, b, bandwidth)
    return (within - 2 * _mean_rbf(a, b, bandwidth)).clamp(min=0)


def _checked(**sets: Tensor) -> list[Tensor]:
    """Return the sets in the order given, ready for float64, if all of them permit a loss."""
    for name, each in sets.items():
        if each.ndim != 2:
            raise EmbeddingError(f"{name} has shape {tuple(each.shape)}; embeddings have shape (images, width)")
        if not each.numel():
            raise EmbeddingError(f"{name} is empty, of shape {tuple(each.shape)}; a loss needs at least one embedding")
        # 0 · x is NaN exactly if x is not finite: a tenth of the time of isfinite.
        broken = sum((rows * 0).sum(dim=1).isnan().sum() for rows in torch.split(each, BLOCK_ROWS))
        if broken:
            raise EmbeddingError(f"{name} is NaN or infinite in {broken} of {len(each)} rows; check the training")
    if len({each.shape[1] for each in sets.values()}) > 1:
        widths = ", ".join(f"{name} {each.shape[1]}" for name, each in sets.items())
        raise EmbeddingError(f"the widths of the embeddings differ: {widths}; embed every set with one detector")
    return [(each.cpu() if each.device.type == "mps" else each).detach() for each in sets.values()]


def _ratio(value: Tensor, scale: Tensor, *, at_zero: float) -> Tensor:
    return torch.where(scale > 0, value / scale, at_zero)


def _discordance(train: Tensor, augmented: Tensor, test: Tensor, scale: Tensor, limits: Limits) -> Tensor:
    # The mean over a union is the mean of the means by size: no joint copy of the two sets.
    share = len(train) / (len(train) + len(augmented))
    from_train, from_augmented = (_set_distance(each, test, **limits).value for each in (train, augmented))
    return _ratio(share * from_train + (1 - share) * from_augmented, scale, at_zero=math.inf)


def _separability(train: Tensor, augmented: Tensor, test: Tensor, scale: Tensor) -> Tensor:
    """Divide the standard deviation of the projections by the scale, without a matrix of all projections.

    With directions u_i and test rows v_j, both seen from the mean of train, the law of total variance gives
    var(u_i·v_j) = mean over i, j of (u_i·(v_j - mean(v)))² + var over i of u_i·mean(v).
    """
    origin, test_mean = _mean(train), _mean(test)

    def directions() -> Iterator[Tensor]:
        for _, rows in _blocks(augmented, origin):
            norms = rows.norm(dim=1, keepdim=True)
            yield rows / norms.where(norms > 0, 1.0)

    def deviations() -> Iterator[Tensor]:
        return (rows for _, rows in _blocks(test, test_mean))

    count = len(augmented) * len(test)
    if count < (len(augmented) + len(test)) * test.shape[1]:
        squares = _total((u @ v.T).square().sum() for u in directions() for v in deviations())
    else:
        # The sum over i, j of (u_i·v_j)² is the inner product of Σ u_i u_iᵀ and Σ v_j v_jᵀ: linear in the rows.
        squares = (_total(u.T @ u for u in directions()) * _total(v.T @ v for v in deviations())).sum()
    within = (squares / count).clamp(min=0)
    between = torch.cat([u @ (test_mean - origin) for u in directions()]).var(correction=0)
    return _ratio((within + between).sqrt(), scale, at_zero=0.0)


def _set_distance(a: Tensor, b: Tensor, **limits: Unpack[Limits]) -> Estimate:
    moments = _distance_moments(*_sampled(a, b, pairs=len(a) * len(b), **limits))
    # The mean over a sample of each set is a two-sample U-statistic: its variance is that of the mean of the row means
    # plus that of the mean of the column means. The interaction is in both, an excess of O(1 / sample²) only.
    variance = _variance_of_mean(moments.row_means, len(a)) + _variance_of_mean(moments.column_means, len(b))
    return Estimate(moments.mean, variance.sqrt())


def _variance_of_mean(sample: Tensor, population: int) -> Tensor:
    """Return the variance of the mean of a sample drawn without replacement: zero if nothing was left out."""
    unseen = 1 - len(sample) / population
    return sample.var() * unseen / len(sample) if unseen else sample.new_zeros(())


def _mean_distance(a: Tensor, b: Tensor) -> Tensor:
    return _distance_moments(a, b).mean


def _energy_distance(a: Tensor, b: Tensor) -> Tensor:
    # Never negative but for rounding.
    return (2 * _mean_distance(a, b) - _mean_distance(a, a) - _mean_distance(b, b)).clamp(min=0)


def _sampled(
    *sets: Tensor, pairs: int, max_pairs: int = MAX_PAIRS, sample: int = SAMPLE, seed: int = 0
) -> Sequence[Tensor]:
    """Return the sets if `pairs` is within `max_pairs`, else a random sample of each."""
    if sample < 2:
        raise ValueError(f"a sample of {sample} has no standard error; draw at least 2 rows")
    if pairs <= max_pairs:
        return sets
    generator = torch.Generator().manual_seed(seed)
    return [_drawn(each, sample, generator) for each in sets]


def _drawn(points: Tensor, sample: int, generator: torch.Generator) -> Tensor:
    if len(points) <= sample:
        return points
    # On the CPU for points on any device, so that a seed means the same rows everywhere.
    return points[torch.randperm(len(points), generator=generator)[:sample].to(points.device)]


class _Moments(NamedTuple):
    """Of all pairwise distances."""

    mean: Tensor
    variance: Tensor
    row_means: Tensor
    column_means: Tensor


def _distance_moments(a: Tensor, b: Tensor) -> _Moments:
    pairs = 0
    mean, variance = torch.zeros(2, dtype=torch.float64, device=a.device)
    row_sums, column_sums = (torch.zeros(len(each), dtype=torch.float64, device=a.device) for each in (a, b))
    for rows, columns, distances in _distances(a, b):
        row_sums[rows] += distances.sum(dim=1)
        column_sums[columns] += distances.sum(dim=0)
        # Merged as Chan, Golub and LeVeque do: the mean square less the squared mean would cancel.
        pairs += distances.numel()
        share = distances.numel() / pairs
        block_mean = distances.mean()
        shift = block_mean - mean
        block_variance = distances.sub_(block_mean).square_().mean()
        variance = (1 - share) * variance + share * (block_variance + (1 - share) * shift.square())
        mean = mean + share * shift
    return _Moments(mean, variance, row_sums / len(b), column_sums / len(a))


def _distances(a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the matrix of pairwise distances in blocks, each with the rows of `a` and of `b` that it covers."""
    # |x|² + |y|² - 2xy is as fast as a matrix product, but is off by about √ε (|x| + |y|) if x is near y. Centring
    # makes that harmless: for any offset, the rows of either set are on average within 2 d(a, b) of the mean of
    # both (triangle inequality), so d(a, b) errs by a few √ε ≈ 1e-8 of itself. Where all rows are equal, all of them
    # are centred to zero, and their distance is exactly zero.
    centre = _mean(a, b)
    for rows, left in _blocks(a, centre):
        for columns, right in _blocks(b, centre):
            yield rows, columns, torch.cdist(left, right, compute_mode="use_mm_for_euclid_dist")


def _blocks(points: Tensor, centre: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the rows less the centre, in float64, with their place."""
    step = max(1, min(BLOCK_ROWS, BLOCK_ELEMENTS // points.shape[1]))
    for start in range(0, len(points), step):
        rows = slice(start, start + step)
        yield rows, points[rows].double() - centre


def _mean(*sets: Tensor) -> Tensor:
    """Return the mean row of the sets together, summed relative to the first row: exact if all rows are equal."""
    first = sets[0][0].double()
    total = _total(rows.sum(dim=0) for each in sets for _, rows in _blocks(each, first))
    return first + total / sum(len(each) for each in sets)


def _total(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


def _mean_rbf(a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
    kernel_sums = (distances.div_(bandwidth).square_().div_(-2).exp_().sum() for _, _, distances in _distances(a, b))
    return _total(kernel_sums) / (len(a) * len(b))


def _median_distance(a: Tensor, b: Tensor, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    distances = torch.pdist(torch.cat([_drawn(each, BANDWIDTH_ROWS, generator) for each in (a, b)]).double())
    distances = distances[distances > 0]
    # Among equal rows the discrepancy is zero at any bandwidth.
    return float(distances.median()) if len(distances) else 1.0
