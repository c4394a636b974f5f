"""A memory of the patches of good images, and the distance from a patch to the nearest of them nearby."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv_plugins.builtin.detectors.patch_memory.backbone import PATCHES, POOLED, SOURCE, PatchFeatures

__all__ = ["PatchMemory", "in_batches"]

BATCH = 8
"""Images at once: enough to read the memory once for several of them, and few enough to stay below 100 MB."""
POSITIONS_AT_ONCE = 16
"""Of the memory: their products with the patches of a batch stay in the cache."""
SAMPLED_PATCHES = 5_000
"""Enough for a covariance of a few hundred features."""
SPREAD_FLOOR = 0.5
"""Of the spread of all patches, added to that of each: a patch that never varied must not turn noise into an alarm."""
LARGEST_VALUE = 4_000.0
"""Of a whitened feature; half precision ends at 65,504, and some patches lie beyond those that are sampled."""
SAME_IMAGE = 1e-3
"""Relative difference of pooled features below which two images are one; another photo differs by far more."""


def in_batches(features: PatchFeatures) -> Iterator[dict[str, Tensor]]:
    """Yield the features of some images at a time, in single precision: memory does not grow with the images."""
    for start in range(0, len(features[POOLED]), BATCH):
        yield {name: values[start : start + BATCH].float() for name, values in features.items()}


class PatchMemory(nn.Module):
    """Patches of good images, whitened, and how far good images are from each other at each position.

    The distance of a patch is that to the nearest patch of any image in the memory, at most `window` steps away, up,
    down, left or right. An image that is in the memory itself is compared with the others: its own patches would all
    be at distance 0.

    Args:
        state: The tensors below.
        window: How many steps away a patch may be compared.
    """

    centre: Tensor  # mean of all patches, (features)
    whitening: Tensor  # (features, features)
    bank: Tensor  # (positions, images, features), half precision
    pooled: Tensor  # pooled features of the images in the memory, (images, pooled features)
    usual: Tensor  # mean distance at each position, (height, width)
    spread: Tensor  # its deviation, with a floor

    def __init__(self, state: Mapping[str, Tensor], window: int) -> None:
        super().__init__()
        self.window = window
        steps = range(2 * window + 1)
        self._shifts = [
            (top, left)
            for top, left in itertools.product(steps, steps)
            if abs(top - window) + abs(left - window) <= window  # the corners double the time, and bring nothing
        ]
        self._prepared: tuple[Tensor, Tensor] | None = None
        for name, values in state.items():
            self.register_buffer(name, values)

    @classmethod
    def fit(cls, train: PatchFeatures, *, window: int, images: int, seed: int) -> tuple[PatchMemory, Tensor]:
        """Return a memory of the patches of good images, and the distances of these, each left out.

        Args:
            train: Their features.
            window: How many steps away a patch may be compared.
            images: How many images to remember at most: those that differ most, as a whole.
            seed: Fixes what is drawn.
        """
        generator = torch.Generator().manual_seed(seed)
        patches = train[PATCHES]
        height, width = patches.shape[1:3]
        centre, whitening = _whitening(patches, generator)
        chosen = _varied(train[POOLED].double(), images, generator).sort().values
        bank = torch.stack(
            [((patches[one].float() - centre) @ whitening).half().flatten(0, 1) for one in chosen], dim=1
        )
        state = {
            "centre": centre,
            "whitening": whitening,
            "bank": bank,
            "pooled": train[POOLED][chosen].float(),
            "usual": torch.zeros(height, width),
            "spread": torch.ones(height, width),
        }
        memory = cls(state, window)
        with torch.no_grad():
            distances = torch.cat([memory(batch) for batch in in_batches(train)])
        state["usual"] = distances.mean(dim=0)
        state["spread"] = distances.std(dim=0, correction=0) + SPREAD_FLOOR * distances.std(correction=0) + 1e-6
        return cls(state, window), distances

    def forward(self, features: PatchFeatures) -> Tensor:
        """Return the distance of each patch: (images, height, width)."""
        height, width = self.usual.shape
        queries = (features[PATCHES] - self.centre) @ self.whitening
        images, shifts = queries.shape[0], self._shifts  # its `len` would make an exporter take it for a constant
        padded = functional.pad(queries, (0, 0, *(self.window,) * 4))
        # The patches that may be compared with each position of the memory: (positions, shifts × images, features).
        near = torch.stack([padded[:, top : top + height, left : left + width] for top, left in shifts])
        near = near.permute(2, 3, 0, 1, 4).reshape(height * width, len(shifts) * images, -1)
        excluded = self.excluded(features)
        if torch.compiler.is_exporting():  # one product, since each would be a step of the graph
            similarity = _largest_products(near, *_prepared(self.bank), excluded)
        else:
            if self._prepared is None:
                self._prepared = _prepared(self.bank)
            parts = (torch.split(each, POSITIONS_AT_ONCE) for each in (near, *self._prepared))
            similarity = torch.cat(
                [_largest_products(rows, known, halves, excluded) for rows, known, halves in zip(*parts, strict=True)]
            )
        similarity = similarity.reshape(height, width, len(shifts), images).permute(2, 3, 0, 1)
        # Back to where the compared patches came from; a position outside the image is at minus infinity.
        moved = [
            functional.pad(values, (left, 2 * self.window - left, top, 2 * self.window - top), value=-torch.inf)
            for values, (top, left) in zip(similarity, shifts, strict=True)
        ]
        edge = slice(self.window, None if self.window == 0 else -self.window)
        nearest = torch.stack(moved).amax(dim=0)[:, edge, edge]
        return (queries.square().sum(dim=-1) - 2 * nearest).clamp(min=0).sqrt()

    def excluded(self, features: PatchFeatures) -> Tensor:
        """Return which images of the memory each image must not be compared with: (images, images in the memory).

        That is the image itself, or the one that it is an augmented copy of, as the pooled features in SOURCE say. If
        that is all of them, as in a folder of equal images, it is none: there is nothing else to compare with.
        """
        pooled = features.get(SOURCE, features[POOLED])
        differences = (pooled[:, None] - self.pooled).square().sum(dim=-1)
        same = differences <= SAME_IMAGE**2 * self.pooled.square().sum(dim=-1)
        return same & ~same.all(dim=1, keepdim=True)

    def extended(self, features: PatchFeatures) -> PatchMemory:
        """Return a memory with the patches of more good images, whitened as those that it has."""
        patches = [((each.float() - self.centre) @ self.whitening).half().flatten(0, 1) for each in features[PATCHES]]
        bank = torch.cat([self.bank, torch.stack(patches, dim=1)], dim=1)
        pooled = torch.cat([self.pooled, features[POOLED].float()])
        return PatchMemory({**self.state_dict(), "bank": bank, "pooled": pooled}, self.window)

    def standardised(self, distances: Tensor) -> Tensor:
        """Return distances in units of what is usual at their position: about 0 ± 1 on good images."""
        return (distances - self.usual) / self.spread


def _varied(pooled: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return which images to remember: one at random, then always the one that is farthest from all before it."""
    if len(pooled) <= count:
        return torch.arange(len(pooled))
    chosen = [int(torch.randint(len(pooled), (), generator=generator))]
    nearest = torch.full((len(pooled),), torch.inf, dtype=pooled.dtype)
    while len(chosen) < count:
        nearest = torch.minimum(nearest, (pooled - pooled[chosen[-1]]).norm(dim=1))
        nearest[chosen[-1]] = -1  # equal images are at distance 0, and none may be chosen twice
        chosen.append(int(nearest.argmax()))
    return torch.tensor(chosen)


def _prepared(bank: Tensor) -> tuple[Tensor, Tensor]:
    """Return patches of the memory in single precision, and -|b|²/2 of each."""
    known = bank.float()
    return known.transpose(1, 2), -known.square().sum(dim=-1)[:, None] / 2


def _largest_products(near: Tensor, known: Tensor, halves: Tensor, excluded: Tensor) -> Tensor:
    """Return the largest b·q - |b|²/2 over the images in the memory: b is then the nearest to q."""
    products = torch.baddbmm(halves, near, known)
    if torch.compiler.is_exporting() or excluded.any():
        images, remembered = excluded.shape
        by_shift = products.reshape(len(products), -1, images, remembered)
        products = by_shift.masked_fill(excluded, -torch.inf).reshape(products.shape)
    return products.amax(dim=-1)


def _whitening(patches: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the mean of all patches, and what makes their deviations from the mean of each position white."""
    from sklearn.covariance import ledoit_wolf

    count, positions = len(patches), patches.shape[1:3].numel()
    means = torch.zeros(patches.shape[1:], dtype=torch.float64)
    for some in torch.split(patches, BATCH):
        means += some.sum(dim=0, dtype=torch.float64)
    means /= count
    chosen = torch.randperm(count * positions, generator=generator)[:SAMPLED_PATCHES].sort().values
    sampled = patches.flatten(0, 2)[chosen].double()
    deviations = sampled - means.flatten(0, 1)[chosen % positions]
    covariance, _ = ledoit_wolf(deviations.numpy(), assume_centered=True)
    if not covariance.any():  # all images are equal
        covariance += torch.eye(len(covariance), dtype=torch.float64).numpy()
    whitening = torch.linalg.cholesky(torch.linalg.inv(torch.from_numpy(covariance)))
    centre = means.mean(dim=(0, 1))
    # Images that hardly differ, such as a burst of one part, would be too large for half precision otherwise.
    largest = float(((sampled - centre) @ whitening).abs().max())
    return centre.float(), (whitening * min(1.0, LARGEST_VALUE / max(largest, 1e-9))).float()
