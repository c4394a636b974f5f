"""The detector `patch-fusion`: pseudo-anomalies teach it which component scores of `patch-memory` count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv_plugins import Augmentation, Progress
from dsv_plugins.builtin.detectors.patch_memory.detector import PatchMemoryDetector
from dsv_plugins.seeding import derived_seed
from dsv_plugins.toolkit.saved_files import fitted
from dsv_plugins.transforms import as_float

__all__ = ["PatchFusionDetector", "fit_weights"]

COPIES = 6
"""Separates the draws of the augmentation from others."""
COPY_BATCH = 16
LARGEST = (1, 3, 10, 30)
"""How many of the largest patch distances are averaged: small defects show in the first, large ones in the last."""
PENALTY = 0.05
"""Of the squared weights, which shares them among components that say the same."""

Array = NDArray[np.float64]


class PatchFusionDetector(PatchMemoryDetector):
    """Learns from an augmented copy of each good image how to weigh the component scores of `patch-memory`.

    Good images and copies are both scored as if the image were not in the memory. What is trained is a logistic
    regression with weights that are not negative: a component may count for nothing, but never the wrong way round.
    """

    learns_from_augmentation = True
    merges = True
    damped = True
    shared_updates = 1

    @property
    def training_accuracy(self) -> float | None:
        """The share of good images and copies told apart correctly, both kinds counted alike."""
        return self._accuracy

    _accuracy: float | None = None
    _copies: Tensor | None = None

    @property
    def _largest(self) -> Sequence[int]:
        return LARGEST

    def _learned_weights(
        self, images: Tensor, augmentation: Augmentation, seed: int, progress: Progress | None
    ) -> Tensor:
        """Return the weights that tell good images from augmented copies."""
        generator = torch.Generator().manual_seed(derived_seed(seed, COPIES))
        copies = []
        for rows in torch.split(torch.arange(len(images)), COPY_BATCH):
            augmented = augmentation(as_float(images[rows]).float(), generator=generator)
            self.prepare_copies(augmented, images, rows)
            copies.append(self.encode(augmented))
            if progress is not None:
                progress(sum(map(len, copies)), len(images), 0.0)
        self._copies = torch.cat(copies)
        normal, pseudo = (rows.double().numpy() for rows in (fitted(self._components).train_rows.asinh(), self._copies))
        weights, bias = fit_weights(normal, pseudo)
        self._accuracy = float(np.mean(normal @ weights + bias <= 0) + np.mean(pseudo @ weights + bias > 0)) / 2
        if not weights.any():  # the augmentation changes nothing that can be seen
            weights = np.ones_like(weights)
        return torch.from_numpy(weights).float()

    def learned_copies(self) -> tuple[Tensor, Tensor] | None:
        """Return the embeddings and scores of the copies: an embedding does not depend on what is learned."""
        return None if self._copies is None else (self._copies, fitted(self._head).of_embeddings(self._copies))

    def merge(self, folders: Sequence[Path], shares: Sequence[float], scales: Sequence[tuple[float, float]]) -> None:
        """Become one detector: all have the same memory, and their heads are weighted sums of its components."""
        from dsv_plugins.builtin.detectors.patch_memory.components import Head

        self.load(folders[0])
        heads = [fitted(self._read_head(folder)) for folder in folders]
        self._head = Head.merged(heads, shares, scales)


def fit_weights(normal: Array, pseudo: Array) -> tuple[Array, float]:
    """Return the weights and the bias of a logistic regression, both kinds of rows counted alike, no weight negative.

    Args:
        normal: Component scores of good images.
        pseudo: Those of augmented copies.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    rows = np.concatenate([normal, pseudo])
    target = np.repeat([0.0, 1.0], [len(normal), len(pseudo)])
    shares = np.repeat([0.5 / len(normal), 0.5 / len(pseudo)], [len(normal), len(pseudo)])

    def loss(parameters: Array) -> tuple[float, Array]:
        weights, logits = parameters[:-1], rows @ parameters[:-1] + parameters[-1]
        value = shares @ (np.logaddexp(0, logits) - target * logits) + PENALTY / 2 * weights @ weights
        slopes = shares * (expit(logits) - target)
        return float(value), np.append(rows.T @ slopes + PENALTY * weights, slopes.sum())

    bounds = [(0, None)] * rows.shape[1] + [(None, None)]
    found = minimize(loss, np.zeros(rows.shape[1] + 1), jac=True, method="L-BFGS-B", bounds=bounds).x
    return found[:-1], float(found[-1])
