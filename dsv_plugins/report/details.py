"""What the page can show of each candidate, thinned so that a large run still opens in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv_plugins.data.overlay import heat_scale
from dsv_plugins.report.drawing import (
    SETS,
    coordinates,
    extremes,
    film,
    heated_thumbnail,
    histogram,
    principal_components,
    split,
    thumbnail,
)
from dsv_plugins.run.records import CandidateRecord
from dsv_plugins.run.run import Run
from dsv_plugins.training.projection import POINTS, thin

__all__ = ["DrawingLimits", "details", "heated_thumbnails", "test_name"]

Array = NDArray[Any]

MOST_POINTS, POINTS_IN_ALL = 300, 20_000
MOST_CURVE_POINTS = 150
LARGE_RUN = 40
THUMBNAIL_SIDE, SMALL_SIDE = 96, 48


@dataclass(frozen=True, slots=True)
class DrawingLimits:
    """How much is drawn.

    Attributes:
        points: Embeddings of each set for each candidate.
        extremes: Highest- and lowest-scored test images for each candidate.
        side: Pixels of a small image.
    """

    points: int
    extremes: int
    side: int

    @classmethod
    def of(cls, run: Run) -> DrawingLimits:
        """Return what suits the size of a run."""
        count = max(1, len(run.stored))
        large = count > LARGE_RUN
        return cls(
            points=min(MOST_POINTS, POINTS_IN_ALL // count),
            extremes=min(3 if large else 6, max(1, len(run.files["test"]) // 2)),
            side=SMALL_SIDE if large else THUMBNAIL_SIDE,
        )

    def notes(self, run: Run) -> list[str]:
        """Return what is left out, a sentence each."""
        notes = []
        rows = len(run.files["test"])
        if rows > self.points:
            notes.append(f"Maps of embeddings show {self.points} images of each set, evenly drawn (test has {rows}).")
        if rows > POINTS:
            notes.append(f"t-SNE is computed on {POINTS} images of each set.")
        notes.append("Histograms and losses are of all images.")
        return notes


def details(run: Run, limits: DrawingLimits) -> dict[str, Any]:
    """Return the candidates that can be clicked, in the order of `run.stored`, with the images that they share."""
    test = run.test_images
    used: set[int] = set()
    candidates = [_candidate(run, candidate, test, limits, used) for candidate in run.stored]
    return {
        "chosen": next(place for place, candidate in enumerate(run.stored) if candidate.id == run.chosen.id),
        "candidates": candidates,
        "films": [_film(run, candidate, limits) for candidate in run.stored],
        "thumbnails": {index: thumbnail(test[index], limits.side) for index in sorted(used)},
        "files": {row: _row_name(run, row) for row in sorted(used)},
    }


def heated_thumbnails(
    heatmaps: Array | None, test: Array | Mapping[int, Array], shown: Sequence[int], side: int
) -> dict[int, str]:
    """Return some test images with their hot places in red, by their index; empty if the detector cannot say where."""
    if heatmaps is None:
        return {}
    scale = heat_scale(heatmaps)
    return {index: heated_thumbnail(test[index], heatmaps[index], scale, side) for index in shown}


def _candidate(
    run: Run, candidate: CandidateRecord, test: Array, limits: DrawingLimits, used: set[int]
) -> dict[str, Any]:
    artifacts = run.artifacts(candidate.candidate)
    arrays = artifacts.arrays()
    embeddings = {name: arrays[f"embeddings.{name}"] for name in SETS}
    scores = {name: arrays[f"scores.{name}"] for name in SETS if f"scores.{name}" in arrays}
    projection = artifacts.projection()
    highest, lowest = extremes(scores["test"], limits.extremes)
    used.update(highest, lowest)
    return {
        "id": candidate.id,
        "label": candidate.label,
        "facts": _facts(run, candidate),
        "pca": coordinates(principal_components(_thinned(embeddings, limits.points))),
        "tsne": None if projection is None else coordinates(split(projection, _thinned(embeddings, POINTS))),
        "histogram": histogram(scores),
        "highest": [[index, float(f"{scores['test'][index]:.4g}")] for index in highest],
        "lowest": [[index, float(f"{scores['test'][index]:.4g}")] for index in lowest],
        "heated": heated_thumbnails(artifacts.heatmaps(), test, highest, limits.side),
        "curve": _curve(run, candidate),
    }


def _facts(run: Run, candidate: CandidateRecord) -> list[list[str]]:
    facts = [[f"{name} loss", f"{loss:.4g}"] for name, loss in candidate.losses.items() if loss is not None]
    facts += [
        [name, f"{value:.4g}"]
        for name, value in run.trainings[candidate.id].measures.items()
        if name not in candidate.losses
    ]
    if candidate.id in run.aucs:
        facts.append(["AUC", f"{run.aucs[candidate.id]:.3f}"])
    if candidate.health is not None:
        if candidate.health.training_accuracy is not None:
            facts.append(["training accuracy", f"{candidate.health.training_accuracy:.0%}"])
        facts.append(["concentration", f"{candidate.health.concentration:.2f}"])
    if candidate.id in run.seconds:
        facts.append(["trained in", f"{run.seconds[candidate.id]:.0f} s"])
    return facts


def _curve(run: Run, candidate: CandidateRecord) -> list[list[float]]:
    """Return the updates and the losses of a training; none of a detector that trains no network."""
    points = thin(np.array(run.trainings[candidate.id].curve, dtype=float).reshape(-1, 2), MOST_CURVE_POINTS)
    finite = [(update, loss) for update, loss in points.tolist() if math.isfinite(loss)] if points[:, 1].any() else []
    return [[update for update, _ in finite], [float(f"{loss:.4g}") for _, loss in finite]]


def test_name(run: Run, index: int) -> str:
    """Return the last two parts of a test image's path: what people call it."""
    return "/".join(Path(run.files["test"][index]).parts[-2:])


def _row_name(run: Run, row: int) -> str:
    """Return the name of what a row of the test set shows: an image, or a tile of one."""
    tiles = run.tiles.count if run.tiles else 1
    place = f", tile {row % tiles + 1} of {tiles}" if tiles > 1 else ""
    return f"{test_name(run, row // tiles)}{place}"


def _film(run: Run, candidate: CandidateRecord, limits: DrawingLimits) -> str | None:
    images = run.artifacts(candidate.candidate).preview()
    return None if images is None else film(images, limits.side * 3 // 4)


def _thinned(sets: dict[str, Array], limit: int) -> dict[str, Array]:
    return {name: thin(points, limit) for name, points in sets.items()}
