"""What a search must do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dsv_plugins.plugins.records import SearchPlugin
from dsv_plugins.plugins.search import Rungs, Search, SearchProblem
from dsv_plugins.plugins.spaces import Range, Space, When, draw, plain
from dsv_plugins.testing._suite import Suite, demand
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Scores

__all__ = ["Checks"]

SPACES: Mapping[str, Space] = {
    "cut": {
        "size": Range(0.001, 1.0, log=True),
        "kind": ["soft", "hard", [0, 1]],
        "angle": When("kind", ["soft", "hard"], [0, 45]),
    },
    "paste": {"size": [0.1, 0.2, 0.4]},
}
BUDGET = 90
ROW = torch.zeros(1, 1)


@dataclass
class _Trainer:
    """Stands in for a study: trains nothing, and keeps what it was asked for."""

    fails: Callable[[Candidate], bool] = lambda candidate: False
    calls: list[tuple[list[str], int | None, int | None]] = field(default_factory=list)
    asked: dict[str, Candidate] = field(default_factory=dict)
    reached: dict[str, set[int | None]] = field(default_factory=dict)

    def evaluate(
        self, candidates: Sequence[Candidate], updates: int | None, continues: int | None
    ) -> Mapping[str, Evaluation]:
        self.calls.append(([candidate.id for candidate in candidates], updates, continues))
        answer = {}
        for candidate in candidates:
            before = self.reached.setdefault(candidate.id, {None})
            demand(continues in before, f"went on from {continues} updates, which {candidate} had never reached")
            self.asked[candidate.id] = candidate
            if not self.fails(candidate):
                before.add(updates)
                answer[candidate.id] = Evaluation(candidate, Embeddings(ROW, ROW, ROW), Scores(ROW[0], ROW[0]))
        return answer


class Checks(Suite[Search]):
    """The checks of a search."""

    record: SearchPlugin

    def returns_what_got_the_whole_budget(self) -> None:
        """Something is found, and everything that is returned was evaluated with the whole budget."""
        trainer = _Trainer()
        found = self._search(trainer)
        demand(bool(found), "returned nothing, though every training succeeded")
        for name, evaluation in found.items():
            demand(BUDGET in trainer.reached.get(name, ()), f"returned {name!r}, which was not given the whole budget")
            demand(evaluation.candidate.id == name, f"returned the evaluation of another candidate for {name!r}")

    def stays_in_the_search_spaces(self) -> None:
        """Every candidate has the hyperparameters of its augmentation that count, with values of its search space."""
        trainer = _Trainer()
        self._search(trainer)
        for candidate in trainer.asked.values():
            space = SPACES[candidate.augmentation]
            counting = draw(space, lambda name, _, chosen=candidate.params: chosen.get(name))  # type: ignore[misc]
            counts = f"asked for {candidate}, in which {', '.join(counting)} count; make it by SearchProblem.propose"
            demand(counting.keys() == candidate.params.keys(), counts)
            for name, value in candidate.params.items():
                sound = _among(value, plain(space[name]))
                demand(sound, f"asked for {candidate}, whose {name} may not be {value!r}")

    def repeats_itself(self) -> None:
        """The same problem leads to the same calls, so that a search that was killed finds what it had evaluated."""
        first, second = _Trainer(), _Trainer()
        self._search(first)
        self._search(second)
        same = first.calls == second.calls
        demand(same, "asked for other candidates the second time; draw by the problem's seed alone")

    def continues_without_those_that_fail(self) -> None:
        """A candidate that fails is not returned, and is no error, even if all fail."""
        trainer = _Trainer(fails=lambda candidate: candidate.params["size"] < 0.15)  # type: ignore[operator]
        found = self._search(trainer)
        failed = [name for name in found if trainer.fails(trainer.asked[name])]
        demand(not failed, f"returned {', '.join(failed)}, which failed")
        demand(not self._search(_Trainer(fails=lambda candidate: True)), "returned something although all failed")

    def takes_a_detector_without_a_budget(self) -> None:
        """Unless the record says that the budget is spent in parts, a budget of None is passed on."""
        if not self.record.parts:
            trainer = _Trainer()
            self._search(trainer, budget=None)
            demand({call[1:] for call in trainer.calls} == {(None, None)}, "made up a number of updates")

    def _search(self, trainer: _Trainer, budget: int | None = BUDGET) -> Mapping[str, Evaluation]:
        """Let a new object search with that trainer."""
        with tempfile.TemporaryDirectory() as folder:
            found: Any = self._build().run(_problem(trainer, budget, Path(folder)))
        demand(isinstance(found, Mapping), f"returned a {type(found).__name__}; return evaluations by candidate id")
        return dict(found)


def _problem(trainer: _Trainer, budget: int | None, run: Path) -> SearchProblem:
    return SearchProblem(
        spaces=SPACES,
        candidate=Candidate,
        evaluate=trainer.evaluate,
        losses=lambda evaluations: [abs(e.candidate.params["size"] - 0.2) for e in evaluations],  # type: ignore[operator]
        budget=budget,
        rungs=Rungs(3, 3.0),
        seed=1,
        run=run,
        note=lambda message: None,
    )


def _among(value: object, values: Sequence[object] | Range) -> bool:
    if isinstance(values, Range):
        return isinstance(value, float) and values.low <= value <= values.high
    return value in values
