"""Models of the normal embeddings, whose improbability is the anomaly score.

Scikit-learn is imported where a density is made: that takes seconds, and the end of a training is early enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["DENSITY_CLASSES", "Density", "Gaussian", "Kernel"]


class Density(Protocol):
    """Made from normal embeddings; scores others."""

    def score(self, embeddings: Tensor) -> Tensor:
        """One score per embedding, higher where it is less probable."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The tensors from which `from_state` makes it again."""
        ...


class Gaussian:
    """One Gaussian with the Ledoit–Wolf covariance; the score is the Mahalanobis distance."""

    def __init__(self, mean: Tensor, precision: Tensor) -> None:
        self.mean = mean
        self.precision = precision

    @classmethod
    def fit(cls, embeddings: Tensor) -> Gaussian:
        """Estimate mean and covariance. Where there is no spread at all, distances are plain Euclidean ones."""
        from sklearn.covariance import LedoitWolf

        rows = embeddings.double()
        mean = rows.mean(dim=0)
        spread = (rows - mean).square().sum()
        if len(rows) < 2 or spread <= torch.finfo(torch.float32).eps ** 2 * rows.square().sum():
            return cls(mean, torch.eye(rows.shape[1], dtype=rows.dtype))
        return cls(mean, torch.from_numpy(LedoitWolf().fit(rows.numpy()).precision_))

    def score(self, embeddings: Tensor) -> Tensor:
        """The Mahalanobis distance to the mean."""
        centred = embeddings.double() - self.mean
        squared = ((centred @ self.precision) * centred).sum(dim=1)
        return squared.clamp(min=0).sqrt().float()

    def state(self) -> dict[str, Tensor]:
        """Mean and precision."""
        return {"mean": self.mean, "precision": self.precision}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Gaussian:
        """The density whose `state` this is."""
        return cls(state["mean"], state["precision"])


class Kernel:
    """A Gaussian kernel on every normal embedding; the score is the negative log-density, up to a constant."""

    # Scott's rule gives nearly one for any number of samples in hundreds of dimensions.
    BANDWIDTH = 1.0

    def __init__(self, embeddings: Tensor) -> None:
        from sklearn.neighbors import KernelDensity

        self.embeddings = embeddings
        self.estimator = KernelDensity(bandwidth=self.BANDWIDTH).fit(embeddings.double().numpy())

    @classmethod
    def fit(cls, embeddings: Tensor) -> Kernel:
        """Keep the embeddings."""
        return cls(embeddings.clone())

    def score(self, embeddings: Tensor) -> Tensor:
        """The negative log-density."""
        return torch.from_numpy(-self.estimator.score_samples(embeddings.double().numpy())).float()

    def state(self) -> dict[str, Tensor]:
        """The embeddings."""
        return {"embeddings": self.embeddings}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Kernel:
        """The density whose `state` this is."""
        return cls(state["embeddings"])


DENSITY_CLASSES: Mapping[str, type[Gaussian] | type[Kernel]] = {"gaussian": Gaussian, "kde": Kernel}
