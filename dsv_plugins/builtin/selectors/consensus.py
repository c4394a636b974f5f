"""Selection by agreement: how much each candidate's ranking of the test images agrees with the others'.

All take the matrix of scores, a row for each test image and a column for each candidate, higher for more anomalous, and
return one value for each candidate, higher for better.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

from dsv_plugins import ScoreError

__all__ = ["hits", "model_centrality", "select"]

Matrix = NDArray[np.float64]

DECIMALS = 12
"""Of correlations and consensus: what is equal but for the last digits of its computation must count as tied."""
HITS_DECIMALS = 10


def model_centrality(scores: Matrix) -> Matrix:
    """Return the mean Kendall correlation of each candidate with the others.

    A candidate with constant scores correlates with none: its value is -inf, and the others' means leave it out.
    """
    count = scores.shape[1]
    if count < 2:
        raise ScoreError("model centrality compares candidates with each other: it needs two or more, not one")
    agreement = np.full((count, count), np.nan)
    for first in range(count):
        for second in range(first):
            agreement[first, second] = agreement[second, first] = _tau(scores[:, first], scores[:, second])
    defined = np.isfinite(agreement)
    # Unlike numpy's, this sum does not depend on the order: equal candidates have equal means.
    sums = [math.fsum(agreement[row, defined[row]]) for row in range(count)]
    return np.array([sums[row] / defined[row].sum() if defined[row].any() else -np.inf for row in range(count)])


def select(scores: Matrix) -> Matrix:
    """Return the Kendall correlation of each candidate with the consensus of those that agree with it."""
    evidence = _reciprocal_ranks(scores)
    candidates = list(range(scores.shape[1]))
    first, tau = _nearest(evidence, candidates, _consensus(evidence, candidates))
    chosen, taus = [first], [tau]
    while remaining := [candidate for candidate in candidates if candidate not in chosen]:
        nearest, tau = _nearest(evidence, remaining, _consensus(evidence, chosen))
        if tau < round(math.fsum(taus) / len(taus), DECIMALS):
            break
        chosen.append(nearest)
        taus.append(tau)
    consensus = _consensus(evidence, chosen)
    return np.array([_tau(consensus, evidence[:, candidate]) for candidate in candidates])


def hits(scores: Matrix, *, rank_order: str = "descending") -> Matrix:
    """Return the hubness of each candidate: how much weight it puts on images that good candidates put weight on."""
    evidence = _reciprocal_ranks(-scores if rank_order == "descending" else scores)
    # The fixed point of the iteration between hubs and authorities is the leading singular vectors. Solving for them
    # directly is exact even if the iteration converges slowly, as with thousands of images that candidates rank apart.
    _, vectors = np.linalg.eigh(evidence.T @ evidence)
    hub: Matrix = np.abs(vectors[:, -1])
    return np.round(hub, HITS_DECIMALS)


def _reciprocal_ranks(scores: Matrix) -> Matrix:
    reciprocals: Matrix = 1 / rankdata(scores, axis=0)
    return reciprocals


def _consensus(evidence: Matrix, candidates: list[int]) -> Matrix:
    mean: Matrix = evidence[:, candidates].mean(axis=1)
    return np.round(mean, DECIMALS)


def _nearest(evidence: Matrix, candidates: list[int], target: Matrix) -> tuple[int, float]:
    """Return the candidate with the largest correlation to the target, the first of several, and that correlation."""
    taus = [_tau(target, evidence[:, candidate]) for candidate in candidates]
    best = int(np.argmax(taus))
    return candidates[best], taus[best]


def _tau(first: Matrix, second: Matrix) -> float:
    """Return Kendall's tau-b; -inf if one side is constant, so that it is not defined."""
    tau = float(kendalltau(first, second).statistic)
    return -np.inf if np.isnan(tau) else round(tau, DECIMALS)
