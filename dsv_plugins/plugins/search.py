"""Ways to spend the updates of a study on candidates: what a search is given, and what it must do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv_plugins.errors import InputError, ScoreError
from dsv_plugins.plugins.spaces import Range, Space, draw, grid
from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Evaluate", "Rungs", "Search", "SearchProblem", "choose", "rank"]

Evaluate = Callable[[Sequence[Candidate], "int | None", "int | None"], Mapping[str, Evaluation]]
"""Trains candidates up to a number of updates, resuming from an earlier number; the evaluations by candidate id.

Candidates that fail are missing from the answer. Those that were evaluated before are not trained again.
"""


@dataclass(frozen=True, slots=True)
class Rungs:
    """How the budget grows, for searches that give candidates a little of it first.

    Attributes:
        count: How many rungs, the last of which is the whole budget.
        factor: By how much the updates grow, and the number of candidates shrinks, from one rung to the next.
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
        budget: The detector's whole budget of updates; None if it is not known.
        rungs: How the budget grows.
        seed: Fixes every draw.
        run: The run folder, by which a shared search recognises its own trials.
        note: Shows the user one line.
        accepted: Leaves out candidates that their plugins refuse to be made with, and notes that. `grid` and `evaluate`
            do so by themselves.
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
    accepted: Callable[[Sequence[Candidate]], list[Candidate]] = list

    def grid(self) -> list[Candidate]:
        """Every point of every search space that its plugins accept, in order."""
        return self.accepted(
            [self.candidate(name, each) for name, space in self.spaces.items() for each in grid(space)]
        )

    def propose(self, name: str, choose: Callable[[str, Sequence[object] | Range], object]) -> Candidate:
        """A candidate of an augmentation, for searches that make up their own.

        Args:
            name: The augmentation, a key of `spaces`.
            choose: Called with the name of each hyperparameter that counts and its values; returns one of them.
        """
        return self.candidate(name, draw(self.spaces[name], choose))

    def steps(self) -> list[int | None]:
        """The updates of each rung, the whole budget last; only the whole budget if the detector does not state it."""
        return [None] if self.budget is None else [*self.rungs.updates(self.budget)]


class Search(ABC):
    """Decides which candidates are trained, and how far. Derive from this class and write `run`.

    Attributes:
        trials: How many candidates it tries at most, to estimate times; None if that is all of the grid.

    A complete plugin:

    ```python
    import random
    from dsv_plugins import Search, SearchPlugin, hookimpl


    class Sample(Search):
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

    trials: int | None = None

    @abstractmethod
    def run(self, problem: SearchProblem) -> Mapping[str, Evaluation]:
        """Search, and return the evaluations of the candidates that got the whole budget, by candidate id.

        Args:
            problem: What can be tried, and what tries it. Equal problems must lead to equal calls of `evaluate`. A
                search that was killed then resumes: what it evaluated before is there at once.
        """


def rank(losses: Sequence[float]) -> list[int]:
    """The places of the losses, best first: ties in the order given, NaN and infinite losses last."""
    return sorted(range(len(losses)), key=lambda place: losses[place] if math.isfinite(losses[place]) else math.inf)


def choose(losses: Sequence[float]) -> int:
    """The place of the smallest loss, the first of several.

    Raises:
        ScoreError: No loss is finite.
    """
    if not any(math.isfinite(loss) for loss in losses):
        raise ScoreError(f"none of the {len(losses)} losses is finite, so there is nothing to choose by")
    return rank(losses)[0]
