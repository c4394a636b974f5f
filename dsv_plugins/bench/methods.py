"""The methods that are compared: every installed selector, each with its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsv_plugins.errors import PluginError
from dsv_plugins.plugins.records import SelectorPlugin
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.study.judging import judge
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.types import Evaluation

__all__ = [
    "ABLATION",
    "AVERAGE",
    "DEFAULT",
    "MAIN",
    "RANDOM",
    "SIDELINES",
    "Method",
    "installed_methods",
    "losses_of",
    "usable_selectors",
]

AVERAGE, RANDOM = "Average", "Random"
"""Baselines are capitalised, and plugin names never are, so that they cannot clash."""

MAIN = "dsv"
DEFAULT = str(StudySettings.selector)
"""What decides in a study if nobody asks for another."""
REFERENCE = "dsv-reference"
ABLATION = ("discordance", "separability", MAIN, REFERENCE)
SIDELINES = tuple(label for label in ABLATION if label != MAIN)
"""Parts and variants of DSV. Ranking them beside it would lower every other method, so each is ranked in its place."""

PAPER_ORDER = ("base", "mmd", "std", "mc", "select", "hits")


@dataclass(frozen=True, slots=True)
class Method:
    """A selector with its settings, and the name that it has in the tables."""

    label: str
    selector: str
    params: Mapping[str, object] = field(default_factory=dict)


def usable_selectors(registry: Registry, *, holdout: float) -> set[str]:
    """The names of the selectors that can judge in studies with this share of train images kept out of training."""
    return {record.name for record in registry.of_kind(SelectorPlugin) if holdout or not record.needs_holdout}


def installed_methods(registry: Registry, *, holdout: float = 0.0) -> list[Method]:
    """Every usable selector, built-in or not: in the paper's order, DSV last, then its parts and its variant."""
    names = usable_selectors(registry, holdout=holdout)
    known = [name for name in PAPER_ORDER if name in names]
    foreign = sorted(names - {*known, *SIDELINES, MAIN})
    parts = [name for name in SIDELINES if name in names]
    return [Method(name, name) for name in (*known, *foreign, MAIN, *parts)]


def losses_of(
    methods: Sequence[Method], evaluations: Sequence[Evaluation], registry: Registry
) -> tuple[dict[str, list[float]], list[str]]:
    """The losses of each method for this pool, and why a method has none, a line each.

    They are computed from the stored evaluations and not read from a study: a study knows selectors only by name, and
    selectors that compare candidates with each other have other losses in a pool across studies.
    """
    losses, problems = {}, []
    for method in methods:
        try:
            verdict = judge(registry, method.selector, evaluations, method.params)
        except PluginError as error:
            problems.append(f"no choice by {method.label!r}: {error}")
        else:
            # Minus infinity would be the smallest loss, and JSON has no infinity: all of them mean "unusable".
            losses[method.label] = [loss if math.isfinite(loss) else math.nan for loss in verdict.losses]
    return losses, problems
