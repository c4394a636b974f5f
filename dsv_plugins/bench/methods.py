"""The methods that are compared: every installed selector, baselines and ensembles, and what each gets of a pool."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.metrics import roc_auc_score

from dsv_plugins.errors import PluginError
from dsv_plugins.plugins.records import SelectorPlugin
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.plugins.search import choose, rank
from dsv_plugins.run.ensemble import scores_of, shares_by_loss
from dsv_plugins.study.judging import judge
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.types import Evaluation

__all__ = [
    "ABLATION",
    "ALWAYS",
    "AVERAGE",
    "BEST",
    "BEST_THREE",
    "DEFAULT",
    "ENSEMBLE",
    "MAIN",
    "RANDOM",
    "SIDELINES",
    "WEIGHTED",
    "WORST",
    "auc_of",
    "ensemble_auc",
    "installed_selectors",
    "losses_of",
    "method_aucs",
    "method_values",
    "usable_selectors",
]

MAIN = "dsv"
DEFAULT = str(StudySettings.selector)
"""What decides in a study if nobody asks for another."""

AVERAGE, RANDOM = "Average", "Random"
"""Baselines and ensembles are capitalised, and plugin names never are, so that they cannot clash."""
ENSEMBLE, BEST_THREE = "Ensemble", f"Ensemble of {DEFAULT}'s best 3"
"""All candidates as one, each counted alike, and the best three by the default selector."""
WEIGHTED = "Weighted by "
"""Before a selector's name: all candidates as one, weighted by its losses."""
ALWAYS = "Always "
"""Before a candidate: that candidate, whatever the images."""
BEST, WORST = "best", "worst"
"""The candidates with the highest and the lowest AUC, which nobody knows without labels."""

REFERENCE = "dsv-reference"
ABLATION = ("discordance", "separability", MAIN, REFERENCE)
SIDELINES = tuple(label for label in ABLATION if label != MAIN)
"""Parts and variants of DSV. Ranking them beside it would lower every other method, so each is ranked in its place."""

PAPER_ORDER = ("base", "mmd", "std", "mc", "select", "hits")


def usable_selectors(registry: Registry, *, holdout: float) -> set[str]:
    """Return the names of the selectors that can judge in studies with this share of held-out train images."""
    return {record.name for record in registry.of_kind(SelectorPlugin) if holdout or not record.needs_holdout}


def installed_selectors(registry: Registry, *, holdout: float = 0.0) -> list[str]:
    """Return every usable selector, built-in or not: in the paper's order, DSV last, then its parts and its variant."""
    names = usable_selectors(registry, holdout=holdout)
    known = [name for name in PAPER_ORDER if name in names]
    foreign = sorted(names - {*known, *SIDELINES, MAIN})
    return [*known, *foreign, MAIN, *(name for name in SIDELINES if name in names)]


def losses_of(
    selectors: Sequence[str], evaluations: Sequence[Evaluation], registry: Registry
) -> tuple[dict[str, list[float]], list[str]]:
    """Return the losses of each selector for this pool, and why a selector has none, a line each.

    They are computed from the stored evaluations and not read from a study: selectors that compare candidates with each
    other have other losses in a pool across studies.
    """
    losses, problems = {}, []
    for name in selectors:
        try:
            verdict = judge(registry, name, evaluations)
        except PluginError as error:
            problems.append(f"no choice by {name!r}: {error}")
        else:
            # Minus infinity would be the smallest loss, and JSON has no infinity: all of them mean "unusable".
            losses[name] = [loss if math.isfinite(loss) else math.nan for loss in verdict.losses]
    return losses, problems


def auc_of(evaluation: Evaluation, labels: Sequence[bool]) -> float:
    """Return the AUC of a candidate's test scores."""
    return float(roc_auc_score(labels, evaluation.scores.test.numpy()))


def ensemble_auc(
    evaluations: Sequence[Evaluation], labels: Sequence[bool], shares: Sequence[float] | None = None
) -> float:
    """Return the AUC of several candidates as one, as a study combines them; all count alike without shares."""
    return float(roc_auc_score(labels, scores_of(evaluations, shares)["test"]))


def method_values(values: Sequence[float], losses: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return what the methods get of a value of each candidate: the mean, each selector's choice, best and worst."""
    chosen = {name: values[choose(each)] for name, each in losses.items()}
    return {AVERAGE: float(np.mean(values)), **chosen, BEST: max(values), WORST: min(values)}


def method_aucs(
    pool: Sequence[Evaluation],
    labels: Sequence[bool],
    losses: Mapping[str, Sequence[float]],
    random: float | None = None,
) -> dict[str, float]:
    """Return the AUC of each method on a pool: of choices, of several candidates as one, and of each candidate alone.

    Args:
        pool: The candidates.
        labels: Whether each test image is anomalous.
        losses: The losses of each selector, which need not have seen the same test images.
        random: The AUC of the training whose hyperparameters are redrawn for every image.
    """
    candidates = [auc_of(each, labels) for each in pool]
    ensembles = {ENSEMBLE: ensemble_auc(pool, labels)}
    if DEFAULT in losses:
        ensembles[BEST_THREE] = ensemble_auc([pool[place] for place in rank(losses[DEFAULT])[:3]], labels)
    for name in dict.fromkeys((DEFAULT, MAIN, *losses)):
        if name in losses:
            ensembles[f"{WEIGHTED}{name}"] = ensemble_auc(pool, labels, shares_by_loss(losses[name]))
    always = {f"{ALWAYS}{each.candidate}": auc for each, auc in zip(pool, candidates, strict=True)}
    values = method_values(candidates, losses)
    baselines = {AVERAGE: values[AVERAGE], **({} if random is None else {RANDOM: random})}
    return {**baselines, **ensembles, **values, **always}
