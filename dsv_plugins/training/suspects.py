"""Good images that look least like the others: a defective one among them teaches that its defect is good."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.training.job import threads

__all__ = ["SUSPICIOUS", "suspects", "suspects_notes", "unlikeness", "unlikeness_of_images"]

JUDGE, SCORES = "patch-memory", ("raw", "standardised")
"""It needs no augmentation, and scores each image that it was fitted to as if that one had been left out. On some parts
one of its scores shows defects, and on some the other."""
LEAST_SIZE, MOST_SIZE = 32, 256
"""Of the images that it looks at."""
SUSPICIOUS = 4.0
"""The unlikeness above which an image is a suspect: docs/benchmarks.md has how that was found."""
ENOUGH, EXAMPLES = 20, 3
QUARTILE = 0.6745
"""Of a normal distribution, in deviations."""

Array = NDArray[Any]


def unlikeness(scores: ArrayLike) -> Array:
    """Return how far scores lie above their median, in deviations as the lower half has them.

    Defective images are in the upper half, so that they do not change the measure by much.
    """
    values = np.asarray(scores, dtype=np.float64)
    quarter, middle = np.quantile(values, [0.25, 0.5])
    result: Array = (values - middle) / max((middle - quarter) / QUARTILE, np.finfo(np.float64).tiny)
    return result


def unlikeness_of_images(registry: Registry, images: Tensor, rows: int = 1) -> Array:
    """Return how unlike the others each image is, by the score that says more.

    Args:
        registry: Where the detector that compares them is found.
        images: Good images, uint8.
        rows: How many rows are one image, such as its tiles; the most unusual one counts.
    """
    size = min(MOST_SIZE, max(LEAST_SIZE, round(math.sqrt(images.shape[-2] * images.shape[-1]))))
    detectors = [registry.create(DetectorEncoderPlugin, JUDGE, {"image_size": size, "score": each}) for each in SCORES]
    found = []
    with threads(1):  # whatever the machine, the same images are left out
        features = detectors[0].frozen_features(images)
        for detector in detectors:
            detector.reuse_features(images, features)
            detector.fit(images, lambda batch, *, generator: batch)
            found.append(unlikeness(detector.score(images).numpy().reshape(-1, rows).max(axis=1)))
    result: Array = np.max(found, axis=0)
    return result


def suspects(found: Array, rate: float) -> list[int]:
    """Return the places of suspects, the most unlike first: no more than a share `rate` of all images.

    Of fewer than 20 images there are none: what is usual is not known well enough.
    """
    if len(found) < ENOUGH:
        return []
    most = math.floor(rate * len(found) + 1e-9)
    return [place for place in np.argsort(-found, kind="stable").tolist() if found[place] > SUSPICIOUS][:most]


def suspects_notes(scores: Mapping[str, Array], files: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line about the good images that a trained model finds most unlike the others; empty without suspects.

    Args:
        scores: Its scores of each set of images.
        files: The files of each set.
    """
    names = [(name, place) for name in ("train", "holdout") if name in scores for place in range(len(scores[name]))]
    found = unlikeness(np.concatenate([scores[name] for name in ("train", "holdout") if name in scores]))
    places = suspects(found, 1.0)
    if not places:
        return []
    examples = ", ".join(
        f"{files[name][place]} ({found[row]:.1f})" for row in places[:EXAMPLES] for name, place in [names[row]]
    )
    return [
        f"{len(places)} of the {len(found)} good images look unlike the others, such as {examples}; if they are "
        "defective, defects like theirs are not found: remove them (dsv audit lists them), or give --drop-suspects 0.1"
    ]
