"""Densities of the normal embeddings: how improbable an embedding is under one is the anomaly score.

They are modules whose buffers are all they need, so that they can be exported with the network before them.
Scikit-learn is imported only to fit a density, at the end of a training, because that import takes seconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Density", "Gaussian", "Kernel"]


class Density(nn.Module, ABC):
    """A density that was fitted to normal embeddings. Its buffers are the arguments of its class."""

    @classmethod
    @abstractmethod
    def fit(cls, embeddings: Tensor) -> Self:
        """Return the density of normal embeddings."""

    @abstractmethod
    def score(self, embeddings: Tensor) -> Tensor:
        """Return one score per embedding, higher if it is less probable."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors from which `from_state` makes it again."""
        return dict(self.state_dict())

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Return the density whose `state` this is."""
        return cls(**state)


class Gaussian(Density):
    """One Gaussian with the Ledoit–Wolf covariance; the score is the Mahalanobis distance."""

    mean: Tensor
    precision: Tensor

    def __init__(self, mean: Tensor, precision: Tensor, shrinkage: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("precision", precision)
        self.shrinkage = shrinkage

    @classmethod
    def fit(cls, embeddings: Tensor) -> Self:
        """Estimate mean and covariance. If there is no spread at all, distances are plain Euclidean ones."""
        from sklearn.covariance import LedoitWolf

        rows = embeddings.double()
        mean = rows.mean(dim=0)
        spread = (rows - mean).square().sum()
        if len(rows) < 2 or spread <= torch.finfo(torch.float32).eps ** 2 * rows.square().sum():
            return cls(mean, torch.eye(rows.shape[1], dtype=rows.dtype))
        fitted = LedoitWolf().fit(rows.numpy())
        return cls(mean, torch.from_numpy(fitted.precision_), float(fitted.shrinkage_))

    def score(self, embeddings: Tensor) -> Tensor:
        """Return the Mahalanobis distance to the mean."""
        centred = embeddings.double() - self.mean
        return self._products(centred, centred).clamp(min=0).sqrt().float()

    def score_without(
        self, embeddings: Tensor, left_out: Tensor, count: int | Tensor, shrinkage: float | Tensor
    ) -> Tensor:
        """Return the distances with one fitted row left out for each, by the formula of Sherman and Morrison.

        A row that was fitted seems closer than a new one like it: with more features than rows, by far.

        Args:
            embeddings: What to score.
            left_out: The row that is left out, for each of them.
            count: The number of rows that were fitted.
            shrinkage: That of all rows, which stays.
        """
        row = left_out.double() - self.mean
        centred = embeddings.double() - self.mean + row / (count - 1)
        share = (1 - shrinkage) / (count - 1)
        own, cross, of_row = (self._products(*pair) for pair in ((centred, centred), (centred, row), (row, row)))
        squared = own + share * cross.square() / (1 - share * of_row).clamp(min=1e-3)
        return squared.clamp(min=0).sqrt().float()

    def _products(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the inner product of each pair of rows, in the metric of the precision."""
        return ((first @ self.precision) * second).sum(dim=1)


class Kernel(Density):
    """A Gaussian kernel on every normal embedding; the score is the negative log-density.

    The bandwidth is one: Scott's rule gives nearly that for any number of samples in hundreds of dimensions.
    """

    embeddings: Tensor

    def __init__(self, embeddings: Tensor) -> None:
        super().__init__()
        self.register_buffer("embeddings", embeddings)

    @classmethod
    def fit(cls, embeddings: Tensor) -> Self:
        """Keep the embeddings."""
        return cls(embeddings.clone())

    def score(self, embeddings: Tensor) -> Tensor:
        """Return the negative log-density."""
        rows, kernels = embeddings.double(), self.embeddings.double()
        squared = rows.square().sum(dim=1, keepdim=True) + kernels.square().sum(dim=1) - 2 * rows @ kernels.T
        constant = math.log(len(kernels)) + kernels.shape[1] / 2 * math.log(2 * math.pi)
        return (constant - torch.logsumexp(-squared.clamp(min=0) / 2, dim=1)).float()
