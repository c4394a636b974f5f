"""Losses of all candidates, for the built-in selectors; one that cannot be judged gets a warning and ranks last."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsv_plugins import EmbeddingError, Embeddings, Evaluation, ScoreError, Scores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["EmbeddingSelector", "pool_losses", "score_losses"]


class EmbeddingSelector(ABC):
    """A selector that looks at the embeddings of one candidate at a time."""

    @abstractmethod
    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """The loss of one candidate, or one for each resample of test, given as row numbers."""

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """The loss of each candidate; NaN if its embeddings are unusable."""
        return [float(loss) for loss in _embedding_losses(evaluations, self.loss)]

    def resampled_losses(self, evaluations: Sequence[Evaluation], test_rows: Tensor) -> Tensor:
        """The loss of each candidate on each resample of test, of shape (resamples, candidates)."""
        import torch

        losses = _embedding_losses(evaluations, lambda embeddings: self.loss(embeddings, test_rows))
        return torch.stack([torch.as_tensor(loss).cpu().expand(len(test_rows)) for loss in losses], dim=1)


def score_losses(evaluations: Sequence[Evaluation], loss: Callable[[Scores], Tensor]) -> list[float]:
    """The loss of each candidate's scores; NaN if they are unusable."""
    return [float(each) for each in _losses(evaluations, lambda evaluation: loss(evaluation.scores))]


def pool_losses(
    evaluations: Sequence[Evaluation], values: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> list[float]:
    """The negated value of each candidate among those with usable test scores; NaN for the others."""
    import numpy as np

    columns = [evaluation.scores.test.double().cpu().numpy() for evaluation in evaluations]
    shapes = {column.shape for column in columns}
    if any(len(shape) != 1 or shape[0] == 0 for shape in shapes) or len(shapes) > 1:
        raise ScoreError(f"the test scores have the shapes {sorted(shapes)}; score the same images with each candidate")
    usable = _usable(evaluations)
    losses = np.full(len(columns), np.nan)
    if any(usable):
        kept = [column for column, is_usable in zip(columns, usable, strict=True) if is_usable]
        losses[usable] = -values(np.stack(kept, axis=1))
    return [float(loss) for loss in losses]


def _embedding_losses(evaluations: Sequence[Evaluation], loss: Callable[[Embeddings], Tensor]) -> list[Tensor | float]:
    return _losses(evaluations, lambda evaluation: loss(evaluation.embeddings))


def _losses(evaluations: Sequence[Evaluation], loss: Callable[[Evaluation], Tensor]) -> list[Tensor | float]:
    losses: list[Tensor | float] = []
    for evaluation in evaluations:
        try:
            losses.append(loss(evaluation))
        except (EmbeddingError, ScoreError) as error:
            _reject(evaluation, str(error))
            losses.append(math.nan)
    return losses


def _usable(evaluations: Sequence[Evaluation]) -> list[bool]:
    usable = [bool(evaluation.scores.test.isfinite().all()) for evaluation in evaluations]
    for evaluation, is_usable in zip(evaluations, usable, strict=True):
        if not is_usable:
            _reject(evaluation, "its test scores are not all finite")
    return usable


def _reject(evaluation: Evaluation, reason: str) -> None:
    # The warning points at the caller of the selector's `losses`, past the two functions in between.
    warnings.warn(f"{evaluation.candidate} is left out of the selection: {reason}", stacklevel=5)
