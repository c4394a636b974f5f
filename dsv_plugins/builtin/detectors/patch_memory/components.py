"""From patch distances to the component scores of an image, and from these to one score and a heatmap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dsv_plugins.builtin.detectors.patch_memory.backbone import POOLED, SOURCE, PatchFeatures
from dsv_plugins.builtin.detectors.patch_memory.memory import PatchMemory, in_batches
from dsv_plugins.toolkit.densities import Gaussian

__all__ = ["RAW", "STANDARDISED", "WHOLE", "Components", "Head"]

WHOLE, RAW, STANDARDISED = "whole", "raw", "standardised"
"""How unusual the image is as a whole; its patches by their distance; the same in units of what is usual there."""
LEAST = 1e-6


class Components(nn.Module):
    """Several scores of an image, each about 0 ± 1 on good images that are not in the memory.

    Args:
        memory: The patches of good images.
        whole: The Gaussian of their pooled features.
        state: The tensors below.
        largest: How many of the largest patch distances are averaged, for each component of the patches.
    """

    scale: Tensor  # mean and deviation of each component on the train images, (2, components)
    typical: Tensor  # mean and deviation of all patch distances of the train images
    left_out: Tensor  # number of train images, and the shrinkage of their covariance
    train_rows: Tensor  # the components of the train images, (images, components)

    def __init__(
        self, memory: PatchMemory, whole: Gaussian, state: Mapping[str, Tensor], largest: Sequence[int]
    ) -> None:
        super().__init__()
        self.memory = memory
        self.whole = whole
        self.largest = tuple(largest)
        for name, values in state.items():
            self.register_buffer(name, values)

    @classmethod
    @torch.no_grad()
    def fit(cls, train: PatchFeatures, *, window: int, images: int, largest: Sequence[int], seed: int) -> Components:
        """Model good images; see `PatchMemory.fit`. Each is scored as if it had been left out."""
        memory, distances = PatchMemory.fit(train, window=window, images=images, seed=seed)
        whole = Gaussian.fit(train[POOLED])
        state = {"left_out": torch.tensor([len(train[POOLED]), whole.shrinkage], dtype=torch.float64)}
        unscaled = cls(memory, whole, state, largest)
        rows = unscaled.measured({POOLED: train[POOLED].float()}, distances)
        scale = torch.stack([rows.mean(dim=0), rows.std(dim=0, correction=0) + LEAST])
        state["scale"], state["train_rows"] = scale, (rows - scale[0]) / scale[1]
        state["typical"] = torch.stack([distances.mean(), distances.std(correction=0) + LEAST])
        return cls(memory, whole, state, largest)

    @property
    def names(self) -> list[str]:
        """The name of each component, such as raw-3."""
        counts = [*map(str, self.largest), "all"]
        return [WHOLE, *(f"{kind}-{count}" for kind in (RAW, STANDARDISED) for count in counts)]

    @torch.no_grad()
    def of(self, features: PatchFeatures) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, of any number of images."""
        found = [self(batch) for batch in in_batches(features)]
        return torch.cat([rows for rows, _ in found]), torch.cat([distances for _, distances in found])

    def forward(self, features: PatchFeatures) -> tuple[Tensor, Tensor]:
        """Return the components of some images, and their patch distances."""
        distances = self.memory(features)
        return (self.measured(features, distances) - self.scale[0]) / self.scale[1], distances

    def measured(self, features: PatchFeatures, distances: Tensor) -> Tensor:
        """Return the components of images in their own units."""
        rows = [self._whole(features)]
        for values in (distances.flatten(1), self.memory.standardised(distances).flatten(1)):
            ranked = values.topk(min(max(self.largest), values.shape[1]), dim=1).values
            rows += [ranked[:, :count].mean(dim=1) for count in self.largest]
            rows.append(values.mean(dim=1))
        return torch.stack(rows, dim=1)

    def _whole(self, features: PatchFeatures) -> Tensor:
        """Return the logarithm of the distance of pooled features, since their spread grows with them."""
        pooled = features[POOLED]
        known = self.memory.excluded(features).any(dim=1)
        without = self.whole.score_without(pooled, features.get(SOURCE, pooled), *self.left_out)
        return torch.where(known, without, self.whole.score(pooled)).clamp(min=LEAST).log()


class Head(nn.Module):
    """Weights of the components: their sum is the score, and the heatmap follows them.

    Args:
        weights: One for each component, none negative.
        damped: Whether a component that is far off counts by its logarithm: a learned head does not know such values.
        offset: What is taken off the sum.
        usual_part: How much of the distance that is usual at a position is taken off its heat; None for as much as the
            standardised components count, up to a half, since a defect may lie where large distances are usual.
    """

    weights: Tensor
    offset: Tensor
    usual_part: Tensor

    def __init__(
        self, weights: Tensor, *, damped: bool, offset: Tensor | None = None, usual_part: Tensor | None = None
    ) -> None:
        super().__init__()
        self.damped = damped
        raw, standardised = (half.sum() for half in weights[1:].chunk(2))
        counted = (raw + standardised).clamp(min=torch.finfo(weights.dtype).tiny)
        self.register_buffer("weights", weights)
        self.register_buffer("offset", torch.zeros(()) if offset is None else offset)
        self.register_buffer("usual_part", standardised / counted / 2 if usual_part is None else usual_part)

    @classmethod
    def merged(cls, heads: Sequence[Head], shares: Sequence[float], scales: Sequence[tuple[float, float]]) -> Head:
        """Return one head of several: the sum of share · (score - mean) / deviation is a weighted sum itself."""
        means, deviations = torch.tensor(scales, dtype=torch.float64).T
        counts = torch.tensor(shares, dtype=torch.float64)
        weights = (counts / deviations) @ torch.stack([head.weights.double() for head in heads])
        offsets = torch.stack([head.offset.double() for head in heads])
        offset = ((means + offsets) / deviations) @ counts
        part = counts @ torch.stack([head.usual_part.double() for head in heads])
        return cls(weights.float(), damped=heads[0].damped, offset=offset.float(), usual_part=part.float())

    def score(self, rows: Tensor) -> Tensor:
        """Return one score for each row of components."""
        return self.of_embeddings(rows.asinh() if self.damped else rows)

    def of_embeddings(self, rows: Tensor) -> Tensor:
        """Return one score for each row of components that are damped if they are to be."""
        return rows @ self.weights - self.offset

    def heatmap(self, components: Components, distances: Tensor) -> Tensor:
        """Return the distance of each patch, less a part of what is usual there, about 0 ± 1 on good images."""
        mean, deviation = components.typical
        part = self.usual_part
        heat: Tensor = (distances - part * components.memory.usual - (1 - part) * mean) / deviation
        return heat
