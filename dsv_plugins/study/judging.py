"""What selectors make of a pool of candidates: losses, choices, and how clear each choice is."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from threadpoolctl import ThreadpoolController

from dsv_plugins.errors import DSVError, PluginError, reason_of
from dsv_plugins.plugins.plugin_errors import prefix_errors, wrap_errors, wrap_exits
from dsv_plugins.plugins.records import SelectorPlugin
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.plugins.search import choose
from dsv_plugins.study.bootstrap import win_shares
from dsv_plugins.training.job import threads
from dsv_plugins.types import Evaluation

__all__ = ["Verdict", "judge", "judge_pool", "losses_by"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one selector makes of a pool.

    Attributes:
        losses: Its loss for each candidate, lower is better.
        choice: The place of the candidate that it chooses.
        wins: The share of bootstrap resamples of the test images that each candidate wins; None if not measured.
    """

    losses: Sequence[float]
    choice: int
    wins: Sequence[float] | None = None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sum on one thread: on several, the order and so the last digits of a loss depend on how many there are."""
    with threads(1), _pools().limit(limits=1):
        yield


@functools.cache
def _pools() -> ThreadpoolController:
    """Return the thread pools of the libraries in use; to look for them takes as long as to judge a small pool."""
    return ThreadpoolController()


def judge(
    registry: Registry,
    selector: str,
    evaluations: Sequence[Evaluation],
    params: Mapping[str, object] | None = None,
) -> Verdict:
    """Let one selector judge a pool.

    Raises:
        PluginError: It failed, or gave something other than one loss for each candidate. The message names it.
    """
    try:
        with prefix_errors(registry.label(SelectorPlugin, selector)):
            losses = losses_by(registry, selector, evaluations, params)
            return Verdict(losses, choose(losses))
    except DSVError as error:
        raise PluginError(str(error)) from error


@one_thread()
def losses_by(
    registry: Registry,
    selector: str,
    evaluations: Sequence[Evaluation],
    params: Mapping[str, object] | None = None,
) -> list[float]:
    """One loss of a selector for each evaluation. The selector gets copies, so that it cannot change what others see.

    Raises:
        PluginError: It failed, or gave something else. The message names it.
    """
    label = registry.label(SelectorPlugin, selector)
    with wrap_errors(label):
        made = registry.create(SelectorPlugin, selector, params)
        losses = [float(loss) for loss in made.losses(copy.deepcopy(list(evaluations)))]
    if len(losses) != len(evaluations):
        raise PluginError(f"{label} gave {len(losses)} losses for {len(evaluations)} candidates")
    return losses


def judge_pool(
    registry: Registry,
    selectors: Sequence[str],
    evaluations: Sequence[Evaluation],
    *,
    seed: int,
    confidence: bool,
    note: Callable[[str], None],
    params: Mapping[str, Mapping[str, object]] | None = None,
) -> dict[str, Verdict]:
    """Let several selectors judge a pool. One that fails is left out with a note, but the first must not fail.

    Args:
        registry: Where the selectors are found.
        selectors: Their names, the deciding one first.
        evaluations: The pool.
        seed: Fixes the resamples.
        confidence: Whether to measure how clear each choice is.
        note: Called with what the user should know.
        params: The settings of selectors, by their names.
    """
    verdicts, params = {}, params or {}
    for name in selectors:
        try:
            verdict = judge(registry, name, evaluations, params.get(name))
        except PluginError as error:
            if name == selectors[0]:
                raise
            note(f"no choice by {name!r}: {error}")
            continue
        unusable = [
            str(evaluation.candidate)
            for evaluation, loss in zip(evaluations, verdict.losses, strict=True)
            if not math.isfinite(loss)
        ]
        if unusable:
            note(f"{name!r} has no finite loss for {', '.join(unusable)}; they rank last")
        wins = _wins(registry, name, evaluations, params.get(name), seed=seed, note=note) if confidence else None
        verdicts[name] = Verdict(verdict.losses, verdict.choice, wins)
    return verdicts


@one_thread()
def _wins(
    registry: Registry,
    name: str,
    evaluations: Sequence[Evaluation],
    params: Mapping[str, object] | None,
    *,
    seed: int,
    note: Callable[[str], None],
) -> list[float] | None:
    alone = registry.get(SelectorPlugin, name).judges_alone
    copies = copy.deepcopy(list(evaluations))
    try:
        with wrap_exits(registry.label(SelectorPlugin, name)):
            return win_shares(registry.create(SelectorPlugin, name, params), copies, seed=seed, judges_alone=alone)
    except Exception as error:  # a plugin's loss may refuse a resample; its choice stands
        note(f"how clear the choice by {name!r} is cannot be measured: {reason_of(error)}")
        return None
