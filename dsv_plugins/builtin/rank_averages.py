"""Two kinds of evidence at once: the mean of a candidate's ranks by two selectors, as losses have no common scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv_plugins import Evaluation, Selector, SelectorPlugin, hookimpl
from dsv_plugins.builtin.selectors import ModelCentrality
from dsv_plugins.builtin.shifts import PUAUC, Cosine, Energy

__all__ = ["RankAverage", "cosine_mc", "energy_mc", "pu_auc_cosine", "pu_auc_mc"]


@dataclass(frozen=True)
class RankAverage:
    """The mean rank of each candidate by two selectors.

    Attributes:
        first: A selector.
        second: Another one.
    """

    first: Selector
    second: Selector

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """The mean rank, 1 for the best, ties sharing theirs; NaN for a candidate that either cannot judge."""
        import numpy as np
        from scipy.stats import rankdata

        losses = np.array([each.losses(evaluations) for each in (self.first, self.second)], dtype=float)
        usable = np.isfinite(losses).all(axis=0)
        means = np.full(len(evaluations), np.nan)
        means[usable] = rankdata(losses[:, usable], axis=1).mean(axis=0)
        return [float(mean) for mean in means]


def pu_auc_mc() -> RankAverage:
    """`pu-auc` and `mc`: a difference from held-out normals, and agreement among candidates."""
    return RankAverage(PUAUC(), ModelCentrality())


def energy_mc() -> RankAverage:
    """`energy` and `mc`."""
    return RankAverage(Energy(), ModelCentrality())


def cosine_mc() -> RankAverage:
    """`cosine` and `mc`."""
    return RankAverage(Cosine(), ModelCentrality())


def pu_auc_cosine() -> RankAverage:
    """`pu-auc` and `cosine`."""
    return RankAverage(PUAUC(), Cosine())


@hookimpl
def selector() -> list[SelectorPlugin]:
    """The pairs. Each needs the whole pool, as ranks do."""
    return [
        SelectorPlugin("pu-auc-mc", pu_auc_mc, "Mean rank by pu-auc and by mc", needs_holdout=True),
        SelectorPlugin("energy-mc", energy_mc, "Mean rank by energy and by mc"),
        SelectorPlugin("cosine-mc", cosine_mc, "Mean rank by cosine and by mc"),
        SelectorPlugin("pu-auc-cosine", pu_auc_cosine, "Mean rank by pu-auc and by cosine", needs_holdout=True),
    ]
