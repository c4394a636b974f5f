"""The values that flow from training to selection: frozen, and with no place for a label.

A selector sees `Evaluation` objects and nothing else. Every class here has slots, so nothing can be attached to them on
the way.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsv_plugins.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ANOMALOUS",
    "DETECTOR",
    "DETECTOR_PREFIX",
    "NORMAL",
    "SIDE_MULTIPLE",
    "Candidate",
    "Embeddings",
    "Evaluation",
    "Health",
    "Levels",
    "Scores",
    "Size",
    "candidate_label",
    "height_and_width",
    "size_of_same_aspect",
]

CONCENTRATED = 0.5
DETECTOR = "detector"
"""The hyperparameter that is the detector itself, in a study of several, or of one that learns without augmentation."""
DETECTOR_PREFIX = f"{DETECTOR}."
"""Begins the name of a hyperparameter that is a setting of the detector and not of the augmentation."""
LARGE = 10_000
SIDE_MULTIPLE = 16
"""Of both sides of images that are not square, since networks make maps at a fraction of the size."""
SAME_AREA = 0.2
"""Relative difference of areas up to which images of such sides are left as they are."""
SEPARABILITY_CAP = 0.5
"""More separability than this is no better: the text of the paper says so, below the equation."""

Size = int | tuple[int, int]
"""Height and width of images; one number if they are square."""
ANOMALOUS, NORMAL = "anomalous", "normal"
"""The verdicts on an image."""
Levels = tuple[int, int]
"""The values of sixteen-bit pixels that become black and white in eight bits."""


def height_and_width(size: Size) -> tuple[int, int]:
    """Return the height and the width that a size stands for."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def size_of_same_aspect(height: float, width: float, side: int) -> Size:
    """Return the size for such images: their aspect, and about the area of a square of that side."""
    if height == width:
        return side
    is_multiple = height % SIDE_MULTIPLE == 0 and width % SIDE_MULTIPLE == 0
    if is_multiple and abs(height * width / side**2 - 1) <= SAME_AREA:
        return int(height), int(width)
    scale = side / math.sqrt(height * width) / SIDE_MULTIPLE
    rows, columns = (max(2, round(length * scale)) * SIDE_MULTIPLE for length in (height, width))
    return side if rows == columns else (rows, columns)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting to try: an augmentation with its hyperparameters, and the detector to train on it.

    Attributes:
        augmentation: Name of the augmentation plugin; empty if the detector learns without.
        params: The hyperparameters that the study varies: those of the augmentation, settings of the detector, as
            detector.NAME, and the name of the detector, as detector.
        detector: Name of the detector-encoder plugin.
        detector_params: All settings of the detector, with those in `params`.
        seed: Seed of the training.
        context: What else the outcome depends on, such as versions and the fingerprint of the data.
    """

    augmentation: str
    params: Mapping[str, object]
    detector: str = ""
    detector_params: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    context: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """A short hash of everything the outcome depends on: the same candidate has the same id on every machine.

        Raises:
            InputError: A hyperparameter or setting is not plain JSON, so that it has no canonical form.
        """
        content = {
            "augmentation": self.augmentation,
            "params": dict(self.params),
            "detector": self.detector,
            "detector_params": dict(self.detector_params),
            "seed": self.seed,
            "context": dict(self.context),
        }
        try:
            canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self} has no id: {error}; give finite numbers, text, booleans or lists") from error
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def augmentation_params(self) -> dict[str, object]:
        """The hyperparameters of the augmentation alone."""
        return {
            name: value
            for name, value in self.params.items()
            if name != DETECTOR and not name.startswith(DETECTOR_PREFIX)
        }

    def __str__(self) -> str:
        return candidate_label(self.augmentation, self.params)


def candidate_label(augmentation: str, params: Mapping[str, object]) -> str:
    """Return a candidate as users see it everywhere, such as `cutpaste(patch_size=0.08)`. Numbers are rounded.

    If there are several detectors, theirs comes first, as in `patch-fusion cutpaste(patch_size=0.08)`.
    """
    shown = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(_rounded(value), default=str)}"
        for name, value in params.items()
        if name != DETECTOR
    )
    named = " ".join(filter(None, [str(params.get(DETECTOR, "")), augmentation]))
    return f"{named}({shown})" if shown else named


def _rounded(value: object) -> object:
    """Return a fraction with four digits that count, which is enough to tell the points of a range apart."""
    return float(f"{value:.4g}") if isinstance(value, float) and abs(value) < LARGE else value


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """What one trained detector makes of the images, each set a tensor of shape (images, width).

    Attributes:
        train: The normal images it was trained on.
        augmented: One augmented copy of each train image.
        test: The unlabelled images.
        holdout: Normal images kept out of training; None if the study keeps none out.
    """

    train: Tensor
    augmented: Tensor
    test: Tensor
    holdout: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The detector's anomaly scores, one per image, higher for more anomalous; the sets are those of `Embeddings`.

    Attributes:
        train: Those of the normal images it was trained on.
        test: Those of the unlabelled images.
        holdout: Those of the normal images kept out of training; None if the study keeps none out.
        augmented: Those of the augmented copies, for the report; None if the detector cannot score them.
        pseudo: Those of pseudo-anomalies that are the same for all candidates of the study: one of each image kept out
            of training, by the built-in augmentations in turn. None if the study keeps none out.
    """

    train: Tensor
    test: Tensor
    holdout: Tensor | None = None
    augmented: Tensor | None = None
    pseudo: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a training got to where the theory of DSV begins.

    Attributes:
        training_accuracy: Share of the last training images told apart correctly; None if that has no meaning.
        concentration: d(train, train) / d(train, augmented). DSV presumes that it is far below one.
    """

    training_accuracy: float | None
    concentration: float

    @property
    def concentrated(self) -> bool:
        """Whether the train embeddings are dense in the sense that the theory of DSV presumes."""
        return self.concentration <= CONCENTRATED

    @property
    def warning(self) -> str | None:
        """What to tell a user whose chosen detector this is; None if all is well."""
        if self.concentrated:
            return None
        return (
            f"the chosen detector has a concentration of {self.concentration:.2f}, and DSV presumes far less than 1: "
            "its training did not bring the normal images close together; more updates may choose better"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Everything a selector may know of one candidate.

    Attributes:
        candidate: The setting that was tried.
        embeddings: What the trained detector makes of the images.
        scores: Its anomaly scores.
        health: How well the training went; None if that was not measured.
        timings: Seconds of each part of the work, by its name.
    """

    candidate: Candidate
    embeddings: Embeddings
    scores: Scores
    health: Health | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
