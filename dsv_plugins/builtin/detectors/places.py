"""Features of every place of an image, and how unusual they are for that place among normal images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from dsv_plugins.builtin.detectors.backbone import Maps

__all__ = ["PlaceGaussian", "batches", "place_features"]

BATCH = 32
SAMPLED_PLACES = 5_000
"""Enough for a covariance of a few hundred features."""
SPREAD_FLOOR = 0.5
"""Of the spread of all places, added to that of each: a place that never varied must not turn noise into an alarm."""


def batches(maps: Maps) -> Iterator[dict[str, Tensor]]:
    """The maps of some images at a time, in single precision: memory does not grow with the images."""
    count = len(next(iter(maps.values())))
    for start in range(0, count, BATCH):
        yield {name: values[start : start + BATCH].float() for name, values in maps.items()}


def place_features(maps: Maps) -> Tensor:
    """The maps of strides 16, 8 and 4 at stride 8, averaged over 3×3 places: (images, height, width, features)."""
    height, width = maps["stride8"].shape[-2:]
    size = (height, width)
    joined = torch.cat(
        [
            functional.interpolate(maps["stride16"], size=size, mode="bilinear", align_corners=False),
            maps["stride8"],
            functional.adaptive_avg_pool2d(maps["stride4"], size),
        ],
        dim=1,
    )
    return functional.avg_pool2d(joined, 3, 1, 1, count_include_pad=False).permute(0, 2, 3, 1)


class PlaceGaussian:
    """One Gaussian for all places, about a mean of each place's own. Needs no training, only the frozen features.

    The distances of each place are standardised by those of the train images there. On objects that always lie alike,
    this tells an edge that belongs there from a scratch. Features of stride 4 are left out: they are mostly noise here.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = dict(state)

    @classmethod
    def fit(cls, train: Maps, *, seed: int) -> PlaceGaussian:
        """Estimate the means, the Ledoit–Wolf covariance and the spread of the distances from normal images."""
        from sklearn.covariance import ledoit_wolf

        count = len(train["stride8"])
        sums = [cls._features(batch).sum(dim=0, dtype=torch.float64) for batch in batches(train)]
        mean = torch.stack(sums).sum(dim=0) / count
        places = mean[..., 0].numel()
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(count * places, generator=generator)[:SAMPLED_PLACES].sort().values
        rows, start = [], 0
        for batch in batches(train):
            deviations = (cls._features(batch) - mean).flatten(0, 2)
            inside = chosen[(chosen >= start) & (chosen < start + len(deviations))] - start
            rows.append(deviations[inside])
            start += len(deviations)
        covariance, _ = ledoit_wolf(torch.cat(rows).numpy(), assume_centered=True)
        precision = torch.linalg.inv(torch.from_numpy(covariance))
        gaussian = cls({"mean": mean.float(), "whitening": torch.linalg.cholesky(precision).float()})
        distances = torch.cat([gaussian._distances(batch) for batch in batches(train)])
        gaussian._state["centre"] = distances.mean(dim=0)
        gaussian._state["spread"] = distances.std(dim=0, correction=0) + SPREAD_FLOOR * distances.std() + 1e-6
        return gaussian

    def heatmap(self, maps: Maps) -> Tensor:
        """How unusual each place is, at stride 8: about 0 ± 1 on normal images."""
        return (self._distances(maps) - self._state["centre"]) / self._state["spread"]

    def state(self) -> dict[str, Tensor]:
        """The tensors from which it can be made again."""
        return dict(self._state)

    def _distances(self, maps: Maps) -> Tensor:
        deviations = self._features(maps) - self._state["mean"]
        return (deviations @ self._state["whitening"]).square().sum(dim=-1).sqrt()

    @staticmethod
    def _features(maps: Maps) -> Tensor:
        return place_features(maps)[..., : maps["stride16"].shape[1] + maps["stride8"].shape[1]]
