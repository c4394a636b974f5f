"""The statistics of the tables, as functions of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

__all__ = ["DECIMALS", "average_ranks", "p_values", "rank_correlation", "signed_rank_p", "spread"]

Matrix = NDArray[np.float64]

DECIMALS = 12
"""AUCs are compared to this many: 0.9 - 0.8 and 0.8 - 0.7 are the same difference, and tied."""
ENUMERATED_PAIRS = 13
"""Up to this many pairs, the p-value is exact even if differences are tied, as in `scipy.stats.wilcoxon`."""
LEAST_PAIRS = 3
"""The rank correlation of two points is always 1 or -1 and says nothing."""


def average_ranks(aucs: ArrayLike) -> Matrix:
    """The mean rank of each method over the tasks, 1 for the best; methods that tie in a task share the mean rank.

    Args:
        aucs: A row for each task, a column for each method.
    """
    ranks: Matrix = stats.rankdata(-np.round(np.asarray(aucs, dtype=float), DECIMALS), axis=1)
    averages: Matrix = ranks.mean(axis=0)
    return averages


def signed_rank_p(first: ArrayLike, second: ArrayLike) -> float:
    """The two-sided p-value of the Wilcoxon signed-rank test on pairs.

    Pairs without a difference are left out, as Wilcoxon did; if no pair differs, the p-value is 1.
    """
    differences = np.round(np.asarray(first, dtype=float) - np.asarray(second, dtype=float), DECIMALS)
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    ranks = stats.rankdata(np.abs(differences))
    if len(set(ranks)) == len(ranks) or len(ranks) > ENUMERATED_PAIRS:
        return float(stats.wilcoxon(differences).pvalue)
    # `wilcoxon` enumerates the signs of tied ranks as well, a hundred times slower.
    signed = np.sign(differences) * ranks
    return float(
        stats.permutation_test(
            (signed,), np.sum, permutation_type="samples", vectorized=True, n_resamples=np.inf
        ).pvalue
    )


def p_values(aucs: ArrayLike) -> Matrix:
    """The p-value of `signed_rank_p` between every two columns; 1 on the diagonal."""
    columns = np.asarray(aucs, dtype=float).T
    return np.array([[signed_rank_p(first, second) for second in columns] for first in columns])


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's correlation over the pairs that are finite; NaN if they are too few, or one side is constant."""
    pairs = np.round(np.column_stack([np.asarray(first, dtype=float), np.asarray(second, dtype=float)]), DECIMALS)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < LEAST_PAIRS or (np.ptp(pairs, axis=0) == 0).any():
        return float("nan")
    return float(stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


def spread(values: ArrayLike) -> float:
    """The sample standard deviation, as over seeds; NaN for a single value."""
    numbers = np.asarray(values, dtype=float)
    return float(numbers.std(ddof=1)) if len(numbers) > 1 else float("nan")
