"""How clear a choice is: would it be the same on other test images, and with other images held out?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from dsv_plugins.interfaces import Selector
from dsv_plugins.seeds import derived_seed
from dsv_plugins.selection import choose
from dsv_plugins.types import Embeddings, Evaluation, Scores

__all__ = ["win_shares"]

Sets = TypeVar("Sets", Embeddings, Scores)

MAX_RESAMPLES = 50
MAX_JUDGEMENTS = 1_000
"""Bounds resamples times candidates: by work, not by time, so that the shares are the same on every machine."""
MAX_ROWS = 128


def win_shares(selector: Selector, evaluations: Sequence[Evaluation], *, seed: int) -> list[float]:
    """The share of bootstrap resamples of the test and held-out images in which each candidate has the smallest loss.

    The candidates of one resample are judged on the same images. Sets are thinned to about a hundred rows, which is
    enough to tell a clear choice from a toss-up.

    Args:
        selector: One that judges a candidate alone; others would take the resamples' repeated images for agreement.
        evaluations: The candidates.
        seed: Fixes the resamples.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, len(evaluations)))
    first = evaluations[0].embeddings
    kept = {name: _some_rows(len(getattr(first, name)), generator) for name in ("train", "augmented")}
    thinned = [_on_rows(evaluation, kept) for evaluation in evaluations]
    drawn = {name: len(rows) for name in ("test", "holdout") if (rows := getattr(first, name)) is not None}
    resamples = max(1, min(MAX_RESAMPLES, MAX_JUDGEMENTS // len(evaluations)))
    wins: Counter[int] = Counter()
    for _ in range(resamples):
        rows = {name: torch.randint(size, (min(size, MAX_ROWS),), generator=generator) for name, size in drawn.items()}
        resample = [_on_rows(evaluation, rows) for evaluation in thinned]
        wins[choose([float(loss) for loss in selector.losses(resample)])] += 1
    return [wins[index] / resamples for index in range(len(evaluations))]


def _some_rows(size: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(size, generator=generator)[:MAX_ROWS].sort().values


def _on_rows(evaluation: Evaluation, rows: Mapping[str, Tensor]) -> Evaluation:
    """The evaluation with the named sets cut down to some rows, where it has them."""

    def cut(sets: Sets) -> Sets:
        there = {name: getattr(sets, name) for name in rows}
        return replace(sets, **{name: rows_of[rows[name]] for name, rows_of in there.items() if rows_of is not None})

    return replace(evaluation, embeddings=cut(evaluation.embeddings), scores=cut(evaluation.scores))
