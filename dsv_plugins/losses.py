"""The losses of DSV and the distances they are made of, as functions of sets of embeddings.

A set is a tensor of shape (images, width), of any real dtype. The arithmetic is on the set's own device (on the CPU for
MPS, which has no float64), block by block: memory does not grow with the pairs. It is in float64, but for the distances
within a block of large sets in float32 or less: those are in float32, and still right to about 5e-6 (see
`dsv_plugins.distances`). No gradients flow.

The losses that look at test take `resamples`: row numbers of test, of shape (resamples, rows). They then return a loss
for each resample, as if test were `test[rows]`, and visit the pairs but once: that is how a bootstrap is fast.

Every function raises `EmbeddingError`, naming the set, for a set that is empty, not a matrix, not finite or of another
width than the others. What comes back is a float64 scalar tensor, or an `Estimate` of two; with `resamples`, a vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

import torch
from torch import Tensor

from dsv_plugins.distances import distance_blocks, distance_means, distance_moments, mean_row, row_blocks, total
from dsv_plugins.errors import EmbeddingError
from dsv_plugins.sharing import shared
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


def distance_to_test(
    train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None, **limits: Unpack[Limits]
) -> Tensor:
    """Return d(train ∪ augmented, test), the distance that DSV starts from.

    `limits` are those of `set_distance`, for each of the two distances that it is made of; with `resamples` every pair
    is visited.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    return _distance_to_test(train, augmented, test, resamples, limits)


def discordance(
    train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None, **limits: Unpack[Limits]
) -> Tensor:
    """Return L_dis = d(train ∪ augmented, test) / d(train, augmented): lower is better.

    Infinite if d(train, augmented) is zero. `limits` are those of `set_distance`, for each of the distances.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    scale = _set_distance(train, augmented, **limits).value
    return _ratio(_distance_to_test(train, augmented, test, resamples, limits), scale, at_zero=math.inf)


def separability(
    train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None, **limits: Unpack[Limits]
) -> Tensor:
    """Return L_sep, without its cap: higher is better, up to 1/2.

    It is the population standard deviation of the projections of every test row on the direction from the mean of train
    to every augmented row, divided by d(train, augmented). An augmented row that equals the mean of train has no
    direction: its projections are zero. Zero if d(train, augmented) is zero.
    `limits` are those of `set_distance`, for that distance.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    scale = _set_distance(train, augmented, **limits).value
    return _ratio(_projection_std(train, augmented, test, resamples), scale, at_zero=0.0)


def dsv(
    train: Tensor,
    augmented: Tensor,
    test: Tensor,
    variant: Literal["paper", "reference"] = "paper",
    *,
    resamples: Tensor | None = None,
    **limits: Unpack[Limits],
) -> Tensor:
    """Return L_DSV = L_dis - min(L_sep, 1/2) / L_dis: the candidate with the smallest wins.

    Args:
        train: Embeddings of the normal images.
        augmented: Embeddings of their augmented copies.
        test: Embeddings of the unlabelled images.
        variant: "reference" halves every distance, as the paper's reference code does: L_sep doubles before the cap.
        resamples: Row numbers of test for each resample; None for the loss of test itself.
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
    l_dis = _ratio(_distance_to_test(train, augmented, test, resamples, limits), scale, at_zero=math.inf)
    l_sep = VARIANTS[variant] * _ratio(_projection_std(train, augmented, test, resamples), scale, at_zero=0.0)
    return l_dis - l_sep.clamp(max=SEPARABILITY_CAP) / l_dis


def concentration(train: Tensor, augmented: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return d(train, train) / d(train, augmented), which the theory of DSV assumes to be far below one.

    Infinite if d(train, augmented) is zero. `limits` are those of `set_distance`.
    """
    train, augmented = _checked(train=train, augmented=augmented)
    scale = _set_distance(train, augmented, **limits).value
    return _ratio(_set_distance(train, train, **limits).value, scale, at_zero=math.inf)


def distance_std(a: Tensor, b: Tensor, *, resamples: Tensor | None = None, **limits: Unpack[Limits]) -> Tensor:
    """Return the population standard deviation of the distances that `set_distance` takes the mean of.

    `resamples` are of `b`.
    """
    a, b = _checked(a=a, b=b)
    a, b = _sampled(a, b, pairs=len(a) * len(b), resamples=resamples, **limits)
    return _std_over_rows(*distance_moments(a, b), resamples)


def energy_distance(a: Tensor, b: Tensor, **limits: Unpack[Limits]) -> Tensor:
    """Return E(a, b) = 2 d(a, b) - d(a, a) - d(b, b): zero if the two have the same distribution, and never negative.

    It is the squared distance of the two distributions in a Hilbert space, and what is left of d(a, b) once the spread
    within the sets is taken out. `limits` are those of `set_distance`, for the pairs within the larger set.
    """
    a, b = _checked(a=a, b=b)
    a, b = _sampled(a, b, pairs=max(len(a), len(b)) ** 2, **limits)
    return _energy(_mean_distance(a, b), _mean_distance(a, a), _mean_distance(b, b))


def relative_energy(
    train: Tensor, test: Tensor, *, resamples: Tensor | None = None, **limits: Unpack[Limits]
) -> Tensor:
    """Return E(train, test) / d(train, train): how far test is from train in units of the spread of train.

    NaN if d(train, train) is zero. `limits` are those of `energy_distance`.
    """
    train, test = _checked(train=train, test=test)
    train, test = _sampled(train, test, pairs=max(len(train), len(test)) ** 2, resamples=resamples, **limits)
    spread = _mean_distance(train, train)
    energy = _energy(_mean_distance(train, test, resamples), spread, _spread(test, resamples))
    return _ratio(energy, spread, at_zero=math.nan)


def shift_cosine(
    train: Tensor, augmented: Tensor, test: Tensor, *, resamples: Tensor | None = None, **limits: Unpack[Limits]
) -> Tensor:
    """Return the cosine between the shifts train → test and train → augmented in the Hilbert space of E, from -1 to 1.

    It is 1 if test is distributed as a mixture of train and augmented, in any shares: augmented images then
    explain the whole difference between train and test. NaN if one of the shifts is zero.
    `limits` are those of `energy_distance`.
    """
    train, augmented, test = _checked(train=train, augmented=augmented, test=test)
    pairs = max(len(train), len(augmented), len(test)) ** 2
    train, augmented, test = _sampled(train, augmented, test, pairs=pairs, resamples=resamples, **limits)
    to_test, to_augmented = _mean_distance(train, test, resamples), _mean_distance(train, augmented)
    spread = _mean_distance(train, train)
    inner = to_test + to_augmented - _mean_distance(augmented, test, resamples) - spread
    energies = (
        _energy(to_test, spread, _spread(test, resamples)),
        _energy(to_augmented, spread, _mean_distance(augmented, augmented)),
    )
    return _ratio(inner, (energies[0] * energies[1]).sqrt(), at_zero=math.nan).clamp(-1, 1)


def squared_mmd(
    a: Tensor,
    b: Tensor,
    kernel: Literal["linear", "rbf"] = "linear",
    *,
    bandwidth: float | None = None,
    resamples: Tensor | None = None,
    **limits: Unpack[Limits],
) -> Tensor:
    """Return the squared maximum mean discrepancy, biased (a V-statistic, never negative).

    Args:
        a: A set of embeddings.
        b: Another of the same width.
        kernel: "linear", which compares the means, or "rbf", exp(-|x - y|² / (2 · bandwidth²)).
        bandwidth: Of the rbf kernel. None for the median heuristic: the median distance between distinct rows of a
            random sample, seeded by `seed`, of up to 512 rows of each set.
        resamples: Row numbers of `b` for each resample; None for the discrepancy from `b` itself.
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
        return (_mean_rows(b, resamples) - mean_row(a)).square().sum(dim=-1)
    if resamples is not None:
        # The bandwidth is that of each resample, so nothing is shared.
        return torch.stack([_squared_rbf_mmd(a, b[rows], bandwidth, limits) for rows in resamples])
    return _squared_rbf_mmd(a, b, bandwidth, limits)


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


def _distance_to_test(
    train: Tensor, augmented: Tensor, test: Tensor, resamples: Tensor | None, limits: Limits
) -> Tensor:
    def from_set(points: Tensor) -> Tensor:
        if resamples is None:
            return _set_distance(points, test, **limits).value
        return _mean_distance(points, test, resamples)

    # The mean over a union is the mean of the means by size: no joint copy of the two sets.
    share = len(train) / (len(train) + len(augmented))
    return share * from_set(train) + (1 - share) * from_set(augmented)


def _projection_std(train: Tensor, augmented: Tensor, test: Tensor, resamples: Tensor | None) -> Tensor:
    """Return the standard deviation of the projections of all test rows on the directions of all augmented rows."""
    return _std_over_rows(*_projection_moments(train, augmented, test), resamples)


@shared
def _projection_moments(train: Tensor, augmented: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and population variance of the projections of each test row, without a matrix of all projections."""
    origin = mean_row(train)

    def directions() -> Iterator[Tensor]:
        for rows in row_blocks(augmented, origin):
            norms = rows.norm(dim=1, keepdim=True)
            yield rows / norms.where(norms > 0, 1.0)

    mean_direction = total(each.sum(dim=0) for each in directions()) / len(augmented)

    def deviations() -> Iterator[Tensor]:
        return (each - mean_direction for each in directions())

    if len(augmented) * len(test) < (len(augmented) + len(test)) * test.shape[1]:
        squares = [
            total((rows @ each.T).square().sum(dim=1) for each in deviations()) for rows in row_blocks(test, origin)
        ]
    else:
        # The sum over i of (u_i·v)² is vᵀ (Σ u_i u_iᵀ) v: linear in the rows.
        products = total(each.T @ each for each in deviations())
        squares = [((rows @ products) * rows).sum(dim=1).clamp(min=0) for rows in row_blocks(test, origin)]
    means = torch.cat([rows @ mean_direction for rows in row_blocks(test, origin)])
    return means, torch.cat(squares) / len(augmented)


def _std_over_rows(means: Tensor, variances: Tensor, resamples: Tensor | None) -> Tensor:
    """Return the standard deviation over all pairs from the moments of each row, by the law of total variance."""
    means, variances = (_drawn_terms(each, resamples) for each in (means, variances))
    return (variances.mean(dim=-1) + means.var(dim=-1, correction=0)).sqrt()


def _drawn_terms(terms: Tensor, resamples: Tensor | None) -> Tensor:
    return terms if resamples is None else terms[resamples.to(terms.device)]


def _set_distance(a: Tensor, b: Tensor, **limits: Unpack[Limits]) -> Estimate:
    means = distance_means(*_sampled(a, b, pairs=len(a) * len(b), **limits))
    # The mean over a sample of each set is a two-sample U-statistic: its variance is that of the mean of the row means
    # plus that of the mean of the column means. The interaction is in both, an excess of O(1 / sample²) only.
    variance = _variance_of_mean(means.rows, len(a)) + _variance_of_mean(means.columns, len(b))
    return Estimate(means.columns.mean(), variance.sqrt())


def _variance_of_mean(sample: Tensor, population: int) -> Tensor:
    """Return the variance of the mean of a sample drawn without replacement: zero if nothing was left out."""
    unseen = 1 - len(sample) / population
    return sample.var() * unseen / len(sample) if unseen else sample.new_zeros(())


def _mean_distance(a: Tensor, b: Tensor, resamples: Tensor | None = None) -> Tensor:
    """Return d(a, b), or d(a, b[rows]) for each resample."""
    return _drawn_terms(distance_means(a, b).columns, resamples).mean(dim=-1)


def _spread(points: Tensor, resamples: Tensor | None) -> Tensor:
    """Return d(points, points), or that of each resample."""
    if resamples is None:
        return _mean_distance(points, points)
    return _resampled_spreads(points, resamples)


@shared
def _resampled_spreads(points: Tensor, resamples: Tensor) -> Tensor:
    # Resamples of few rows have most pairs in common; those of many rows have almost none.
    if len(points) ** 2 <= resamples.numel() * resamples.shape[1]:
        distances = _distance_matrix(points)
        spreads = [distances[rows][:, rows].mean() for rows in resamples]
    else:
        spreads = [_distance_matrix(points[rows]).mean() for rows in resamples]
    return torch.stack(spreads)


def _distance_matrix(points: Tensor) -> Tensor:
    matrix = torch.empty(len(points), len(points), dtype=torch.float64, device=points.device)
    for rows, columns, distances in distance_blocks(points, points):
        matrix[rows, columns] = distances
    return matrix


def _energy(between: Tensor, *within: Tensor) -> Tensor:
    # Never negative but for rounding.
    return (2 * between - within[0] - within[1]).clamp(min=0)


def _mean_rows(points: Tensor, resamples: Tensor | None) -> Tensor:
    """Return the mean row, or that of each resample."""
    centre = mean_row(points)
    if resamples is None:
        return centre
    counts = torch.stack([rows.bincount(minlength=len(points)) for rows in resamples]).to(centre)
    return centre + counts @ (points.double() - centre) / resamples.shape[1]


def _sampled(
    *sets: Tensor,
    pairs: int,
    resamples: Tensor | None = None,
    max_pairs: int = MAX_PAIRS,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Sequence[Tensor]:
    """Return the sets if `pairs` is within `max_pairs` or rows of them are named, else a random sample of each."""
    if sample < 2:
        raise ValueError(f"a sample of {sample} has no standard error; draw at least 2 rows")
    if pairs <= max_pairs or resamples is not None:
        return sets
    generator = torch.Generator().manual_seed(seed)
    return [_drawn(each, sample, generator) for each in sets]


def _drawn(points: Tensor, sample: int, generator: torch.Generator) -> Tensor:
    if len(points) <= sample:
        return points
    # On the CPU for points on any device, so that a seed means the same rows everywhere.
    return points[torch.randperm(len(points), generator=generator)[:sample].to(points.device)]


def _squared_rbf_mmd(a: Tensor, b: Tensor, bandwidth: float | None, limits: Limits) -> Tensor:
    if bandwidth is None:
        bandwidth = _median_distance(a, b, limits.get("seed", 0))
    a, b = _sampled(a, b, pairs=max(len(a), len(b)) ** 2, **limits)
    within = _mean_rbf(a, a, bandwidth) + _mean_rbf(b, b, bandwidth)
    return (within - 2 * _mean_rbf(a, b, bandwidth)).clamp(min=0)


def _mean_rbf(a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
    blocks = (distances for _, _, distances in distance_blocks(a, b))
    return total(each.div_(bandwidth).square_().div_(-2).exp_().sum().double() for each in blocks) / (len(a) * len(b))


def _median_distance(a: Tensor, b: Tensor, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    distances = torch.pdist(torch.cat([_drawn(each, BANDWIDTH_ROWS, generator) for each in (a, b)]).double())
    distances = distances[distances > 0]
    # Among equal rows the discrepancy is zero at any bandwidth.
    return float(distances.median()) if len(distances) else 1.0
