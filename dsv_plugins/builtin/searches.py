"""The built-in searches: every candidate at the full budget, or the better ones alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dsv_plugins import Evaluation, Search, SearchPlugin, SearchProblem, hookimpl, rank

__all__ = ["Grid", "Halving"]


class Grid(Search):
    """Every point of the grid, with the whole budget."""

    def run(self, problem: SearchProblem) -> Mapping[str, Evaluation]:
        """Evaluate every candidate."""
        return problem.evaluate(problem.grid(), problem.budget, None)


class Halving(Search):
    """Successive halving: all candidates get a little budget, the better ones more, the best the whole."""

    def run(self, problem: SearchProblem) -> Mapping[str, Evaluation]:
        """Evaluate the survivors of each rung at the next; only those that reach the whole budget are returned."""
        survivors = problem.grid()
        evaluations: Mapping[str, Evaluation] = {}
        reached = None
        for updates in problem.steps():
            if reached is not None:
                kept = max(1, math.ceil(len(survivors) / problem.rungs.factor))
                losses = problem.losses([evaluations[candidate.id] for candidate in survivors])
                best = sorted(rank(losses)[:kept])  # in grid order again, which settles ties
                survivors = [survivors[index] for index in best]
            evaluations = problem.evaluate(survivors, updates, reached)
            survivors = [candidate for candidate in survivors if candidate.id in evaluations]
            if not survivors:
                break
            reached = updates
        return evaluations


@hookimpl
def search() -> list[SearchPlugin]:
    """The whole grid, or successive halving."""
    return [
        SearchPlugin("grid", Grid, "Every candidate with the whole budget"),
        SearchPlugin(
            "halving",
            Halving,
            "Every candidate with a little budget, the better ones with more",
            judges=True,
            parts=True,
        ),
    ]
