"""From losses to a choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsv_plugins.errors import ScoreError

__all__ = ["choose", "rank"]


def rank(losses: Sequence[float]) -> list[int]:
    """The candidates' places, best first: by loss, ties in the order given, NaN and infinite losses last."""
    return sorted(range(len(losses)), key=lambda index: (not math.isfinite(losses[index]), _sortable(losses[index])))


def choose(losses: Sequence[float]) -> int:
    """The place of the best candidate.

    Raises:
        ScoreError: No loss is finite, so that nothing speaks for any candidate.
    """
    if not any(math.isfinite(loss) for loss in losses):
        raise ScoreError(f"none of the {len(losses)} losses is finite, so there is nothing to choose by")
    return rank(losses)[0]


def _sortable(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf  # NaN compares with nothing, and would spoil the order
