"""Pixel measures of heatmaps, from masks of defects: `TASK/ground_truth/DEFECT/NAME_mask.png`, or `NAME.png`.

Heatmaps are resized to the size at which the images are stored, as is usual, and so are the masks. At the size of the
heatmaps, which may be far smaller, a defect would grow to the patches that it touches, and the number would depend on
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
from scipy.ndimage import label

from dsv_plugins.errors import InputError, reason_of
from dsv_plugins.pixels import FORMATS
from dsv_plugins.run.artifacts import open_images, read_image_index
from dsv_plugins.run.folder import RunFolder

__all__ = ["AUPRO", "AUROC", "MEASURES", "PIMO", "Masks", "pixel_measures", "read_masks"]

Array = NDArray[Any]

MEASURES = AUROC, AUPRO, PIMO = "auroc", "aupro", "pimo"
PRO_LIMIT = 0.3
PIMO_RANGE = 1e-5, 1e-4


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


def read_masks(run: Path, ground_truth: Path, labels: Sequence[bool]) -> Masks:
    """Return the masks of a run's test images, at the size at which these are stored; good images need none."""
    data = RunFolder(run).data
    files = [Path(file) for file in read_image_index(data).files["test"]]
    height, width = open_images(data, "test").shape[-2:]
    rows, defective, notes = [], [], []
    for row, (file, anomalous) in enumerate(zip(files, labels, strict=True)):
        try:
            mask = _mask(ground_truth / file.parent.name, file.stem, height, width) if anomalous else None
        except InputError as error:
            notes.append(f"{file} is left out of the pixel measures: {error}")
            continue
        rows.append(row)
        defective.append(np.zeros((height, width), dtype=bool) if mask is None else mask)
    return Masks(rows, np.array(defective).reshape(-1, height, width), notes)


def pixel_measures(heatmaps: Array, masks: Masks) -> dict[str, float]:
    """Return the AUROC of all pixels, AUPRO and PIMO; empty if a value is not finite or all pixels are of one kind.

    AUPRO (Bergmann et al. 2021) is the mean share of each defect that is found, averaged over thresholds at which up to
    30 % of the good pixels are found too. PIMO (Bertoldo et al. 2024) is the share of each image's defects, averaged
    over thresholds at which 1 in 100,000 to 1 in 10,000 pixels of good images are, on a logarithmic scale. Each is a
    mean over defective pixels of how few good ones are hotter, so no curve needs to be drawn.

    Args:
        heatmaps: How unusual each patch of each test image is, of any height and width.
        masks: Which pixels are defective.
    """
    patches = torch.from_numpy(heatmaps[masks.rows].astype(np.float32))[:, None]
    size = masks.defective.shape[1:]
    pixels = torch.nn.functional.interpolate(patches, size, mode="bilinear", antialias=True)[:, 0].numpy()
    good = np.sort(pixels[~masks.defective])
    if not masks.defective.any() or not len(good) or not np.isfinite(pixels).all():
        return {}
    shares = [_hotter(good, heat[mask]) for heat, mask in zip(pixels, masks.defective, strict=True)]
    of_regions = []
    for mask, hotter in zip(masks.defective, shares, strict=True):
        regions = label(mask, np.ones((3, 3)))[0][mask]
        of_regions += [np.clip(PRO_LIMIT - hotter[regions == one], 0, None).mean() for one in np.unique(regions)]
    measures = {AUROC: 1 - np.concatenate(shares).mean(), AUPRO: np.mean(of_regions) / PRO_LIMIT}
    has_defect = masks.defective.any(axis=(1, 2))
    if not has_defect.all():
        normal = np.sort(pixels[~has_defect], axis=None)
        low, high = PIMO_RANGE
        of_images = [
            np.log(high / _hotter(normal, heat[mask]).clip(low, high)).mean() / np.log(high / low)
            for heat, mask in zip(pixels[has_defect], masks.defective[has_defect], strict=True)
        ]
        measures[PIMO] = np.mean(of_images)
    return {name: float(value) for name, value in measures.items()}


def _hotter(known: Array, values: Array) -> Array:
    """Return the share of known values, in rising order, that is above each value, ties by half."""
    below = np.mean([np.searchsorted(known, values, side) for side in ("left", "right")], axis=0)
    shares: Array = 1 - below / len(known)
    return shares


def _mask(folder: Path, name: str, height: int, width: int) -> Array:
    """Return which pixels of one image are defective.

    Raises:
        InputError: There is no such mask, or it cannot be read.
    """
    files = [folder / f"{name}_mask.png", folder / f"{name}.png"]
    file = next((each for each in files if each.exists()), None)
    if file is None:
        raise InputError(f"{folder} has no {files[0].name}")
    try:
        with Image.open(file, formats=FORMATS) as image:
            drawn = np.asarray(image.convert("L")) > 0  # some masks have 0 and 1, others 0 and 255
    except Exception as error:  # Pillow raises many kinds on damaged files
        raise InputError(f"{file} cannot be read as an image ({reason_of(error)})") from error
    # A pixel that holds any part of a defect is defective: otherwise fine scratches would be lost.
    shares = Image.fromarray(drawn.astype(np.float32)).resize((width, height), Image.Resampling.BOX)
    return np.asarray(shares) > 0
