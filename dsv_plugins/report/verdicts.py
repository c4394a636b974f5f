"""What the model says of the test images, as the page shows it: their scores, and those that it flags."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsv_plugins.calibration import Calibration
from dsv_plugins.report.details import heated_thumbnails, test_name
from dsv_plugins.report.drawing import histogram, thumbnail
from dsv_plugins.run.run import Run

__all__ = ["FlaggedImage", "Verdicts", "verdicts"]

MOST_IMAGES = 24
SIDE = 160
"""More pixels than other small images of the page have: these are the ones that people look at closely."""


@dataclass(frozen=True, slots=True)
class FlaggedImage:
    """One image of the gallery.

    Attributes:
        name: What people call it.
        picture: A small picture of it, as a data address; its unusual places are red if the detector says where.
        p_value: The share of good images that look at least as anomalous.
        score: Its anomaly score.
    """

    name: str
    picture: str
    p_value: float
    score: float


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the model says of the test images, by the good images that were held out.

    Attributes:
        images: The flagged ones, the most anomalous first and no more than fit.
        histogram: The scores of held-out and of test images, as `drawing.histogram` has them.
        threshold: The score above which an image is flagged.
    """

    images: list[FlaggedImage]
    histogram: dict[str, list[float]]
    threshold: float


def verdicts(run: Run) -> Verdicts | None:
    """Return what the model says of the test images; None if no good images were held out."""
    if run.findings is None:
        return None
    found = run.scores()
    calibration, scores, rate = Calibration(found["holdout"]), found["test"], run.findings.false_alarms
    p_values, alarms = calibration.p_values(scores), calibration.alarms(scores, rate)
    shown = [int(index) for index in np.lexsort((-scores, p_values)) if alarms[index]][:MOST_IMAGES]
    test = {index: run.test_image(index) for index in shown}
    heated = heated_thumbnails(run.heatmaps(), test, shown, SIDE)
    images = [
        FlaggedImage(
            name=test_name(run, index),
            picture=heated[index] if heated else thumbnail(test[index], SIDE),
            p_value=float(p_values[index]),
            score=float(scores[index]),
        )
        for index in shown
    ]
    drawn = histogram({"held-out": calibration.held_out, "test": scores})
    return Verdicts(images, drawn, calibration.threshold(rate))
