"""The search `optuna`: its settings and its hook. Optuna itself is imported when the search begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsv_plugins import Evaluation, Search, SearchPlugin, SearchProblem, hookimpl

__all__ = ["OptunaSearch"]

PRUNERS = ("median", "halving", "none")


@dataclass(frozen=True)
class OptunaSearch(Search):
    """Candidates that Optuna's TPE sampler proposes, from all ranges and augmentations together.

    Attributes:
        trials: How many candidates are tried, by all machines that share the search.
        batch: How many are proposed at once, and can be trained at once. It is a setting of the search,
            not of the executor, because later proposals depend on it.
        pruner: What ends an unpromising trial after a rung: "median", "halving" or "none".
        storage: Address of an Optuna storage, such as sqlite:///search.db, to share the search with other machines.
        name: Name of the search in the storage; if None, equal studies get the same name.
    """

    trials: int = 20
    batch: int = 4
    pruner: str = "median"
    storage: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give a whole number of at least 1")
        if self.pruner not in PRUNERS:
            raise ValueError(f"pruner is {self.pruner!r}; give one of {', '.join(PRUNERS)}")

    def run(self, problem: SearchProblem) -> Mapping[str, Evaluation]:
        """Ask Optuna for candidates and report their losses to it, until there are enough trials."""
        from dsv_optuna.trials import Trials

        return Trials(self, problem).run()


@hookimpl
def search() -> SearchPlugin:
    """Candidates by Optuna."""
    summary = "Candidates that Optuna proposes, over ranges; those that promise little end early"
    return SearchPlugin("optuna", OptunaSearch, summary, judges=True, proposes=True)
