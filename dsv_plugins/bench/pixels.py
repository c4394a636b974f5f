"""The pixel AUROC of heatmaps, from masks of defects: `TASK/ground_truth/DEFECT/NAME_mask.png`, or `NAME.png`.

Heatmaps are resized to the size at which the images are stored, as is usual, and so are the masks. At the size of the
heatmaps, which may be far smaller, a defect would grow to the places that it touches, and the number would depend on
the detector's grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.frames import cell_frame, strict_means
from dsv_plugins.bench.table import Table
from dsv_plugins.errors import InputError, reason_of
from dsv_plugins.store.artifacts import open_images, read_image_index
from dsv_plugins.store.folder import RunFolder
from dsv_plugins.study.result import Result

__all__ = ["Masks", "measure_pixels", "pixel_auc", "pixels_table", "read_masks"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """Which pixels of a run's test images are defective.

    Attributes:
        rows: The test images of which that is known, in the run's order.
        defective: Whether each of their pixels is: (images, height, width).
        notes: Which images are left out and why, a line each.
    """

    rows: Sequence[int]
    defective: Array
    notes: Sequence[str]


def measure_pixels(result: Result, ground_truth: Path, labels: Sequence[bool]) -> tuple[dict[str, float], list[str]]:
    """The pixel AUROC of each candidate by its id, and which images are left out, a line each.

    There are none if the task has no masks, or the detector no heatmaps.

    Args:
        result: A finished study.
        ground_truth: The folder of the masks.
        labels: Whether each test image is anomalous.
    """
    if not ground_truth.is_dir():
        return {}, []
    masks = read_masks(result.run, ground_truth, labels)
    aucs: dict[str, float | None] = {}
    for entry in result.candidates:
        heatmaps = result.heatmaps(entry.candidate) if entry.status == "finished" else None
        if heatmaps is not None:
            aucs[entry.candidate.id] = pixel_auc(heatmaps, masks)
    return {name: auc for name, auc in aucs.items() if auc is not None}, list(masks.notes) if aucs else []


def read_masks(run: Path, ground_truth: Path, labels: Sequence[bool]) -> Masks:
    """The masks of a run's test images, at the size at which these are stored; good images need none."""
    data = RunFolder(run).data
    files = [Path(file) for file in read_image_index(data).files["test"]]
    height, width = open_images(data, "test").shape[-2:]
    rows, defective, notes = [], [], []
    for row, (file, anomalous) in enumerate(zip(files, labels, strict=True)):
        try:
            mask = _mask(ground_truth / file.parent.name, file.stem, height, width) if anomalous else None
        except InputError as error:
            notes.append(f"{file} is left out of the pixel AUROC: {error}")
            continue
        rows.append(row)
        defective.append(np.zeros((height, width), dtype=bool) if mask is None else mask)
    return Masks(rows, np.array(defective).reshape(-1, height, width), notes)


def pixel_auc(heatmaps: Array, masks: Masks) -> float | None:
    """The AUROC of all pixels; None if a value is not finite, or no pixel is defective, or all are.

    Args:
        heatmaps: How unusual each place of each test image is, of any height and width.
        masks: Which pixels are defective.
    """
    places = torch.from_numpy(heatmaps[masks.rows].astype(np.float32))[:, None]
    size = masks.defective.shape[1:]
    pixels = torch.nn.functional.interpolate(places, size, mode="bilinear", antialias=True)[:, 0].numpy()
    defective, good = pixels[masks.defective], pixels[~masks.defective]
    if not len(defective) or not len(good) or not np.isfinite(pixels).all():
        return None
    # The share of pairs in which the defective pixel is hotter, ties by half. It is what `roc_auc_score` gives, which
    # would hold several copies of all pixels in double precision.
    good.sort()
    wins = sum(int(np.searchsorted(good, defective, side).sum()) for side in ("left", "right")) / 2
    return wins / len(defective) / len(good)


def pixels_table(cells: Sequence[Cell]) -> Table:
    """The mean pixel AUROC of each method over the tasks that have masks, for each augmentation."""
    measured = [cell for cell in cells if cell.pixel_aucs]
    tasks = strict_means(cell_frame(measured, lambda cell: cell.pixel_aucs), "augmentation", "task")
    counts = [len({cell.task for cell in some}) for some in (measured, cells)]
    return Table(
        "pixels",
        "Average pixel AUROC",
        strict_means(tasks, "augmentation"),
        note=f"Of the heatmaps of the same choices, over all pixels of the test images; mean over the {counts[0]} of "
        f"{counts[1]} tasks with masks. Average is the mean of the candidates, best the highest pixel AUROC of one.",
    )


def _mask(folder: Path, name: str, height: int, width: int) -> Array:
    """Which pixels of one image are defective.

    Raises:
        InputError: There is no such mask, or it cannot be read.
    """
    files = [folder / f"{name}_mask.png", folder / f"{name}.png"]
    file = next((each for each in files if each.exists()), None)
    if file is None:
        raise InputError(f"{folder} has no {files[0].name}")
    try:
        with Image.open(file) as image:
            drawn = np.asarray(image.convert("L")) > 0  # some masks have 0 and 1, others 0 and 255
    except Exception as error:  # Pillow raises many kinds on damaged files
        raise InputError(f"{file} cannot be read as an image ({reason_of(error)})") from error
    # A pixel that holds any part of a defect is defective: otherwise fine scratches would be lost.
    shares = Image.fromarray(drawn.astype(np.float32)).resize((width, height), Image.Resampling.BOX)
    return np.asarray(shares) > 0
