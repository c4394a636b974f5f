"""One candidate in, one evaluation out."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsv_plugins.data.dataset import Dataset
from dsv_plugins.losses import concentration, discordance, separability
from dsv_plugins.plugins.interfaces import Augmentation, DetectorEncoder, Progress
from dsv_plugins.plugins.records import AugmentationPlugin, DetectorEncoderPlugin
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.seeding import derived_seed
from dsv_plugins.training.guard import CheckedDetector, GuardedAugmentation
from dsv_plugins.training.pseudo_anomalies import NEUTRAL, SIZES
from dsv_plugins.transforms import as_float
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores

__all__ = ["evaluate", "heatmaps", "make_augmentation", "make_detector", "measures", "preview"]

AUGMENTED_COPIES, PREVIEW_COPIES, SCORED_COPIES = 1, 2, 3
"""Separate the draws of augmented copies from those of the training, and from each other."""
PREVIEW_IMAGES = 4
SCORED_BATCH = 64


def make_detector(registry: Registry, candidate: Candidate) -> DetectorEncoder:
    """Return a new detector with the candidate's settings."""
    return registry.create(DetectorEncoderPlugin, candidate.detector, candidate.detector_params)


def make_augmentation(registry: Registry, candidate: Candidate) -> GuardedAugmentation:
    """Return the augmentation with the candidate's hyperparameters, guarded; a neutral one if it has none."""
    name = candidate.augmentation or NEUTRAL
    params = candidate.augmentation_params if candidate.augmentation else {"patch_size": SIZES}
    return GuardedAugmentation(
        registry.create(AugmentationPlugin, name, params), registry.label(AugmentationPlugin, name)
    )


def evaluate(
    candidate: Candidate,
    dataset: Dataset,
    detector: DetectorEncoder,
    augmentation: Augmentation,
    *,
    label: str,
    updates: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Train a detector on an augmentation, and collect what selectors look at.

    Args:
        candidate: What is trained.
        dataset: The images.
        detector: Its detector, new or partly trained.
        augmentation: Its augmentation.
        label: What names the detector in an error.
        updates: How far to train; None for the detector's whole budget.
        progress: Called during the training.
    """
    started = time.monotonic()
    detector.fit(dataset.train, augmentation, updates=updates, seed=candidate.seed, progress=progress)
    trained = time.monotonic()

    checked = CheckedDetector(detector, label)
    holdout = dataset.holdout
    augmented, augmented_scores = _judge_augmented(checked, dataset.train, augmentation, candidate.seed)
    embeddings = Embeddings(
        train=checked.encode(dataset.train),
        augmented=augmented,
        test=checked.encode(dataset.test),
        holdout=None if holdout is None else checked.encode(holdout),
    )
    scores = Scores(
        train=checked.score(dataset.train),
        test=checked.score(dataset.test),
        holdout=None if holdout is None else checked.score(holdout),
        augmented=augmented_scores,
        pseudo=None if dataset.pseudo is None else checked.score(dataset.pseudo),
    )
    health = Health(
        training_accuracy=detector.training_accuracy,
        concentration=float(concentration(embeddings.train, embeddings.augmented)),
    )
    timings = {"training": trained - started, "encoding": time.monotonic() - trained}
    return Evaluation(candidate, embeddings, scores, health, timings)


def preview(train: Tensor, augmentation: Augmentation, seed: int) -> np.ndarray[Any, Any]:
    """Return the first train images under the augmentation: the same images and draws for every candidate."""
    generator = torch.Generator().manual_seed(derived_seed(seed, PREVIEW_COPIES))
    copies = augmentation(as_float(train[:PREVIEW_IMAGES]), generator=generator)
    return (copies.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def measures(embeddings: Embeddings) -> dict[str, float]:
    """Return the two parts of DSV, whatever the selectors: the report shows them beside every loss."""
    sets = (embeddings.train, embeddings.augmented, embeddings.test)
    return {"discordance": float(discordance(*sets)), "separability": float(separability(*sets))}


def heatmaps(detector: DetectorEncoder, test: Tensor, *, label: str) -> np.ndarray[Any, Any] | None:
    """Return how unusual each patch of each test image is, in half precision; None if the detector cannot say."""
    found = CheckedDetector(detector, label).heatmap(test)
    return None if found is None else found.half().numpy()


def _judge_augmented(
    checked: CheckedDetector, train: Tensor, augmentation: Augmentation, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the embeddings and the scores of one augmented copy of each train image."""
    learned = checked.learned_copies(len(train))
    if learned is not None:
        return learned
    copies, scored = (
        torch.Generator().manual_seed(derived_seed(seed, draws)) for draws in (AUGMENTED_COPIES, SCORED_COPIES)
    )
    batches = torch.split(torch.arange(len(train)), SCORED_BATCH)  # one at a time, since copies are floats
    detector = checked.detector
    if not detector.has_frozen_part:
        embeddings = checked.encode_augmented(train, augmentation, generator=copies)
        scores = [checked.score(augmentation(as_float(train[rows]), generator=scored)) for rows in batches]
        return embeddings, torch.cat(scores)

    def judged(rows: Tensor) -> tuple[Tensor, Tensor]:
        augmented = augmentation(as_float(train[rows]), generator=copies)
        detector.prepare_copies(augmented, train, rows)  # the frozen part, which takes most time, sees each copy once
        return checked.encode(augmented), checked.score(augmented)

    judgements = list(map(judged, batches))
    return torch.cat([embeddings for embeddings, _ in judgements]), torch.cat([scores for _, scores in judgements])
