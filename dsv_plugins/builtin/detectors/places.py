"""How unusual each place of an image is for that place among normal images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from dsv_plugins.builtin.detectors.backbone import PLACES, FrozenFeatures

__all__ = ["PlaceGaussian", "joined", "summed", "written"]

BATCH = 32
SAMPLED_PLACES = 5_000
"""Enough for a covariance of a few hundred features."""
SPREAD_FLOOR = 0.5
"""Of the spread of all places, added to that of each: a place that never varied must not turn noise into an alarm."""


def batches(features: FrozenFeatures, *names: str) -> Iterator[dict[str, Tensor]]:
    """The named features of some images at a time, in single precision: memory does not grow with the images."""
    for start in range(0, len(features[names[0]]), BATCH):
        yield {name: features[name][start : start + BATCH].float() for name in names}


def joined(function: Callable[[FrozenFeatures], Tensor], features: FrozenFeatures, *names: str) -> Tensor:
    """What a function makes of the named features, a row for each image."""
    found = (function(batch) for batch in batches(features, *names))
    return written(found, len(features[names[0]]))


def summed(function: Callable[[FrozenFeatures], Tensor], features: FrozenFeatures, *names: str) -> Tensor:
    """The sum of what a function makes of some images at a time."""
    found = (function(batch)[None] for batch in batches(features, *names))
    return written(found, math.ceil(len(features[names[0]]) / BATCH)).sum(dim=0)


def written(parts: Iterable[Tensor], rows: int) -> Tensor:
    """The rows of all parts as one tensor, each part written there when it comes.

    Small parts that wait to be joined would lie between large tensors that are freed. What is free between them is too
    small for the next large one, so that the process grows with each part.
    """
    result: Tensor | None = None
    start = 0
    for part in parts:
        if result is None:
            result = part.new_empty((rows, *part.shape[1:]))
        result[start : start + len(part)] = part
        start += len(part)
    assert result is not None
    return result


class PlaceGaussian(nn.Module):
    """One Gaussian for all places, about a mean of each place's own. Needs no training, only the frozen features.

    The distances of each place are standardised by those of the train images there. On objects that always lie alike,
    this tells an edge that belongs there from a scratch. Fine places are left out: they are mostly noise here.
    """

    mean: Tensor
    whitening: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, values in state.items():
            self.register_buffer(name, values)

    @classmethod
    def fit(cls, train: FrozenFeatures, *, seed: int) -> PlaceGaussian:
        """Estimate the means, the Ledoit–Wolf covariance and the spread of the distances from normal images."""
        from sklearn.covariance import ledoit_wolf

        count = len(train[PLACES])
        mean = torch.zeros(train[PLACES].shape[1:], dtype=torch.float64)
        for batch in batches(train, PLACES):
            mean += batch[PLACES].sum(dim=0, dtype=torch.float64)
        mean /= count
        places = mean[..., 0].numel()
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(count * places, generator=generator)[:SAMPLED_PLACES].sort().values
        sampled = train[PLACES].flatten(0, 2)[chosen].float()
        deviations = sampled - mean.flatten(0, 1)[chosen % places]
        covariance, _ = ledoit_wolf(deviations.numpy(), assume_centered=True)
        precision = torch.linalg.inv(torch.from_numpy(covariance))
        gaussian = cls({"mean": mean.float(), "whitening": torch.linalg.cholesky(precision).float()})
        distances = joined(gaussian._distances, train, PLACES)
        spread = distances.std(dim=0, correction=0) + SPREAD_FLOOR * distances.std() + 1e-6
        return cls({**gaussian.state_dict(), "centre": distances.mean(dim=0), "spread": spread})

    def heatmap(self, features: FrozenFeatures) -> Tensor:
        """How unusual each place is, at stride 8: about 0 ± 1 on normal images."""
        return (self._distances(features) - self.centre) / self.spread

    def _distances(self, features: FrozenFeatures) -> Tensor:
        deviations = features[PLACES] - self.mean
        return (deviations @ self.whitening).square().sum(dim=-1).sqrt()
