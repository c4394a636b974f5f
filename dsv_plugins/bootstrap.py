"""How clear a choice is: would it be the same on other test images?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dsv_plugins.interfaces import Selector
from dsv_plugins.seeds import derived_seed
from dsv_plugins.selection import choose
from dsv_plugins.types import Evaluation

__all__ = ["win_shares"]

MAX_RESAMPLES = 100
MAX_JUDGEMENTS = 2_000
"""Bounds resamples times candidates: by work, not by time, so that the shares are the same on every machine."""
MAX_ROWS = 200


def win_shares(selector: Selector, evaluations: Sequence[Evaluation], *, seed: int) -> list[float]:
    """The share of bootstrap resamples of the test images in which each candidate has the smallest loss.

    The candidates of one resample are judged on the same images. Sets are thinned to a few hundred rows, which
    is enough to tell a clear choice from a toss-up.

    Args:
        selector: One that judges a candidate alone; others would take the resamples' repeated images for agreement.
        evaluations: The candidates.
        seed: Fixes the resamples.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, len(evaluations)))
    train_rows = _some_rows(evaluations[0].embeddings.train, generator)
    augmented_rows = _some_rows(evaluations[0].embeddings.augmented, generator)
    thinned = [_thinned(evaluation, train_rows, augmented_rows) for evaluation in evaluations]
    resamples = max(1, min(MAX_RESAMPLES, MAX_JUDGEMENTS // len(evaluations)))
    wins: Counter[int] = Counter()
    for _ in range(resamples):
        images = len(evaluations[0].embeddings.test)
        rows = torch.randint(images, (min(images, MAX_ROWS),), generator=generator)
        wins[choose([float(loss) for loss in selector.losses([_resampled(e, rows) for e in thinned])])] += 1
    return [wins[index] / resamples for index in range(len(evaluations))]


def _some_rows(points: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randperm(len(points), generator=generator)[:MAX_ROWS].sort().values


def _thinned(evaluation: Evaluation, train_rows: Tensor, augmented_rows: Tensor) -> Evaluation:
    embeddings, scores = evaluation.embeddings, evaluation.scores
    return replace(
        evaluation,
        embeddings=replace(
            embeddings, train=embeddings.train[train_rows], augmented=embeddings.augmented[augmented_rows]
        ),
        scores=replace(scores, train=scores.train[train_rows]),
    )


def _resampled(evaluation: Evaluation, rows: Tensor) -> Evaluation:
    embeddings, scores = evaluation.embeddings, evaluation.scores
    return replace(
        evaluation,
        embeddings=replace(embeddings, test=embeddings.test[rows]),
        scores=replace(scores, test=scores.test[rows]),
    )
