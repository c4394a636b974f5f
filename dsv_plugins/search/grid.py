"""Every candidate at the full budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Evaluate", "grid_search"]

Evaluate = Callable[[Sequence[Candidate], "int | None", "int | None"], Mapping[str, Evaluation]]
"""Brings candidates to a number of updates, going on from an earlier number; the evaluations by candidate id.

Candidates that fail are missing from the answer.
"""


def grid_search(candidates: Sequence[Candidate], evaluate: Evaluate, *, budget: int | None) -> Mapping[str, Evaluation]:
    """Evaluate every candidate with its detector's whole budget, which is None where the detector does not tell."""
    return evaluate(candidates, budget, None)
