"""Selectors that judge by pseudo-anomalies which are the same for all candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsv_plugins import Evaluation
from dsv_plugins.builtin.selectors.beyond_paper import PUAUC, check_held_out, shares_below
from dsv_plugins.builtin.selectors.candidate_losses import checked_finite, judged
from dsv_plugins.builtin.selectors.paper import ModelCentrality

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PseudoAUC", "RankAggregate", "WeightedPseudoAUC"]

PRIOR = 0.1
NEIGHBOURS = 5


@dataclass(frozen=True)
class PseudoAUC(PUAUC):
    """The AUROC of held-out good images against pseudo-anomalies of them (Fung et al. 2023)."""

    positives: ClassVar[str] = "pseudo"


@dataclass(frozen=True)
class WeightedPseudoAUC:
    """The AUROC of `pseudo-auc`, in which plausible pseudo-anomalies count more.

    The weight of a pseudo-anomaly is its expected anomaly posterior (EAP; Perini et al. 2024), with the scores of a
    candidate as the space, in the mean over the candidates:

        w = (m · u + r · 0.1) / (m + r)

    u is the share of held-out images with a lower score, which estimates the probability that it is an anomaly; r is
    the distance of its score to the fifth nearest score of a test image, and m the median of that distance for the
    test images themselves. So m / r, a density, says how much that estimate counts against a prior of 0.1. A
    pseudo-anomaly that no one can tell from a good image counts half, one unlike any test image a tenth, and one that
    lies where there are test images but no good ones counts fully. Nothing is known of the labels of the test images.
    """

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """Return the weighted mean of u of each candidate, negated.

        Raises:
            ScoreError: There are no held-out images.
        """
        import torch

        check_held_out(evaluations, "pseudo")
        found = judged(evaluations, _shares_and_weights)
        usable = [each for each in found if each is not None]
        if not usable:
            return [math.nan] * len(found)
        weights = torch.stack([weights for _, weights in usable]).mean(dim=0)
        return [math.nan if each is None else -float((weights * each[0]).sum() / weights.sum()) for each in found]


@dataclass(frozen=True)
class RankAggregate:
    """The mean rank of a candidate by its AUROC on pseudo-anomalies and by its centrality (Goswami et al. 2023)."""

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """Return that mean rank of each candidate, from 1 for the best; NaN for one that has no finite loss."""
        import numpy as np
        from scipy.stats import rankdata

        losses = np.array([judge.losses(evaluations) for judge in (PseudoAUC(), ModelCentrality())])
        finite = np.isfinite(losses)
        ranks = rankdata(np.where(finite, losses, np.inf), axis=1).mean(axis=0)
        return [float(mean) for mean in np.where(finite.all(axis=0), ranks, np.nan)]


def _shares_and_weights(evaluation: Evaluation) -> Tensor:
    """Return u and w of each pseudo-anomaly, for one candidate, of shape (2, images)."""
    import torch
    from scipy.spatial import cKDTree

    shares = shares_below(evaluation, "pseudo").cpu()
    test, pseudo = (
        checked_finite(getattr(evaluation.scores, name), "scores").double().cpu().numpy()[:, None]
        for name in ("test", "pseudo")
    )
    tree, nearest = cKDTree(test), min(NEIGHBOURS, len(test))
    distances = torch.from_numpy(tree.query(pseudo, k=[nearest])[0][:, 0])
    # The nearest to a test image is itself.
    own = torch.from_numpy(tree.query(test, k=[min(nearest + 1, len(test))])[0][:, 0]).median()
    total = distances + own
    posteriors = (own * shares + distances * PRIOR) / total
    return torch.stack([shares, posteriors.where(total > 0, shares)])
