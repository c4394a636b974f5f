"""How clear a choice is: would it be the same on other test images, and with other images held out?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from dsv_plugins.plugins.interfaces import ResamplingSelector, Selector
from dsv_plugins.plugins.search import choose
from dsv_plugins.seeding import derived_seed
from dsv_plugins.types import Embeddings, Evaluation, Scores

__all__ = ["on_rows", "win_shares"]

Sets = TypeVar("Sets", Embeddings, Scores)

MIN_RESAMPLES, MAX_RESAMPLES = 5, 50
MAX_JUDGEMENTS = 1_000
"""Bounds the resamples by work, not by time, so that the shares are the same on every machine. A judgement is of one
candidate, or of two where the selector compares them."""
MAX_ROWS = 128


def win_shares(
    selector: Selector, evaluations: Sequence[Evaluation], *, seed: int, judges_alone: bool = True
) -> list[float]:
    """Return the share of bootstrap resamples of the test and held-out images that each candidate wins.

    The smallest loss wins a resample. All candidates are judged on the same images; those that tie share it, since a
    selector that cannot tell them apart is not sure of the first. Sets are thinned to about a hundred rows, which is
    enough to tell a clear choice from a toss-up.

    Args:
        selector: Whose choice it is.
        evaluations: The candidates.
        seed: Fixes the resamples.
        judges_alone: Whether the selector looks at one candidate at a time, which costs less than comparing all.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, len(evaluations)))
    first = evaluations[0].embeddings
    kept = {name: _some_rows(len(getattr(first, name)), generator) for name in ("train", "augmented")}
    sizes = {name: len(rows) for name in ("test", "holdout") if (rows := getattr(first, name)) is not None}
    count = len(evaluations)
    judgements = count if judges_alone else max(1, count * (count - 1) // 2)
    resamples = max(MIN_RESAMPLES, min(MAX_RESAMPLES, MAX_JUDGEMENTS // judgements))
    draws = [
        {name: torch.randint(size, (min(size, MAX_ROWS),), generator=generator) for name, size in sizes.items()}
        for _ in range(resamples)
    ]
    # Test rows that no resample draws would cost time and memory.
    kept["test"], test_rows = torch.unique(torch.stack([drawn["test"] for drawn in draws]), return_inverse=True)
    thinned = [on_rows(evaluation, kept) for evaluation in evaluations]
    wins = [0.0] * count
    for losses in _losses_of_resamples(selector, thinned, draws, test_rows):
        smallest = losses[choose(losses)]
        tied = [index for index, loss in enumerate(losses) if loss == smallest]
        for index in tied:
            wins[index] += 1 / len(tied)
    return [won / resamples for won in wins]


def _losses_of_resamples(
    selector: Selector, evaluations: Sequence[Evaluation], draws: Sequence[Mapping[str, Tensor]], test_rows: Tensor
) -> Iterator[list[float]]:
    if isinstance(selector, ResamplingSelector) and _resamples_as_it_judges(selector):
        yield from selector.resampled_losses(evaluations, test_rows).tolist()
        return
    for drawn, rows in zip(draws, test_rows, strict=True):
        resample = [on_rows(evaluation, {**drawn, "test": rows}) for evaluation in evaluations]
        yield [float(loss) for loss in selector.losses(resample)]


def _resamples_as_it_judges(selector: ResamplingSelector) -> bool:
    """Tell if both methods belong together: who derives a selector may override `losses`, and inherit the other."""

    def place(method: str) -> int:
        bases = type(selector).__mro__
        return next((index for index, base in enumerate(bases) if method in vars(base)), len(bases))

    return place("resampled_losses") <= place("losses")


def _some_rows(size: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(size, generator=generator)[:MAX_ROWS].sort().values


def on_rows(evaluation: Evaluation, rows: Mapping[str, Tensor]) -> Evaluation:
    """Return the evaluation with the named sets cut down to some rows, if it has them."""

    def cut(sets: Sets) -> Sets:
        there = {name: getattr(sets, name) for name in rows}
        return replace(sets, **{name: rows_of[rows[name]] for name, rows_of in there.items() if rows_of is not None})

    return replace(evaluation, embeddings=cut(evaluation.embeddings), scores=cut(evaluation.scores))
