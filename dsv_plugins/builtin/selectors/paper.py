"""The selectors of the paper: DSV, its parts, and the baselines that it is compared with.

Each looks at embeddings or at scores, never at labels. The mathematics is in `dsv_plugins.losses` (embeddings) and
`dsv_plugins.builtin.selectors.consensus` (scores), imported when first used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from dsv_plugins import Embeddings
from dsv_plugins.builtin.selectors.candidate_losses import ConsensusSelector, EmbeddingSelector
from dsv_plugins.types import SEPARABILITY_CAP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["DSV", "MMD", "STD", "Base", "Discordance", "Hits", "ModelCentrality", "Select", "Separability"]

Variant = Literal["paper", "reference"]
Kernel = Literal["linear", "rbf"]
RankOrder = Literal["descending", "ascending"]


@dataclass(frozen=True)
class DSV(EmbeddingSelector):
    """The paper's loss: discordance and surrogate separability in one.

    Attributes:
        variant: "paper", or "reference" for the authors' code, which halves distances.
    """

    variant: Variant = "paper"

    def __post_init__(self) -> None:
        _check_choice("variant", self.variant, get_args(Variant))

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return L_DSV of a candidate."""
        from dsv_plugins.losses import dsv

        return dsv(*_sets(embeddings), variant=self.variant, resamples=resamples)


@dataclass(frozen=True)
class Discordance(EmbeddingSelector):
    """The first half of DSV alone."""

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return L_dis of a candidate."""
        from dsv_plugins.losses import discordance

        return discordance(*_sets(embeddings), resamples=resamples)


@dataclass(frozen=True)
class Separability(EmbeddingSelector):
    """The second half of DSV alone.

    Attributes:
        cap: The value past which more separability is no better; None for no cap.
    """

    cap: float | None = SEPARABILITY_CAP

    def __post_init__(self) -> None:
        if self.cap is not None and not self.cap > 0:
            raise ValueError(f"cap is {self.cap!r}; give a number above 0, or null for no cap")

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return L_sep of a candidate, negated since more is better."""
        from dsv_plugins.losses import separability

        cap = math.inf if self.cap is None else self.cap
        return -separability(*_sets(embeddings), resamples=resamples).clamp(max=cap)


@dataclass(frozen=True)
class Base(EmbeddingSelector):
    """The distance that DSV starts from, unscaled."""

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return the mean distance between train or augmented embeddings and test embeddings."""
        from dsv_plugins.losses import distance_to_test

        return distance_to_test(*_sets(embeddings), resamples=resamples)


@dataclass(frozen=True)
class MMD(EmbeddingSelector):
    """The squared maximum mean discrepancy in place of the distance.

    Attributes:
        kernel: "linear" as in the authors' code, or "rbf".
    """

    kernel: Kernel = "linear"

    def __post_init__(self) -> None:
        _check_choice("kernel", self.kernel, get_args(Kernel))

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return the discrepancy between train or augmented embeddings and test embeddings."""
        from dsv_plugins.losses import squared_mmd

        return squared_mmd(_seen(embeddings), embeddings.test, kernel=self.kernel, resamples=resamples)


@dataclass(frozen=True)
class STD(EmbeddingSelector):
    """The spread of the distances, of which more is better.

    Attributes:
        include_augmented: Measure from train and augmented embeddings, as the authors' code does; False measures from
            the train embeddings alone, as the paper says.
    """

    include_augmented: bool = True

    def loss(self, embeddings: Embeddings, resamples: Tensor | None = None) -> Tensor:
        """Return the standard deviation of the distances to the test embeddings, negated."""
        from dsv_plugins.losses import distance_std

        seen = _seen(embeddings) if self.include_augmented else embeddings.train
        return -distance_std(seen, embeddings.test, resamples=resamples)


@dataclass(frozen=True)
class ModelCentrality(ConsensusSelector):
    """MC: the candidate whose ranking of the test images agrees most with the others'."""

    def values(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean rank correlation with the others."""
        from dsv_plugins.builtin.selectors.consensus import model_centrality

        return model_centrality(scores)


@dataclass(frozen=True)
class Select(ConsensusSelector):
    """SELECT: agreement with a consensus that is built from the candidates that agree with it."""

    def values(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rank correlation with the consensus."""
        from dsv_plugins.builtin.selectors.consensus import select

        return select(scores)


@dataclass(frozen=True)
class Hits(ConsensusSelector):
    """HITS: candidates as hubs and test images as authorities; prefers the largest hubness.

    Attributes:
        rank_order: "descending" gives the most anomalous image rank 1; "ascending" the least.
    """

    rank_order: RankOrder = "descending"

    def __post_init__(self) -> None:
        _check_choice("rank_order", self.rank_order, get_args(RankOrder))

    def values(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the hubness."""
        from dsv_plugins.builtin.selectors.consensus import hits

        return hits(scores, rank_order=self.rank_order)


def _sets(embeddings: Embeddings) -> tuple[Tensor, Tensor, Tensor]:
    return embeddings.train, embeddings.augmented, embeddings.test


def _seen(embeddings: Embeddings) -> Tensor:
    import torch

    return torch.cat([embeddings.train, embeddings.augmented])


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; give one of {', '.join(choices)}")
