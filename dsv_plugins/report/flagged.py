"""The test images that the model flags as anomalous, as the page shows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsv_plugins.calibration import Calibration
from dsv_plugins.report.details import heated_thumbnails, test_name
from dsv_plugins.report.drawing import thumbnail
from dsv_plugins.run.run import Run

__all__ = ["FlaggedImage", "flagged_images"]

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


def flagged_images(run: Run) -> list[FlaggedImage]:
    """The flagged test images, the most anomalous first and no more than fit; empty if the run has no findings."""
    if run.findings is None:
        return []
    found = run.scores()
    calibration, scores = Calibration(found["holdout"]), found["test"]
    p_values, alarms = calibration.p_values(scores), calibration.alarms(scores, run.findings.false_alarms)
    shown = [int(index) for index in np.lexsort((-scores, p_values)) if alarms[index]][:MOST_IMAGES]
    test = {index: run.test_image(index) for index in shown}
    heated = heated_thumbnails(run.heatmaps(), test, shown, SIDE)
    return [
        FlaggedImage(
            name=test_name(run, index),
            picture=heated[index] if heated else thumbnail(test[index], SIDE),
            p_value=float(p_values[index]),
            score=float(scores[index]),
        )
        for index in shown
    ]
