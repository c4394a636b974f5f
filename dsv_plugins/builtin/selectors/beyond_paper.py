"""Selectors that measure how test differs from train, without the spread of the normals.

That spread dominates the discordance of DSV if training has not made the normals dense. These selectors avoid it: they
compare with normals held out of training (`pu-auc`), or by the energy distance (`energy`, `cosine`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsv_plugins import Embeddings, Evaluation, ScoreError
from dsv_plugins.builtin.selectors.candidate_losses import EmbeddingSelector, checked_finite, judged

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PUAUC", "Cosine", "Energy", "check_held_out", "shares_below"]


@dataclass(frozen=True)
class PUAUC:
    """The AUROC of the scores with held-out normals as negatives and all test images as positives.

    If test normals are distributed as held-out ones, it is (1 - γ) / 2 + γ · AUC for a share γ of anomalies: it
    orders the candidates as the AUC does, for any γ.
    """

    positives: ClassVar[str] = "test"

    def losses(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """Return that AUROC of each candidate, negated.

        Raises:
            ScoreError: There are no held-out images.
        """
        check_held_out(evaluations, self.positives)
        found = judged(evaluations, lambda evaluation: -shares_below(evaluation, self.positives).mean())
        return [math.nan if loss is None else float(loss) for loss in found]


@dataclass(frozen=True)
class Energy(EmbeddingSelector):
    """The energy distance between train and test in units of the spread of train: a good detector sees a difference."""

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return E(train, test) / d(train, train) of a candidate, negated."""
        from dsv_plugins.losses import relative_energy

        return -relative_energy(embeddings.train, embeddings.test, resamples=resamples)


@dataclass(frozen=True)
class Cosine(EmbeddingSelector):
    """The part of the shift from train to test that lies in the direction of the augmentation."""

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return the cosine between the shifts train → test and train → augmented of a candidate, negated."""
        from dsv_plugins.losses import shift_cosine

        return -shift_cosine(embeddings.train, embeddings.augmented, embeddings.test, resamples=resamples)


def check_held_out(evaluations: Sequence[Evaluation], positives: str = "holdout") -> None:
    """Refuse a pool without scores of held-out images, or without those of a set that is made from them.

    Raises:
        ScoreError: There are none.
    """
    if any(getattr(each.scores, name) is None for each in evaluations for name in ("holdout", positives)):
        raise ScoreError("needs held-out images; remove --holdout 0")


def shares_below(evaluation: Evaluation, positives: str) -> Tensor:
    """Return the share of held-out images with a lower score, for each image of a set; equals count half.

    Raises:
        ScoreError: Some scores are NaN or infinite.
    """
    import torch

    holdout, scores = (
        checked_finite(getattr(evaluation.scores, name), "scores").double() for name in ("holdout", positives)
    )
    known = holdout.sort().values
    smaller, not_larger = (torch.searchsorted(known, scores, right=right) for right in (False, True))
    return (smaller + not_larger).double() / (2 * len(known))
