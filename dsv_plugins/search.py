"""Ways to spend the updates of a study on candidates: what a search is given, and what it must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from dsv_plugins.errors import InputError
from dsv_plugins.spaces import Space, grid
from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Evaluate", "Rungs", "Search", "SearchProblem"]

Evaluate = Callable[[Sequence[Candidate], "int | None", "int | None"], Mapping[str, Evaluation]]
"""Brings candidates to a number of updates, going on from an earlier number; the evaluations by candidate id.

Candidates that fail are missing from the answer. Those that were evaluated before are not trained again.
"""


@dataclass(frozen=True, slots=True)
class Rungs:
    """How the budget grows, for searches that give candidates a little of it first.

    Attributes:
        count: How many rungs, the last of which is the whole budget.
        factor: By how much the updates grow, and the candidates dwindle, from one rung to the next.
    """

    count: int = 3
    factor: float = 3.0

    def __post_init__(self) -> None:
        if self.count < 1 or self.factor <= 1:
            raise InputError(f"a search with {self.count} rungs of factor {self.factor}; give at least 1 and above 1")

    def updates(self, budget: int) -> list[int]:
        """The updates of each rung, the budget last; rungs that would be equal are one."""
        grown = [max(1, round(budget / self.factor**step)) for step in reversed(range(self.count))]
        return sorted(set(grown))


@dataclass(frozen=True)
class SearchProblem:
    """What a search is about.

    Attributes:
        spaces: The search space of each augmentation, by its name.
        candidate: Makes a candidate of an augmentation's name and its hyperparameters.
        evaluate: Trains candidates; several in one call are trained at once.
        losses: One loss for each evaluation, lower is better, by the study's first selector.
        budget: The detector's whole budget of updates; None where it does not tell.
        rungs: How the budget grows.
        seed: Fixes every draw.
        run: The run folder, by which a search that others share can tell its own trials.
        note: Tells the user something, in one line.
    """

    spaces: Mapping[str, Space]
    candidate: Callable[[str, Mapping[str, object]], Candidate]
    evaluate: Evaluate
    losses: Callable[[Sequence[Evaluation]], Sequence[float]]
    budget: int | None
    rungs: Rungs
    seed: int
    run: Path
    note: Callable[[str], None]

    def grid(self) -> list[Candidate]:
        """Every point of every search space, in order."""
        return [self.candidate(name, point) for name, space in self.spaces.items() for point in grid(space)]

    def steps(self) -> list[int | None]:
        """The updates of each rung, the whole budget last; the whole alone where the detector does not tell it."""
        return [None] if self.budget is None else [*self.rungs.updates(self.budget)]


@runtime_checkable
class Search(Protocol):
    """Decides which candidates are trained, and how far.

    The attribute `trials`, how many candidates it tries at most, is optional, and serves to estimate times. A complete
    plugin:

    ```python
    import random
    from dsv_plugins import SearchPlugin, hookimpl


    class Sample:
        \"\"\"Some points of the grid, drawn at random.\"\"\"

        def __init__(self, trials=3):
            self.trials = trials

        def run(self, problem):
            candidates = problem.grid()
            drawn = random.Random(problem.seed).sample(candidates, min(self.trials, len(candidates)))
            return problem.evaluate(drawn, problem.budget, None)


    @hookimpl
    def search():
        return SearchPlugin(name="sample", factory=Sample, proposes=True, summary="Some points of the grid")
    ```
    """

    def run(self, problem: SearchProblem) -> Mapping[str, Evaluation]:
        """Search, and return the evaluations of the candidates that got the whole budget, by candidate id.

        Args:
            problem: What can be tried, and what tries it. Equal problems lead to equal calls of `evaluate`, so that a
                search that was killed goes on: what it evaluated before is there at once.
        """
        ...
