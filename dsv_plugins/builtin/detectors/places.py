"""How unusual each place of an image is for that place among normal images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from dsv_plugins.builtin.detectors.backbone import PLACES, FrozenFeatures

__all__ = ["PlaceGaussian", "batches"]

BATCH = 32
SAMPLED_PLACES = 5_000
"""Enough for a covariance of a few hundred features."""
SPREAD_FLOOR = 0.5
"""Of the spread of all places, added to that of each: a place that never varied must not turn noise into an alarm."""


def batches(features: FrozenFeatures) -> Iterator[dict[str, Tensor]]:
    """The features of some images at a time, in single precision: memory does not grow with the images."""
    count = len(next(iter(features.values())))
    for start in range(0, count, BATCH):
        yield {name: values[start : start + BATCH].float() for name, values in features.items()}


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
        sums = [batch[PLACES].sum(dim=0, dtype=torch.float64) for batch in batches(train)]
        mean = torch.stack(sums).sum(dim=0) / count
        places = mean[..., 0].numel()
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(count * places, generator=generator)[:SAMPLED_PLACES].sort().values
        rows, start = [], 0
        for batch in batches(train):
            deviations = (batch[PLACES] - mean).flatten(0, 2)
            inside = chosen[(chosen >= start) & (chosen < start + len(deviations))] - start
            rows.append(deviations[inside])
            start += len(deviations)
        covariance, _ = ledoit_wolf(torch.cat(rows).numpy(), assume_centered=True)
        precision = torch.linalg.inv(torch.from_numpy(covariance))
        gaussian = cls({"mean": mean.float(), "whitening": torch.linalg.cholesky(precision).float()})
        distances = torch.cat([gaussian._distances(batch) for batch in batches(train)])
        spread = distances.std(dim=0, correction=0) + SPREAD_FLOOR * distances.std() + 1e-6
        return cls({**gaussian.state_dict(), "centre": distances.mean(dim=0), "spread": spread})

    def heatmap(self, features: FrozenFeatures) -> Tensor:
        """How unusual each place is, at stride 8: about 0 ± 1 on normal images."""
        return (self._distances(features) - self.centre) / self.spread

    def _distances(self, features: FrozenFeatures) -> Tensor:
        deviations = features[PLACES] - self.mean
        return (deviations @ self.whitening).square().sum(dim=-1).sqrt()
