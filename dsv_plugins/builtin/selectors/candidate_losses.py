"""Losses of all candidates, for the built-in selectors; one that cannot be judged gets a warning and ranks last."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsv_plugins import EmbeddingError, Embeddings, Evaluation, ScoreError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["ConsensusSelector", "EmbeddingSelector", "checked_finite", "judged"]


class EmbeddingSelector(ABC):
    """A selector that looks at the embeddings of one candidate at a time."""

    @abstractmethod
    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return the loss of one candidate, or one for each resample of test, given as row numbers."""

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """Return the loss of each candidate; NaN if its embeddings are unusable."""
        found = judged(evaluations, lambda evaluation: self.loss(evaluation.embeddings))
        return [math.nan if loss is None else float(loss) for loss in found]

    def resampled_losses(self, evaluations: Sequence[Evaluation], test_rows: Tensor) -> Tensor:
        """Return the loss of each candidate on each resample of test, of shape (resamples, candidates)."""
        import torch

        found = judged(evaluations, lambda evaluation: self.loss(evaluation.embeddings, test_rows))
        losses = [torch.tensor(math.nan) if loss is None else loss.cpu() for loss in found]
        return torch.stack([loss.expand(len(test_rows)) for loss in losses], dim=1)


class ConsensusSelector(ABC):
    """A selector that compares the scores that all candidates give the test images."""

    @abstractmethod
    def values(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a value for each column of a matrix with a row for each image; higher is better."""

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """Return the negated value of each candidate among those with finite scores; NaN for the others."""
        import numpy as np

        shapes = {tuple(evaluation.scores.test.shape) for evaluation in evaluations}
        if len(shapes) > 1 or any(len(shape) != 1 or shape[0] == 0 for shape in shapes):
            raise ScoreError(
                f"the test scores have the shapes {sorted(shapes)}; score the same images with each candidate"
            )
        found = judged(evaluations, lambda evaluation: checked_finite(evaluation.scores.test, "test scores"))
        losses = np.full(len(found), np.nan)
        columns = [scores.double().cpu().numpy() for scores in found if scores is not None]
        if columns:
            losses[[scores is not None for scores in found]] = -self.values(np.stack(columns, axis=1))
        return [float(loss) for loss in losses]


def judged(evaluations: Sequence[Evaluation], judge: Callable[[Evaluation], Tensor]) -> list[Tensor | None]:
    """Return what `judge` returns for each candidate; None, with a warning, if its embeddings or scores are unusable.

    The warning points at the caller of the method that calls this.
    """
    found: list[Tensor | None] = []
    for evaluation in evaluations:
        try:
            found.append(judge(evaluation))
        except (EmbeddingError, ScoreError) as error:
            warnings.warn(f"{evaluation.candidate} is left out of the selection: {error}", stacklevel=3)
            found.append(None)
    return found


def checked_finite(scores: Tensor, name: str) -> Tensor:
    """Return the scores.

    Raises:
        ScoreError: Some are NaN or infinite.
    """
    if not scores.isfinite().all():
        raise ScoreError(f"its {name} are not all finite")
    return scores
