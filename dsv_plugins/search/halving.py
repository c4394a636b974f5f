"""Successive halving: all candidates get a little budget, the better ones more, the best the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv_plugins.errors import InputError
from dsv_plugins.interfaces import Selector
from dsv_plugins.search.grid import Evaluate
from dsv_plugins.selection import rank
from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Rungs", "halving"]


@dataclass(frozen=True, slots=True)
class Rungs:
    """How the budget grows.

    Attributes:
        count: How many rungs, the last of which is the whole budget.
        factor: By how much the updates grow, and the candidates dwindle, from one rung to the next.
    """

    count: int = 3
    factor: float = 3.0

    def __post_init__(self) -> None:
        if self.count < 1 or self.factor <= 1:
            raise InputError(f"halving with {self.count} rungs of factor {self.factor}; give at least 1 and above 1")

    def updates(self, budget: int) -> list[int]:
        """The updates of each rung, the budget last; rungs that would be equal are one."""
        grown = [max(1, round(budget / self.factor**step)) for step in reversed(range(self.count))]
        return sorted(set(grown))


def halving(
    candidates: Sequence[Candidate], evaluate: Evaluate, *, judge: Selector, budget: int, rungs: Rungs
) -> Mapping[str, Evaluation]:
    """Evaluate the survivors of each rung at the next; only those that reach the whole budget are returned.

    Args:
        candidates: Those to start with.
        evaluate: Brings candidates to a rung.
        judge: A selector that judges each candidate alone.
        budget: The detector's whole budget of updates.
        rungs: How the budget grows.
    """
    survivors = list(candidates)
    evaluations: Mapping[str, Evaluation] = {}
    reached = None
    for updates in rungs.updates(budget):
        if reached is not None:
            kept = max(1, math.ceil(len(survivors) / rungs.factor))
            losses = judge.losses([evaluations[candidate.id] for candidate in survivors])
            best = sorted(rank(losses)[:kept])  # in grid order again, which settles ties
            survivors = [survivors[index] for index in best]
        evaluations = evaluate(survivors, updates, reached)
        survivors = [candidate for candidate in survivors if candidate.id in evaluations]
        if not survivors:
            break
        reached = updates
    return evaluations
