"""From features to scores: how unusual an image is as a whole, and how unusual its most unusual places are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dsv_plugins.builtin.detectors.backbone import FrozenFeatures
from dsv_plugins.builtin.detectors.local_head import LOCAL
from dsv_plugins.builtin.detectors.places import PlaceGaussian, joined
from dsv_plugins.builtin.detectors.tail import EMBEDDED, Tail
from dsv_plugins.detectors.densities import DENSITY_CLASSES, Density, Gaussian

__all__ = ["Scorer"]

PEAK_PLACES = 3
"""Places of the heatmap whose mean is the local score: one alone is noise, many are blind to small defects."""
LEAST = 1e-6


class Scorer(nn.Module):
    """Adds two scores, each standardised by those of the train images.

    Args:
        density: Models the embeddings of normal images.
        places: Models the places of normal images.
        scales: Mean and spread of the two scores on the train images.
    """

    scales: Tensor

    def __init__(self, density: Density, places: PlaceGaussian, scales: Tensor) -> None:
        super().__init__()
        self.density = density
        self.places = places
        self.register_buffer("scales", scales)

    @classmethod
    def fit(cls, tail: Tail, train: FrozenFeatures, *, density: str, seed: int) -> Scorer:
        """Model normal images.

        The train images' own embeddings are scored as if each had been left out: with more features than images, those
        that were fitted seem far closer than new ones.
        """
        tail.local.measure_spread(train)
        tail.standardise_by(train)
        embeddings = tail.embed(train)
        model, places = DENSITY_CLASSES[density].fit(embeddings), PlaceGaussian.fit(train, seed=seed)
        unscaled = cls(model, places, torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
        both = (unscaled._whole(model.left_out_scores(embeddings)), _local(unscaled.heatmap(tail, train)))
        scales = torch.stack([torch.stack([score.mean(), score.std(correction=0) + LEAST]) for score in both])
        return cls(model, places, scales)

    def forward(self, tail: Tail, batch: FrozenFeatures) -> tuple[Tensor, Tensor]:
        """Scores and heatmaps of one batch."""
        heatmaps = self._heatmaps(tail, batch)
        both = torch.stack([self._whole(self.density.score(tail(batch))), _local(heatmaps)])
        return ((both - self.scales[:, :1]) / self.scales[:, 1:]).sum(dim=0).float(), heatmaps

    @torch.no_grad()
    def score(self, tail: Tail, features: FrozenFeatures) -> Tensor:
        """One score for each image, higher for more anomalous."""
        return joined(lambda batch: self(tail, batch)[0], features, *EMBEDDED, *LOCAL)

    @torch.no_grad()
    def heatmap(self, tail: Tail, features: FrozenFeatures) -> Tensor:
        """How unusual each place is: what the local head makes of it, plus how rare its frozen features are there."""
        return joined(lambda batch: self._heatmaps(tail, batch), features, *LOCAL)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], *, density: str) -> Scorer:
        """The scorer whose `state_dict` this is."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

        return cls(
            DENSITY_CLASSES[density].from_state(part("density.")), PlaceGaussian(part("places.")), state["scales"]
        )

    def _whole(self, scores: Tensor) -> Tensor:
        """Distances as logarithms, since their spread grows with them; a log-density is one already."""
        scores = scores.double()
        return scores.clamp(min=LEAST).log() if isinstance(self.density, Gaussian) else scores

    def _heatmaps(self, tail: Tail, batch: FrozenFeatures) -> Tensor:
        return tail.local.heatmap(batch) + self.places.heatmap(batch)


def _local(heatmaps: Tensor) -> Tensor:
    """The mean of the highest places of each heatmap."""
    places = heatmaps.flatten(1).double()
    return places.topk(min(PEAK_PLACES, places.shape[1]), dim=1).values.mean(dim=1)
