"""The losses of DSV and the distances they are made of, as functions of sets of embeddings.

A set is a tensor of shape (images, width), of any real dtype. The arithmetic is in float64 on the set's own device (on
the CPU for MPS, which has no float64), block by block: memory does not grow with the pairs. No gradients flow.

A mean over more than 2²⁹ pairs (about 23,000 rows in each set) is that over the pairs of a random sample of 8,192 rows
of each set. The draw is seeded; the global random state is neither used nor changed. `set_distance` tells the standard
error.

The losses that look at test take `resamples`: row numbers of test, of shape (resamples, rows). They then return a loss
for each resample, as if test were `test[rows]`, and visit the pairs but once: that is how a bootstrap is fast.

Every function raises `EmbeddingError`, naming the set, for a set that is empty, not a matrix, not finite or of another
width than the others. What comes back is a float64 scalar tensor, or an `Estimate` of two; with `resamples`, a vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dsv_plugins.distances import distance_blocks, distance_means, distance_moments, mean_row
from dsv_plugins.errors import EmbeddingError
from dsv_plugins.types import SEPARABILITY_CAP

__all__ = [
    "VARIANTS",
    "Estimate",
    "concentration",
    "discordance",
    "distance_std",
    "distance_to_test",
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
    if sample < 2:
        raise ValueError(f"a sample of {sample} has no standard error; draw at least 2 rows")
    a, b = _checked(a=a, b=b)
    pair = _drawn(a, b, rows=sample, seed=seed) if len(a) * len(b) > max_pairs else [a, b]
    of_rows, of_columns = distance_means(*pair)
    # The mean over a sample of each set is a two-sample U-statistic: its variance is that of the mean of the row means
    # plus that of the mean of the column means. The interaction is in both, an excess of O(1 / sample²) only.
    variance = _variance_of_mean(of_rows, len(a)) + _variance_of_mean(of_columns, len(b))
    return Estimate(of_columns.mean(), variance.sqrt())


def distance_to_test(train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None) -> Tensor:
    """Return d(train ∪ augmented, test), the distance that DSV starts from."""
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    return _distance_to_test(train, augmented, test, resamples)


def discordance(train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None) -> Tensor:
    """Return L_dis = d(train ∪ augmented, test) / d(train, augmented): lower is better.

    Infinite if d(train, augmented) is zero.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    to_test = _distance_to_test(train, augmented, test, resamples)
    return _ratio(to_test, _mean_distance(train, augmented), at_zero=math.inf)


def separability(train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None) -> Tensor:
    """Return L_sep, without its cap: higher is better, up to 1/2.

    It is the population standard deviation of the projections of every test row on the direction from the mean of train
    to every augmented row, divided by d(train, augmented). An augmented row that equals the mean of train has no
    direction: its projections are zero. Zero if d(train, augmented) is zero.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    spread = _projection_std(train, augmented, test, resamples)
    return _ratio(spread, _mean_distance(train, augmented), at_zero=0.0)


def dsv(
    train: Tensor,
    augmented: Tensor,
    test: Tensor,
    variant: Literal["paper", "reference"] = "paper",
    *,
    resamples: Tensor | None = None,
) -> Tensor:
    """Return L_DSV = L_dis - min(L_sep, 1/2) / L_dis: the candidate with the smallest wins.

    Args:
        train: Embeddings of the normal images.
        augmented: Embeddings of their augmented copies.
        test: Embeddings of the unlabelled images.
        variant: "reference" halves every distance, as the paper's reference code does: L_sep doubles before the cap.
        resamples: Row numbers of test for each resample; None for the loss of test itself.

    Returns:
        The loss; infinite if d(train, augmented) is zero.

    Raises:
        ValueError: The variant is unknown.
    """
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; known are {', '.join(VARIANTS)}")
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    scale = _mean_distance(train, augmented)
    l_dis = _ratio(_distance_to_test(train, augmented, test, resamples), scale, at_zero=math.inf)
    l_sep = VARIANTS[variant] * _ratio(_projection_std(train, augmented, test, resamples), scale, at_zero=0.0)
    return l_dis - l_sep.clamp(max=SEPARABILITY_CAP) / l_dis


def concentration(train: Tensor, augmented: Tensor) -> Tensor:
    """Return d(train, train) / d(train, augmented), which the theory of DSV assumes to be far below one.

    Infinite if d(train, augmented) is zero.
    """
    train, augmented = _checked(train=train, augmented=augmented)
    return _ratio(_mean_distance(train, train), _mean_distance(train, augmented), at_zero=math.inf)


def distance_std(a: Tensor, b: Tensor, *, resamples: Tensor | None = None) -> Tensor:
    """Return the population standard deviation of the distances that `set_distance` takes the mean of.

    `resamples` are of `b`.
    """
    a, b = _checked(a=a, b=b)
    a, b = _limited(a, b, pairs=len(a) * len(b), resamples=resamples)
    return _std_over_rows(*distance_moments(a, b), resamples)


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return E(a, b) = 2 d(a, b) - d(a, a) - d(b, b): zero if the two have the same distribution, and never negative.

    It is the squared distance of the two distributions in a Hilbert space, and what is left of d(a, b) once the spread
    within the sets is taken out. If the larger set has too many pairs, both are sampled.
    """
    a, b = _checked(a=a, b=b)
    a, b = _limited(a, b, pairs=max(len(a), len(b)) ** 2)
    return _energy(_mean_distance(a, b), _mean_distance(a, a), _mean_distance(b, b))


def relative_energy(train: Tensor, test: Tensor, *, resamples: Tensor | None = None) -> Tensor:
    """Return E(train, test) / d(train, train): how far test is from train in units of the spread of train.

    NaN if d(train, train) is zero.
    """
    train, test = _checked(train=train, test=test)
    train, test = _limited(train, test, pairs=max(len(train), len(test)) ** 2, resamples=resamples)
    spread = _mean_distance(train, train)
    energy = _energy(_mean_distance(train, test, resamples), spread, _spread(test, resamples))
    return _ratio(energy, spread, at_zero=math.nan)


def shift_cosine(train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None) -> Tensor:
    """Return the cosine between the shifts train → test and train → augmented in the Hilbert space of E, from -1 to 1.

    It is 1 if test is distributed as a mixture of train and augmented, in any shares: augmented images then
    explain the whole difference between train and test. NaN if one of the shifts is zero.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    pairs = max(len(train), len(augmented), len(test)) ** 2
    train, augmented, test = _limited(train, augmented, test, pairs=pairs, resamples=resamples)
    to_test, to_augmented = _mean_distance(train, test, resamples), _mean_distance(train, augmented)
    spread = _mean_distance(train, train)
    inner = to_test + to_augmented - _mean_distance(augmented, test, resamples) - spread
    test_energy = _energy(to_test, spread, _spread(test, resamples))
    augmented_energy = _energy(to_augmented, spread, _mean_distance(augmented, augmented))
    return _ratio(inner, (test_energy * augmented_energy).sqrt(), at_zero=math.nan).clamp(-1, 1)


def squared_mmd(
    a: Tensor,
    b: Tensor,
    kernel: Literal["linear", "rbf"] = "linear",
    *,
    bandwidth: float | None = None,
    resamples: Tensor | None = None,
) -> Tensor:
    """Return the squared maximum mean discrepancy, biased (a V-statistic, never negative).

    Args:
        a: A set of embeddings.
        b: Another of the same width.
        kernel: "linear", which compares the means, or "rbf", exp(-|x - y|² / (2 · bandwidth²)).
        bandwidth: Of the rbf kernel. None for the median heuristic: the median distance between distinct rows of a
            random sample of up to 512 rows of each set.
        resamples: Row numbers of `b` for each resample; None for the discrepancy from `b` itself.

    Raises:
        ValueError: The kernel is unknown or the bandwidth not positive.
    """
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}; known are {', '.join(KERNELS)}")
    if bandwidth is not None and not bandwidth > 0:
        raise ValueError(f"the bandwidth must be positive, not {bandwidth}")
    a, b = _checked(a=a, b=b)
    if kernel == "linear":
        return (_mean_rows(b, resamples) - mean_row(a)).square().sum(dim=-1)
    if resamples is not None:
        # The bandwidth is that of each resample, so nothing is in common.
        return torch.stack([_squared_rbf_mmd(a, b[rows], bandwidth) for rows in resamples])
    return _squared_rbf_mmd(a, b, bandwidth)


def _checked(**sets: Tensor) -> list[Tensor]:
    """Return the sets in the order given, on a device with float64, if all of them permit a loss."""
    for name, each in sets.items():
        if each.ndim != 2:
            raise EmbeddingError(f"{name} has shape {tuple(each.shape)}; embeddings have shape (images, width)")
        if not each.numel():
            raise EmbeddingError(f"{name} is empty, of shape {tuple(each.shape)}; a loss needs at least one embedding")
        # A finite sum, which takes a tenth of the time of isfinite, has finite terms only; another may have overflowed.
        if not each.sum().isfinite() and (broken := int((~each.isfinite()).any(dim=1).sum())):
            raise EmbeddingError(f"{name} is NaN or infinite in {broken} of {len(each)} rows; check the training")
    if len({each.shape[1] for each in sets.values()}) > 1:
        widths = ", ".join(f"{name} {each.shape[1]}" for name, each in sets.items())
        raise EmbeddingError(f"the widths of the embeddings differ: {widths}; embed every set with one detector")
    return [(each.cpu() if each.device.type == "mps" else each).detach() for each in sets.values()]


def _ratio(value: Tensor, scale: Tensor, *, at_zero: float) -> Tensor:
    return torch.where(scale > 0, value / scale, at_zero)


def _distance_to_test(train: Tensor, augmented: Tensor, test: Tensor, resamples: Tensor | None) -> Tensor:
    # The mean over a union is the mean of the means by size: no joint copy of the two sets.
    share = len(train) / (len(train) + len(augmented))
    return share * _mean_distance(train, test, resamples) + (1 - share) * _mean_distance(augmented, test, resamples)


def _projection_std(train: Tensor, augmented: Tensor, test: Tensor, resamples: Tensor | None) -> Tensor:
    """Return the standard deviation of the projections of all test rows on the directions of all augmented rows."""
    origin = mean_row(train)
    augmented, test = _limited(augmented, test, pairs=len(augmented) * len(test), resamples=resamples)
    smallest = torch.finfo(torch.float64).tiny  # a row at the origin stays there
    directions = torch.nn.functional.normalize(augmented.double() - origin, dim=1, eps=smallest)
    mean_direction = directions.mean(dim=0)
    deviations = directions - mean_direction
    rows = test.double() - origin
    # The sum over i of (u_i·v)² is vᵀ (Σ u_i u_iᵀ) v: linear in the rows. `multi_dot` takes a matrix of all pairs of
    # rows only if it is smaller than that of width × width.
    squares = (torch.linalg.multi_dot([rows, deviations.T, deviations]) * rows).sum(dim=1).clamp(min=0)
    return _std_over_rows(rows @ mean_direction, squares / len(augmented), resamples)


def _std_over_rows(means: Tensor, variances: Tensor, resamples: Tensor | None) -> Tensor:
    """Return the standard deviation over all pairs from the moments of each row, by the law of total variance."""
    means, variances = (_drawn_terms(each, resamples) for each in (means, variances))
    return (variances.mean(dim=-1) + means.var(dim=-1, correction=0)).sqrt()


def _drawn_terms(terms: Tensor, resamples: Tensor | None) -> Tensor:
    return terms if resamples is None else terms[resamples.to(terms.device)]


def _mean_distance(a: Tensor, b: Tensor, resamples: Tensor | None = None) -> Tensor:
    """Return d(a, b), or d(a, b[rows]) for each resample."""
    a, b = _limited(a, b, pairs=len(a) * len(b), resamples=resamples)
    return _drawn_terms(distance_means(a, b)[1], resamples).mean(dim=-1)


def _spread(points: Tensor, resamples: Tensor | None) -> Tensor:
    """Return d(points, points), or that of each resample."""
    if resamples is None:
        return _mean_distance(points, points)
    if len(points) ** 2 > resamples.numel() * resamples.shape[1]:  # the resamples have few pairs in common
        return torch.stack([_mean_distance(points[rows], points[rows]) for rows in resamples])
    counts = _counts(resamples, points)
    sums = [counts @ distances.T for distances in distance_blocks(points, points)]
    return (torch.cat(sums, dim=1) * counts).sum(dim=1) / resamples.shape[1] ** 2


def _energy(between: Tensor, *within: Tensor) -> Tensor:
    # Never negative but for rounding.
    return (2 * between - within[0] - within[1]).clamp(min=0)


def _mean_rows(points: Tensor, resamples: Tensor | None) -> Tensor:
    """Return the mean row, or that of each resample."""
    centre = mean_row(points)
    if resamples is None:
        return centre
    return centre + _counts(resamples, points) @ (points.double() - centre) / resamples.shape[1]


def _counts(resamples: Tensor, points: Tensor) -> Tensor:
    """Return how often each resample draws each row, of shape (resamples, rows)."""
    counts = [rows.bincount(minlength=len(points)) for rows in resamples]
    return torch.stack(counts).to(points.device, torch.float64)


def _variance_of_mean(sample: Tensor, population: int) -> Tensor:
    """Return the variance of the mean of a sample drawn without replacement: zero if nothing was left out."""
    unseen = 1 - len(sample) / population
    return sample.var() * unseen / len(sample) if unseen else sample.new_zeros(())


def _limited(*sets: Tensor, pairs: int, resamples: Tensor | None = None) -> list[Tensor]:
    """Return the sets, or a random sample of each if there are too many pairs; never if rows of them are named."""
    too_many = pairs > MAX_PAIRS and resamples is None
    return _drawn(*sets, rows=SAMPLE) if too_many else list(sets)


def _drawn(*sets: Tensor, rows: int, seed: int = 0) -> list[Tensor]:
    """Return up to so many random rows of each set."""
    # Drawn on the CPU for points on any device, so that a seed means the same rows everywhere.
    generator = torch.Generator().manual_seed(seed)
    return [
        points
        if len(points) <= rows
        else points[torch.randperm(len(points), generator=generator)[:rows].to(points.device)]
        for points in sets
    ]


def _squared_rbf_mmd(a: Tensor, b: Tensor, bandwidth: float | None) -> Tensor:
    bandwidth = bandwidth or _median_distance(a, b)
    a, b = _limited(a, b, pairs=max(len(a), len(b)) ** 2)
    within = _mean_rbf(a, a, bandwidth) + _mean_rbf(b, b, bandwidth)
    return (within - 2 * _mean_rbf(a, b, bandwidth)).clamp(min=0)


def _mean_rbf(a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=a.device)
    for distances in distance_blocks(a, b):
        total += distances.div_(bandwidth).square_().div_(-2).exp_().sum()
    return total / (len(a) * len(b))


def _median_distance(a: Tensor, b: Tensor) -> float:
    distances = torch.pdist(torch.cat(_drawn(a, b, rows=BANDWIDTH_ROWS)).double())
    distances = distances[distances > 0]
    # Among equal rows the discrepancy is zero at any bandwidth.
    return float(distances.median()) if len(distances) else 1.0
