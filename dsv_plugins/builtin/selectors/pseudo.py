"""Selectors that judge by pseudo-anomalies which are the same for all candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dsv_plugins import Evaluation
from dsv_plugins.builtin.selectors.paper import ModelCentrality
from dsv_plugins.builtin.selectors.past_paper import PUAUC

__all__ = ["PseudoAUC", "RankAggregate"]


@dataclass(frozen=True)
class PseudoAUC(PUAUC):
    """The AUROC of held-out good images against pseudo-anomalies of them (Fung et al. 2023)."""

    positives: ClassVar[str] = "pseudo"


@dataclass(frozen=True)
class RankAggregate:
    """The mean rank of a candidate by its AUROC on pseudo-anomalies and by its centrality (Goswami et al. 2023)."""

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """That mean rank of each candidate, from 1 for the best; NaN for one that has no finite loss."""
        import numpy as np
        from scipy.stats import rankdata

        losses = np.array([judge.losses(evaluations) for judge in (PseudoAUC(), ModelCentrality())])
        finite = np.isfinite(losses)
        ranks = rankdata(np.where(finite, losses, np.inf), axis=1).mean(axis=0)
        return [float(mean) for mean in np.where(finite.all(axis=0), ranks, np.nan)]
