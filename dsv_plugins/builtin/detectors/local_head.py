"""A small classifier of places: has the augmentation changed the image here?"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv_plugins.builtin.detectors.backbone import Maps
from dsv_plugins.builtin.detectors.places import batches, place_features

__all__ = ["ChangedPlaces", "LocalHead", "changed_shares"]

HIDDEN = 64
PLACES = 2048
"""In one update: half of them changed by the augmentation, half not."""
CHANGED_PIXEL = 8 / 255
"""From which difference on a pixel counts as changed."""
CHANGED_SHARE = 0.1
"""Of a place's pixels, from which on the place counts as changed; less is neither changed nor unchanged."""
MOST_IMAGES = 400
"""Images whose places are kept in memory, of each kind."""


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

    def standardise_by(self, places: Tensor) -> None:
        """Take mean and deviation of the features from normal places."""
        parts = torch.split(places, PLACES * 8)  # single precision for some at a time
        self.mean.copy_(torch.stack([part.float().sum(dim=0) for part in parts]).sum(dim=0) / len(places))
        squares = torch.stack([(part.float() - self.mean).square().sum(dim=0) for part in parts]).sum(dim=0)
        self.deviation.copy_((squares / len(places)).sqrt() + 1e-6)

    def forward(self, features: Tensor) -> Tensor:
        """The logits of places, whatever the leading dimensions."""
        logits: Tensor = self.layers((features - self.mean) / self.deviation)
        return logits.squeeze(-1)

    @torch.inference_mode()
    def measure_spread(self, train: Maps) -> None:
        """Take the unit of the heatmap from the logits of normal images."""
        self.spread.copy_(torch.cat([self(place_features(batch)).flatten() for batch in batches(train)]).std() + 1e-6)

    @torch.inference_mode()
    def heatmap(self, maps: Maps) -> Tensor:
        """The logits in units of their spread on normal images, at stride 8."""
        logits: Tensor = self(place_features(maps))
        return logits / self.spread


def changed_shares(images: Tensor, copies: Tensor, size: tuple[int, int]) -> Tensor:
    """The share of changed pixels at each place: (copies, height, width)."""
    changed = (copies - images).abs().amax(dim=1, keepdim=True) > CHANGED_PIXEL
    return functional.adaptive_avg_pool2d(changed.float(), size).squeeze(1)


class ChangedPlaces:
    """Places to train on: those of normal images, and those of augmented copies that are changed or unchanged.

    Args:
        normal: The maps of normal images.
        copies: The maps of augmented copies.
        shares: What `changed_shares` says of the copies.
    """

    def __init__(self, normal: Maps, copies: Maps, shares: Tensor) -> None:
        self.normal = _flat(normal)
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
        half = PLACES // 2
        of_copies = half // 2 if len(self._unchanged) else 0

        def drawn(places: Tensor, count: int) -> Tensor:
            return places[torch.randint(len(places), (count,), generator=generator)]

        rows = [
            self._copies[drawn(self._changed, half)],
            drawn(self.normal, half - of_copies),
            self._copies[drawn(self._unchanged, of_copies)] if of_copies else self._copies[:0],
        ]
        return torch.cat(rows).float(), torch.cat([torch.ones(half), torch.zeros(half)])


def _flat(maps: Maps) -> Tensor:
    """The places of the first images, a row each."""
    some = {name: values[:MOST_IMAGES] for name, values in maps.items()}
    return torch.cat([place_features(batch).flatten(0, 2).half() for batch in batches(some)])
