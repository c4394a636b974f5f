"""Decisions without labels, from the scores of good images that were kept out of training.

If a new good image is exchangeable with those that were kept out, its p-value is at most α with a probability of at
most α, whatever the detector. So an alarm at p ≤ α is false with that probability (split conformal prediction).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsv_plugins.errors import InputError

__all__ = [
    "DEFAULT_FALSE_ALARMS",
    "Calibration",
    "Findings",
    "check_promise",
    "check_rate",
    "combined_scores",
    "discoveries",
    "findings",
    "images_for",
    "images_to_keep_out",
    "lowest_rate",
    "score_scale",
]

Array = NDArray[Any]

DEFAULT_FALSE_ALARMS = 0.05
LEAST_ASKED_FOR = 2
LEAST_KEPT_OUT, USUALLY_KEPT_OUT, MOST_KEPT_OUT = 5, 19, 100
"""Fewer than 5 good images decide nothing; 19 are enough for one false alarm in 20; more than 100 are a waste."""
STOREY = 0.5
"""P-values above it are taken to be those of good images, when the share of anomalies is estimated."""
RESAMPLES = 500
INTERVAL = (0.025, 0.975)
BY_CHANCE = 0.05
WIDE = 0.5
"""An interval of the share of anomalies that says nothing."""
MOST = 0.5
"""A larger share of anomalies is rarer than a change of all images."""
ROUNDING = 1e-9
"""0.29 · 100 must be 29."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What scores of good images are like, from images that the detector was not trained on.

    Attributes:
        held_out: Their scores.
    """

    held_out: Array

    def __post_init__(self) -> None:
        scores = np.sort(np.asarray(self.held_out, dtype=np.float64))
        if not len(scores) or not np.isfinite(scores).all():
            raise InputError("a threshold needs at least one score of a good image, and all of them finite")
        object.__setattr__(self, "held_out", scores)

    @property
    def lowest_rate(self) -> float:
        """The lowest false-alarm rate that can be promised."""
        return lowest_rate(len(self.held_out))

    @property
    def default_rate(self) -> float:
        """One false alarm in twenty good images, or the lowest rate that can be promised if that is higher."""
        return max(DEFAULT_FALSE_ALARMS, self.lowest_rate)

    def p_values(self, scores: ArrayLike) -> Array:
        """For each score, (1 + the held-out scores that are at least as large) / (n + 1)."""
        at_least = len(self.held_out) - np.searchsorted(self.held_out, np.asarray(scores, dtype=np.float64), "left")
        result: Array = (1 + at_least) / (len(self.held_out) + 1)
        return result

    def threshold(self, false_alarms: float) -> float:
        """Return the score above which there is an alarm: exactly for those with a p-value of at most `false_alarms`.

        Raises:
            InputError: The rate is not between 0 and 1, or lower than can be promised.
        """
        check_rate("false_alarms", false_alarms)
        allowed = self.allowed_alarms(false_alarms)
        if allowed == 0:
            raise InputError(
                f"{len(self.held_out)} held-out images cannot promise a false-alarm rate of {false_alarms:g}, "
                f"only {self.lowest_rate:.3g} or more; ask for that, or recalibrate with {images_for(false_alarms)} "
                "good images"
            )
        return float(self.held_out[-allowed])

    def alarms(self, scores: ArrayLike, false_alarms: float) -> Array:
        """Return whether each score is an alarm."""
        result: Array = np.asarray(scores, dtype=np.float64) > self.threshold(false_alarms)
        return result

    def allowed_alarms(self, false_alarms: float) -> int:
        """Return how many of n + 1 good images may be false alarms."""
        return math.floor(false_alarms * (len(self.held_out) + 1) + ROUNDING)


def lowest_rate(images: int) -> float:
    """Return the lowest false-alarm rate that so many held-out images can promise."""
    return 1 / (images + 1)


def images_for(rate: float) -> int:
    """Return how many held-out images it takes to promise a false-alarm rate."""
    return math.ceil(1 / rate - ROUNDING) - 1


def score_scale(train: ArrayLike) -> tuple[float, float]:
    """Return the mean and the deviation of a detector's scores of its train images.

    Not of those kept out: if these decided how much each detector of an ensemble counts, they would no longer be like
    new images, and the false alarms no longer as rare as promised.
    """
    scores = np.asarray(train, dtype=np.float64)
    deviation = float(scores.std())
    return float(scores.mean()), deviation if deviation > 0 else 1.0


def combined_scores(
    detectors: Sequence[Mapping[str, ArrayLike]], shares: Sequence[float] | None = None, *, tiles: int = 1
) -> dict[str, Array]:
    """The scores of several detectors as one: the weighted mean of their scores, each standardised by its train images.

    One detector alone keeps its scores as they are.

    Args:
        detectors: The scores of each: `train`, `test` and, if good images were kept out of training, `holdout`.
        shares: How much each counts; all alike if None.
        tiles: How many rows are one image, whose score is the largest of theirs.
    """
    if tiles > 1:
        return {
            name: scores.reshape(-1, tiles).max(axis=1) for name, scores in combined_scores(detectors, shares).items()
        }
    if len(detectors) == 1:
        return {name: np.asarray(scores) for name, scores in detectors[0].items()}
    scales = [score_scale(scores["train"]) for scores in detectors]
    return {
        name: np.average(
            [
                (np.asarray(scores[name], dtype=np.float64) - mean) / deviation
                for scores, (mean, deviation) in zip(detectors, scales, strict=True)
            ],
            axis=0,
            weights=shares,
        )
        for name in detectors[0]
    }


def images_to_keep_out(images: int, share: float | None = None) -> int:
    """Return how many of these good images are kept out of training, to decide by.

    Args:
        images: How many there are.
        share: The share that somebody asked for; if None, a fifth, but 19 to 100, and never more than a third.

    Raises:
        InputError: It is no share.
    """
    if share is None:
        count = min(MOST_KEPT_OUT, max(USUALLY_KEPT_OUT, images // 5), images // 3)
        return count if count >= LEAST_KEPT_OUT else 0
    if not 0 <= share < 1:
        raise InputError(f"holdout is {share}; give a share of the train images from 0 to below 1")
    return max(LEAST_ASKED_FOR, round(share * images)) if share else 0


def check_rate(name: str, rate: float) -> None:
    """Refuse a rate that is not between 0 and 1."""
    is_number = isinstance(rate, (int, float))
    if not is_number or not 0 < rate < 1:
        raise InputError(
            f"{name} is {format(rate, 'g') if is_number else repr(rate)}; give a rate between 0 and 1, such as 0.05"
        )


def check_promise(false_alarms: float, images: int, share: float | None = None) -> None:
    """Refuse a rate that too few good images could promise, before anything is trained.

    Args:
        false_alarms: The rate.
        images: How many good images there are.
        share: Which share of them is kept out of training, as for `images_to_keep_out`.
    """
    kept_out = images_to_keep_out(images, share)
    lowest = lowest_rate(kept_out)
    if lowest > false_alarms + ROUNDING:
        promise = f"which can promise {lowest:.3g} or more; ask for that, or" if kept_out else "so no rate is promised;"
        raise InputError(
            f"false_alarms is {false_alarms:g}, but {kept_out} of the {images} good images are kept out of training, "
            f"{promise} give more good images"
        )


def discoveries(p_values: Array, rate: float) -> Array:
    """Return which images of a batch are anomalous, such that at most a share `rate` of these is expected to be good.

    That is the procedure of Benjamini and Hochberg, which holds for p-values from one set of held-out images.
    """
    from scipy.stats import false_discovery_control

    check_rate("false_discoveries", rate)
    if not len(p_values):
        return np.zeros(0, dtype=bool)
    result: Array = false_discovery_control(p_values) <= rate
    return result


@dataclass(frozen=True, slots=True)
class Findings:
    """What a detector finds among unlabelled images.

    Attributes:
        images: How many there are.
        flagged: How many are alarms.
        false_alarms: The rate of false alarms that was asked for.
        held_out: The good images by which that was decided.
        share: The estimated share of anomalies.
        lowest_share: Lower end of its 95 % interval.
        highest_share: Upper end.
        by_chance: Whether they may all be good: as many could be flagged by chance, and the share may be 0.
    """

    images: int
    flagged: int
    false_alarms: float
    held_out: int
    share: float
    lowest_share: float
    highest_share: float
    by_chance: bool

    def __str__(self) -> str:
        flagged = (
            f"{self.flagged} of {self.images} test images are flagged at a false-alarm rate of "
            f"{100 * self.false_alarms:.3g} % (by {self.held_out} good images kept out of training)"
        )
        if self.by_chance:
            return f"{flagged}, as many as chance flags among good images"
        if self.highest_share - self.lowest_share > WIDE:
            return f"{flagged}; they are too few to estimate how many are anomalous"
        return (
            f"{flagged}; about {100 * self.share:.0f} % of the test images are anomalous (95 % interval "
            f"{100 * self.lowest_share:.0f} to {100 * self.highest_share:.0f} %)"
        )

    @property
    def warning(self) -> str | None:
        """A warning if nearly all test images look like good ones, or most of them do not; None otherwise."""
        if self.by_chance:
            return (
                f"{self.flagged} of {self.images} test images are flagged, as many as chance flags among good images: "
                "the test images may hold no anomalies, and can hardly have told the candidates apart"
            )
        if self.lowest_share > MOST:
            return (
                f"at least {self.lowest_share:.0%} of the test images look unlike the good images kept out of "
                "training: if fewer are anomalous, all images have changed, and good ones are flagged more often than "
                "promised; recalibrate with new good images"
            )
        return None


def findings(calibration: Calibration, scores: ArrayLike, *, seed: int = 0) -> Findings:
    """Return what a detector's scores of unlabelled images say about them, at the default rate of false alarms."""
    from scipy.stats import betabinom

    test, rate = np.asarray(scores, dtype=np.float64), calibration.default_rate
    flagged = int(calibration.alarms(test, rate).sum())
    # How many of m new good images exceed the k-th largest of n others follows this distribution exactly.
    allowed, held_out = calibration.allowed_alarms(rate), len(calibration.held_out)
    chance = float(betabinom.sf(flagged - 1, len(test), allowed, held_out + 1 - allowed))
    generator = np.random.default_rng(seed)
    drawn = [
        _anomaly_share(Calibration(generator.choice(calibration.held_out, held_out)), generator.choice(test, len(test)))
        for _ in range(RESAMPLES)
    ]
    lowest, highest = np.quantile(drawn, INTERVAL)
    return Findings(
        images=len(test),
        flagged=flagged,
        false_alarms=rate,
        held_out=held_out,
        share=_anomaly_share(calibration, test),
        lowest_share=float(lowest),
        highest_share=float(highest),
        by_chance=chance > BY_CHANCE and bool(lowest <= 0),
    )


def _anomaly_share(calibration: Calibration, scores: Array) -> float:
    """Storey's estimate: large p-values are those of good images, of which a known share is large.

    Anomalies that look like good images have large p-values, too, and are not counted.
    """
    count = len(calibration.held_out) + 1
    large = float((calibration.p_values(scores) > STOREY).mean())
    expected = 1 - math.floor(STOREY * count) / count
    return max(0.0, 1 - large / expected)
