"""What is drawn of one candidate: points in the plane, histograms, small images. Limited in size for any run."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dsv_plugins.data.overlay import overlay

__all__ = [
    "SETS",
    "coordinates",
    "extremes",
    "film",
    "heated_thumbnail",
    "histogram",
    "principal_components",
    "split",
    "thumbnail",
]

Array = NDArray[Any]
SETS = ("train", "augmented", "test")
BINS = 30
JPEG_QUALITY = 82
GAP, GAP_GREY = 2, 128


def principal_components(sets: Mapping[str, Array]) -> dict[str, Array]:
    """Return the sets in the plane in which they are spread the most."""
    joined = np.concatenate(list(sets.values())).astype(np.float64)
    centred = joined - joined.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(joined), 2))
    plane[:, : len(directions[:2])] = centred @ directions[:2].T
    return split(plane, sets)


def histogram(scores: Mapping[str, Array]) -> dict[str, list[float]]:
    """Bin centres, and for each set the share of its scores in each bin."""
    joined = np.concatenate(list(scores.values()))
    finite = joined[np.isfinite(joined)]
    if not len(finite):
        return {"centres": []}
    inner = np.histogram_bin_edges(finite, bins=BINS)
    width = inner[1] - inner[0]
    edges = np.concatenate(
        [[inner[0] - width], inner, [inner[-1] + width]]
    )  # an empty bin at each end closes the shape
    shares = {
        name: (np.histogram(values, bins=edges)[0] / max(1, len(values))).round(4).tolist()
        for name, values in scores.items()
    }
    return {"centres": _rounded((edges[1:] + edges[:-1]) / 2), **shares}


def thumbnail(pixels: Array, side: int) -> str:
    """Return a uint8 image (channels, height, width) as a small JPEG in a data address."""
    return _encoded(_small(pixels, side))


def heated_thumbnail(pixels: Array, heat: Array, scale: tuple[float, float], side: int) -> str:
    """Return the same with its hot places in red."""
    return _encoded(_small(np.asarray(overlay(pixels, heat, scale)).transpose(2, 0, 1), side))


def film(pixels: Array, side: int) -> str:
    """Return a few images as one, two in a row."""
    tiles = [_small(image, side) for image in pixels]
    step = side + GAP
    sheet = Image.new("RGB", (2 * step - GAP, ((len(tiles) + 1) // 2) * step - GAP), (GAP_GREY,) * 3)
    for place, tile in enumerate(tiles):
        sheet.paste(tile.resize((side, side)), (place % 2 * step, place // 2 * step))
    return _encoded(sheet)


def _small(pixels: Array, side: int) -> Image.Image:
    channels = np.asarray(pixels)
    image = Image.fromarray(channels[0] if len(channels) == 1 else channels[:3].transpose(1, 2, 0)).convert("RGB")
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST)


def _encoded(image: Image.Image) -> str:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode("ascii")


def split(plane: Array, sets: Mapping[str, Array]) -> dict[str, Array]:
    """Return the points of each set, of all points in the order of the sets."""
    ends = np.cumsum([len(points) for points in sets.values()])[:-1]
    return dict(zip(sets, np.split(plane, ends), strict=True))


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def coordinates(sets: Mapping[str, Array]) -> dict[str, list[list[float]]]:
    """Points as two lists for each set, with as many digits as a screen can show."""
    scale = max((float(np.abs(points).max()) for points in sets.values() if len(points)), default=1.0) or 1.0
    digits = max(0, 3 - int(np.floor(np.log10(scale))))
    return {name: [points[:, axis].round(digits).tolist() for axis in (0, 1)] for name, points in sets.items()}


def extremes(scores: Array, count: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the places of the highest scores and of the lowest, each from the end inwards."""
    order = np.argsort(scores, kind="stable")
    return order[::-1][:count].tolist(), order[:count].tolist()
