"""A small classifier of places: has the augmentation changed the image here?"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv_plugins.builtin.detectors.backbone import FINE_PLACES, PLACES, FrozenFeatures
from dsv_plugins.builtin.detectors.places import joined, summed

__all__ = ["LOCAL", "MOST_IMAGES", "ChangedPlaces", "LocalHead", "changed_shares", "local_features"]

LOCAL = (PLACES, FINE_PLACES)
"""What the local head sees of each place."""
HIDDEN = 64
DRAWN_PLACES = 2048
"""In one update: half of them changed by the augmentation, half not."""
CHANGED_PIXEL = 8 / 255
"""From which difference on a pixel counts as changed."""
CHANGED_SHARE = 0.1
"""Of a place's pixels, from which on the place counts as changed; less is neither changed nor unchanged."""
MOST_IMAGES = 400
"""Images whose places are drawn from, of each kind."""


class LocalHead(nn.Module):
    """Two layers on the standardised features of a place; positive if the place looks augmented."""

    mean: Tensor
    deviation: Tensor
    spread: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))
        self.register_buffer("spread", torch.ones(()))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the first weights from a generator of our own, as torch draws them from the global one."""
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                bound = 1 / math.sqrt(layer.in_features)
                nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)

    def silence(self) -> None:
        """Let every place have the logit 0, so that the heatmap is that of the frozen features alone."""
        for weights in self.layers[-1].parameters():
            nn.init.zeros_(weights)

    @torch.inference_mode()
    def standardise_by(self, train: FrozenFeatures) -> None:
        """Take mean and deviation of the features from the places of normal images."""
        count = train[PLACES].shape[:-1].numel()
        self.mean.copy_(summed(lambda batch: local_features(batch).sum(dim=(0, 1, 2)), train, *LOCAL) / count)
        squares = summed(lambda batch: (local_features(batch) - self.mean).square_().sum(dim=(0, 1, 2)), train, *LOCAL)
        self.deviation.copy_((squares / count).sqrt() + 1e-6)

    def forward(self, features: Tensor) -> Tensor:
        """The logits of places, whatever the leading dimensions."""
        logits: Tensor = self.layers((features - self.mean) / self.deviation)
        return logits.squeeze(-1)

    @torch.inference_mode()
    def measure_spread(self, train: FrozenFeatures) -> None:
        """Take the unit of the heatmap from the logits of normal images."""
        logits = joined(lambda batch: self(local_features(batch)), train, *LOCAL)
        self.spread.copy_(logits.flatten().std() + 1e-6)

    def heatmap(self, features: FrozenFeatures) -> Tensor:
        """The logits in units of their spread on normal images, at stride 8."""
        logits: Tensor = self(local_features(features))
        return logits / self.spread


def local_features(features: FrozenFeatures) -> Tensor:
    """What the local head sees of each place: (images, height, width, features)."""
    return torch.cat([features[name] for name in LOCAL], dim=-1)


def changed_shares(images: Tensor, copies: Tensor, places: torch.Size) -> Tensor:
    """The share of changed pixels at each place: (copies, height, width)."""
    changed = (copies - images).abs_().amax(dim=1, keepdim=True) > CHANGED_PIXEL
    return functional.adaptive_avg_pool2d(changed.float(), (places[0], places[1])).squeeze(1)


class ChangedPlaces:
    """Places to train on: those of normal images, and those of augmented copies that are changed or unchanged.

    Args:
        normal: The features of normal images.
        copies: The features of augmented copies.
        shares: What `changed_shares` says of the copies.
    """

    def __init__(self, normal: FrozenFeatures, copies: FrozenFeatures, shares: Tensor) -> None:
        self._normal = _flat(normal)
        self._copies = _flat(copies)
        shares = shares[:MOST_IMAGES].flatten()
        self._changed = (shares > CHANGED_SHARE).nonzero().flatten()
        if len(self._changed) == 0:  # patches may be smaller than a place
            self._changed = (shares > 0).nonzero().flatten()
        self._unchanged = (shares == 0).nonzero().flatten()

    @property
    def can_be_learned(self) -> bool:
        """Whether the augmentation changes anything."""
        return len(self._changed) > 0

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features and targets of one update."""
        half = DRAWN_PLACES // 2
        of_copies = half // 2 if len(self._unchanged) else 0

        def drawn(places: int, count: int) -> Tensor:
            return torch.randint(places, (count,), generator=generator)

        rows = [
            _rows(self._copies, self._changed[drawn(len(self._changed), half)]),
            _rows(self._normal, drawn(len(self._normal[0]), half - of_copies)),
        ]
        if of_copies:
            rows.append(_rows(self._copies, self._unchanged[drawn(len(self._unchanged), of_copies)]))
        return torch.cat(rows).float(), torch.cat([torch.ones(half), torch.zeros(half)])


def _flat(features: FrozenFeatures) -> list[Tensor]:
    """The places of the first images, a row each; views, so that features in a file stay there."""
    return [features[name][:MOST_IMAGES].flatten(0, 2) for name in LOCAL]


def _rows(places: list[Tensor], chosen: Tensor) -> Tensor:
    return torch.cat([part[chosen] for part in places], dim=1)
