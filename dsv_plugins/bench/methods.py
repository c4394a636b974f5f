"""Who is compared: every installed selector, each with the settings that the benchmark tries it with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsv_plugins.errors import PluginError
from dsv_plugins.hooks.records import SelectorPlugin
from dsv_plugins.hooks.registry import Registry
from dsv_plugins.study.judging import judge
from dsv_plugins.types import Evaluation

__all__ = [
    "ABLATION",
    "AVERAGE",
    "MAIN",
    "RANDOM",
    "SIDELINES",
    "Method",
    "installed_methods",
    "losses_of",
    "usable_selectors",
]

AVERAGE, RANDOM = "Average", "Random"
"""What is no selector is capitalised: a plugin's name never is, so that the two cannot clash."""

MAIN = "dsv"
REFERENCE = "dsv (reference)"
ABLATION = ("discordance", "separability", MAIN, REFERENCE)
SIDELINES = tuple(label for label in ABLATION if label != MAIN)
"""Parts and variants of DSV. Ranked beside it they would push every other method down, so each takes its place."""

PAPER_ORDER = ("base", "mmd", "std", "mc", "select", "hits")


@dataclass(frozen=True, slots=True)
class Method:
    """A selector with settings, under the name that the tables give it."""

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
    ordered = [Method(name, name) for name in (*known, *foreign, MAIN, *parts)]
    return [*ordered, Method(REFERENCE, MAIN, {"variant": "reference"})]


def losses_of(
    methods: Sequence[Method], evaluations: Sequence[Evaluation], registry: Registry
) -> tuple[dict[str, list[float]], list[str]]:
    """The losses of each method that can judge this pool, and why the others cannot, a line each.

    They are computed from stored evaluations and not taken from a study: a study knows selectors by name alone, and a
    pool across studies has losses of its own wherever a selector compares candidates with each other.
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
