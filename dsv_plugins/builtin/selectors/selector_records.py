"""The built-in selectors: those of the paper, and six more."""

from __future__ import annotations

import functools

from dsv_plugins import SelectorPlugin, hookimpl
from dsv_plugins.builtin.selectors.beyond_paper import PUAUC, Cosine, Energy
from dsv_plugins.builtin.selectors.paper import (
    DSV,
    MMD,
    STD,
    Base,
    Discordance,
    Hits,
    ModelCentrality,
    Select,
    Separability,
)
from dsv_plugins.builtin.selectors.pseudo import PseudoAUC, RankAggregate, WeightedPseudoAUC

__all__ = ["selector"]


@hookimpl
def selector() -> list[SelectorPlugin]:
    """Return DSV, its parts, the paper's baselines, three that compare test with normals, three by pseudo-anomalies."""
    return [
        SelectorPlugin(
            "dsv",
            DSV,
            "Discordance and surrogate separability (Yoo et al. 2023)",
            judges_alone=True,
            presumes_concentration=True,
        ),
        SelectorPlugin(
            "dsv-reference",
            functools.partial(DSV, variant="reference"),
            "DSV as its published code computes it: separability counts twice, up to the same limit",
            judges_alone=True,
            presumes_concentration=True,
        ),
        SelectorPlugin(
            "discordance", Discordance, "The first half of DSV", judges_alone=True, presumes_concentration=True
        ),
        SelectorPlugin("separability", Separability, "The second half of DSV", judges_alone=True),
        SelectorPlugin(
            "base",
            Base,
            "Mean distance between train or augmented and test",
            judges_alone=True,
            depends_on_scale=True,
        ),
        SelectorPlugin(
            "mmd",
            MMD,
            "Maximum mean discrepancy of train and augmented from test",
            judges_alone=True,
            depends_on_scale=True,
        ),
        SelectorPlugin(
            "std",
            STD,
            "Spread of the distances between train or augmented and test",
            judges_alone=True,
            depends_on_scale=True,
        ),
        SelectorPlugin("mc", ModelCentrality, "Agreement of the candidates' rankings"),
        SelectorPlugin("select", Select, "Agreement with a selective consensus (Rayana and Akoglu 2016)"),
        SelectorPlugin("hits", Hits, "Hubs and authorities among candidates and images"),
        SelectorPlugin(
            "pu-auc", PUAUC, "AUROC of test images against held-out normals", judges_alone=True, needs_holdout=True
        ),
        SelectorPlugin(
            "pseudo-auc",
            PseudoAUC,
            "AUROC of pseudo-anomalies, the same for all candidates, against held-out normals (Fung et al. 2023)",
            judges_alone=True,
            needs_holdout=True,
        ),
        SelectorPlugin(
            "weighted-pseudo-auc",
            WeightedPseudoAUC,
            "`pseudo-auc` with plausible pseudo-anomalies counting more (Perini et al. 2024)",
            needs_holdout=True,
        ),
        SelectorPlugin(
            "rank-aggregate",
            RankAggregate,
            "Mean rank by `pseudo-auc` and by `mc` (Goswami et al. 2023)",
            needs_holdout=True,
        ),
        SelectorPlugin("energy", Energy, "Energy distance between train and test", judges_alone=True),
        SelectorPlugin("cosine", Cosine, "Shift to test along the augmentation's direction", judges_alone=True),
    ]
