"""Which images are nearly the same photo: encoded again, resized, a burst of one part, a shift of a pixel or two.

Each image becomes a small grey thumbnail. The distance of two is what is left of their difference if brightness,
contrast and a small shift may be changed. How small is small depends on the images: rigid parts in a fixture differ by
little, and pieces of leather by more. So the distance is compared with what is usual in the folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dsv_plugins.run.tiles import Tiles

__all__ = ["near_copies"]

Array = NDArray[Any]

SIDE, BLUR, STEP = 64, 1.5, 2
"""Side of a thumbnail; a blur that makes a small shift a sum of slopes; which pixels it leaves to compare."""
NEIGHBOUR = 10
"""The nearest image but so many is taken to be no copy: few photos are there more than ten times."""
OFTEN_COPIED = 0.2
"""Of the distance of any two images: what is usual is not less than that, if photos are there more than ten times."""
NEAR, FAR = 0.15, 0.6
"""Of the usual distance: what is nearer is a copy, and what is farther is none."""
GAP = 1.35
"""Between these two a gap decides: the nearest others are farther than copies by so much, with nothing between."""
ENOUGH = 20
"""Among fewer images a gap may be by chance."""
BATCH, SAMPLE = 64, 256
"""Images at once, and images by which it is found out what is usual."""
FLICKER = 0.1
"""By so much may the contrast of copies differ; an empty image is any other one with less contrast."""


def near_copies(pixels: Array, tiles: Tiles | None = None) -> Array:
    """Return the number of the group of each image; images that are nearly the same photo share one.

    Args:
        pixels: The images, (images, channels, height, width); they may be memory-mapped.
        tiles: The tiles into which they are cut, which are the rows then.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(pixels) // (tiles.count if tiles else 1)
    if count < 2:
        return np.arange(count)
    thumbnails, slopes = _thumbnails(pixels, tiles)
    energy = np.square(thumbnails).mean(axis=1)
    contrast = np.sqrt(energy)
    neighbour = min(NEIGHBOUR, max(1, count // 3))
    pairs: list[tuple[Array, Array, Array]] = []
    usual: list[float] = []
    middle: list[float] = []
    scale = 0.0
    # An order at random makes the first rows a sample of all, which says what is usual.
    order = np.random.default_rng(0).permutation(count)
    for rows in np.split(order, range(BATCH, count, BATCH)):
        along = np.einsum("rpc,ip->rci", _changes(thumbnails[rows], slopes[rows]), thumbnails, optimize=True)
        left = np.sqrt((energy - np.square(along).sum(axis=1) / thumbnails.shape[1]).clip(min=0))
        weaker, stronger = (choose(contrast[rows, None], contrast) for choose in (np.minimum, np.maximum))
        distances = np.maximum(left, (1 - FLICKER) * stronger - weaker)
        if len(usual) < SAMPLE:
            middle += np.median(distances, axis=1).tolist()
            usual += np.partition(distances, neighbour, axis=1)[
                :, neighbour
            ].tolist()  # the nearest is the image itself
            scale = max(float(np.median(usual)), OFTEN_COPIED * float(np.median(middle)))
        distances[np.arange(len(rows)), rows] = np.inf
        near, others = np.nonzero(distances < FAR * scale)
        pairs.append((rows[near], others, distances[near, others]))
    first, second, distances = map(np.concatenate, zip(*pairs, strict=True))
    limit = _limit(distances / scale) if count >= ENOUGH and scale > 0 else NEAR
    copies = distances < scale * limit
    links = coo_array((copies[copies], (first[copies], second[copies])), shape=(count, count))
    groups: Array = connected_components(links, directed=False)[1]
    return groups


def _limit(distances: Array) -> float:
    """Return the distance, in units of what is usual, below which two images are copies."""
    between = np.sort(distances[(distances > NEAR) & (distances < FAR)])
    steps = np.concatenate([[NEAR], between, [FAR]])
    widest = int(np.argmax(steps[1:] / steps[:-1]))
    has_gap = steps[widest + 1] > GAP * steps[widest]
    return float(np.sqrt(steps[widest] * steps[widest + 1])) if has_gap else NEAR


def _thumbnails(pixels: Array, tiles: Tiles | None) -> tuple[Array, Array]:
    """Return a row for each image, and its slopes along both sides: (images, pixels) and (images, pixels, 2)."""
    import torch
    from scipy.ndimage import gaussian_filter
    from torch.nn import functional

    thumbnails, slopes = [], []
    at_once = tiles.count if tiles else BATCH
    for start in range(0, len(pixels), at_once):
        grey = torch.from_numpy(np.array(pixels[start : start + at_once])).float().mean(dim=1)
        whole = tiles.joined(grey) if tiles else grey
        small = functional.interpolate(whole[:, None], (SIDE, SIDE), mode="area")[:, 0].numpy()
        blurred = gaussian_filter(small, (0, BLUR, BLUR), mode="nearest")
        blurred -= blurred.mean(axis=(1, 2), keepdims=True)  # before it is squared in single precision
        kept = (slice(None), slice(1, -1, STEP), slice(1, -1, STEP))
        along = [each[kept].reshape(len(small), -1) for each in np.gradient(blurred, axis=(1, 2))]
        thumbnails.append(blurred[kept].reshape(len(small), -1))
        slopes.append(np.stack(along, axis=2))
    return np.concatenate(thumbnails), np.concatenate(slopes)


def _changes(thumbnails: Array, slopes: Array) -> Array:
    """Return an orthonormal basis of what may change: (images, pixels, 4) for brightness, contrast and a shift."""
    changes = np.concatenate([np.ones_like(slopes[..., :1]), thumbnails[..., None], slopes], axis=2)
    basis: Array = np.linalg.qr(changes)[0]
    return basis
