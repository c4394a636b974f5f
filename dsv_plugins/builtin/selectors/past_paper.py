"""Selectors that measure how test differs from train, without the spread of the normals.

That spread dominates the discordance of DSV if training has not made the normals dense. These selectors avoid it: they
compare with normals kept out of training (`pu-auc`), or by the energy distance (`energy`, `cosine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsv_plugins import Embeddings, Evaluation, ScoreError, Scores
from dsv_plugins.builtin.selectors.each_candidate import EmbeddingSelector, score_losses

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PUAUC", "Cosine", "Energy"]


@dataclass(frozen=True)
class PUAUC:
    """The AUROC of the scores with held-out normals as negatives and all test images as positives.

    If test normals are distributed as held-out ones, it is (1 - γ) / 2 + γ · AUC for a share γ of anomalies: it
    orders the candidates as the AUC does, for any γ.
    """

    positives: ClassVar[str] = "test"

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """That AUROC of each candidate, negated.

        Raises:
            ScoreError: There are no held-out images.
        """
        if any(getattr(each.scores, name) is None for each in evaluations for name in ("holdout", self.positives)):
            raise ScoreError("it compares with good images kept out of training; leave --holdout 0 out")
        return score_losses(evaluations, self._loss)

    def _loss(self, scores: Scores) -> Tensor:
        assert scores.holdout is not None  # seen above
        return -_auroc(scores.holdout, getattr(scores, self.positives))


@dataclass(frozen=True)
class Energy(EmbeddingSelector):
    """The energy distance between train and test in units of the spread of train: a good detector sees a difference."""

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """E(train, test) / d(train, train) of a candidate, negated."""
        from dsv_plugins.losses import relative_energy

        return -relative_energy(embeddings.train, embeddings.test, resamples=resamples)


@dataclass(frozen=True)
class Cosine(EmbeddingSelector):
    """The part of the shift from train to test that lies in the direction of the augmentation."""

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """The cosine between the shifts train → test and train → augmented of a candidate, negated."""
        from dsv_plugins.losses import shift_cosine

        return -shift_cosine(embeddings.train, embeddings.augmented, embeddings.test, resamples=resamples)


def _auroc(negatives: Tensor, positives: Tensor) -> Tensor:
    """The share of pairs in which the positive has the higher score; equals count half."""
    import torch

    if not (negatives.isfinite().all() and positives.isfinite().all()):
        raise ScoreError("its scores are not all finite")
    known, scores = negatives.double().sort().values, positives.double()
    smaller, not_larger = (torch.searchsorted(known, scores, right=right) for right in (False, True))
    return ((smaller + not_larger).double() / (2 * len(known))).mean()
