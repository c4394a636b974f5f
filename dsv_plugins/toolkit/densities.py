"""Models of the normal embeddings, whose improbability is the anomaly score.

They are modules whose buffers are all they need, so that they can be exported with the network before them.
Scikit-learn is imported only to make a density, at the end of a training, because that import takes seconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["DENSITY_CLASSES", "Density", "Gaussian", "Kernel"]


class Density(nn.Module, ABC):
    """Made from normal embeddings; scores others."""

    @abstractmethod
    def score(self, embeddings: Tensor) -> Tensor:
        """One score per embedding, higher if it is less probable."""

    @abstractmethod
    def left_out_scores(self, embeddings: Tensor) -> Tensor:
        """The scores of the embeddings it was made from, each as if it had been left out."""

    def state(self) -> dict[str, Tensor]:
        """The tensors from which `from_state` makes it again."""
        return dict(self.state_dict())


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
    def fit(cls, embeddings: Tensor) -> Gaussian:
        """Estimate mean and covariance. Where there is no spread at all, distances are plain Euclidean ones."""
        from sklearn.covariance import LedoitWolf

        rows = embeddings.double()
        mean = rows.mean(dim=0)
        spread = (rows - mean).square().sum()
        if len(rows) < 2 or spread <= torch.finfo(torch.float32).eps ** 2 * rows.square().sum():
            return cls(mean, torch.eye(rows.shape[1], dtype=rows.dtype))
        fitted = LedoitWolf().fit(rows.numpy())
        return cls(mean, torch.from_numpy(fitted.precision_), float(fitted.shrinkage_))

    def score(self, embeddings: Tensor) -> Tensor:
        """The Mahalanobis distance to the mean."""
        centred = embeddings.double() - self.mean
        squared = ((centred @ self.precision) * centred).sum(dim=1)
        return squared.clamp(min=0).sqrt().float()

    def left_out_scores(self, embeddings: Tensor) -> Tensor:
        """The distances with each row left out of mean and covariance.

        A row that was fitted seems closer than a new one like it: with more features than rows, by far.
        """
        if len(embeddings) < 3:
            return self.score(embeddings)
        return self.score_without(embeddings, embeddings, len(embeddings), self.shrinkage)

    def score_without(
        self, embeddings: Tensor, left_out: Tensor, count: int | Tensor, shrinkage: float | Tensor
    ) -> Tensor:
        """The distances with one fitted row left out for each, by the formula of Sherman and Morrison.

        Args:
            embeddings: What to score.
            left_out: The row that is left out, for each of them.
            count: The number of rows that were fitted.
            shrinkage: That of all rows, which stays.
        """
        row = left_out.double() - self.mean
        centred = embeddings.double() - self.mean + row / (count - 1)
        share = (1 - shrinkage) / (count - 1)
        own, cross, of_row = (
            ((first @ self.precision) * second).sum(dim=1)
            for first, second in ((centred, centred), (centred, row), (row, row))
        )
        squared = own + share * cross.square() / (1 - share * of_row).clamp(min=1e-3)
        return squared.clamp(min=0).sqrt().float()

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Gaussian:
        """The density whose `state` this is."""
        return cls(state["mean"], state["precision"])


class Kernel(Density):
    """A Gaussian kernel on every normal embedding; the score is the negative log-density.

    The bandwidth is one: Scott's rule gives nearly that for any number of samples in hundreds of dimensions.
    """

    embeddings: Tensor

    def __init__(self, embeddings: Tensor) -> None:
        super().__init__()
        self.register_buffer("embeddings", embeddings)

    @classmethod
    def fit(cls, embeddings: Tensor) -> Kernel:
        """Keep the embeddings."""
        return cls(embeddings.clone())

    def score(self, embeddings: Tensor) -> Tensor:
        """The negative log-density."""
        return self._improbability(self._squared_distances(embeddings), len(self.embeddings))

    def left_out_scores(self, embeddings: Tensor) -> Tensor:
        """The negative log-densities without each row's own kernel.

        That kernel is left out of the sum: next to it, all others are less than a rounding error in many dimensions.
        """
        count = len(embeddings)
        if count < 2:
            return self.score(embeddings)
        return self._improbability(self._squared_distances(embeddings).fill_diagonal_(math.inf), count - 1)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Kernel:
        """The density whose `state` this is."""
        return cls(state["embeddings"])

    def _squared_distances(self, embeddings: Tensor) -> Tensor:
        rows, kernels = embeddings.double(), self.embeddings.double()
        squared = rows.square().sum(dim=1, keepdim=True) + kernels.square().sum(dim=1) - 2 * rows @ kernels.T
        return squared.clamp(min=0)

    def _improbability(self, squared_distances: Tensor, kernels: int) -> Tensor:
        """The negative log-density at some distances from that many kernels."""
        constant = math.log(kernels) + self.embeddings.shape[1] / 2 * math.log(2 * math.pi)
        return (constant - torch.logsumexp(-squared_distances / 2, dim=1)).float()


DENSITY_CLASSES: Mapping[str, type[Gaussian] | type[Kernel]] = {"gaussian": Gaussian, "kde": Kernel}
