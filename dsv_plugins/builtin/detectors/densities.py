"""Models of the normal embeddings, whose improbability is the anomaly score.

Scikit-learn is imported only to make a density, at the end of a training, because that import takes seconds.
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
        """One score per embedding, higher if it is less probable."""
        ...

    def left_out_scores(self, embeddings: Tensor) -> Tensor:
        """The scores of the embeddings it was made from, each as if it had been left out."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The tensors from which `from_state` makes it again."""
        ...


class Gaussian:
    """One Gaussian with the Ledoit–Wolf covariance; the score is the Mahalanobis distance."""

    def __init__(self, mean: Tensor, precision: Tensor, shrinkage: float = 0.0) -> None:
        self.mean = mean
        self.precision = precision
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
        """The distances with each row left out of mean and covariance, by the formula of Sherman and Morrison.

        The shrinkage stays that of all rows. A row that was fitted seems closer than a new one like it: with more
        features than rows, by far.
        """
        count = len(embeddings)
        if count < 3:
            return self.score(embeddings)
        squared = self.score(embeddings).double().square()
        remaining = (1 - (1 - self.shrinkage) * squared / (count - 1)).clamp(min=1e-3)
        distances: Tensor = (squared / remaining).sqrt().float() * (count / (count - 1))
        return distances

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

    def left_out_scores(self, embeddings: Tensor) -> Tensor:
        """The negative log-densities without each row's own kernel."""
        count = len(embeddings)
        if count < 2:
            return self.score(embeddings)
        # At its own place a row adds 1/n of the kernel's peak, which is the density of a single row there.
        peak = -type(self)(embeddings[:1]).score(embeddings[:1]).double()
        logs = -self.score(embeddings).double()
        others = (count - (peak - logs).exp()).clamp(min=torch.finfo(torch.float64).tiny)
        return -(logs + (others / (count - 1)).log()).float()

    def state(self) -> dict[str, Tensor]:
        """The embeddings."""
        return {"embeddings": self.embeddings}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Kernel:
        """The density whose `state` this is."""
        return cls(state["embeddings"])


DENSITY_CLASSES: Mapping[str, type[Gaussian] | type[Kernel]] = {"gaussian": Gaussian, "kde": Kernel}
