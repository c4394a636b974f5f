"""Heatmaps laid over images, so that people see where a detector looks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["heat_scale", "overlay"]

Array = NDArray[Any]

COLOUR = (230, 30, 30)
STRONGEST = 0.65
"""How much of the image the hottest patches hide."""
HOTTEST_SHARE = 0.999


def heat_scale(heatmaps: Array) -> tuple[float, float]:
    """Return where colour begins and where it is strongest: the mean of the heat, and nearly its largest value."""
    values = np.asarray(heatmaps, dtype=np.float32)
    low, high = float(values.mean()), float(np.quantile(values, HOTTEST_SHARE))
    return low, max(high, low + 1e-6)


def overlay(pixels: Array, heat: Array, scale: tuple[float, float]) -> Image.Image:
    """Return an image with its hot patches in red.

    Args:
        pixels: uint8, (channels, height, width).
        heat: How unusual each patch is, of any height and width.
        scale: What `heat_scale` returned for the heatmaps of a run.
    """
    channels = np.asarray(pixels)
    image = Image.fromarray(channels[0] if len(channels) == 1 else channels[:3].transpose(1, 2, 0)).convert("RGB")
    strength = np.clip((np.asarray(heat, dtype=np.float32) - scale[0]) / (scale[1] - scale[0]), 0, 1) * STRONGEST
    mask = Image.fromarray((strength * 255).astype(np.uint8)).resize(image.size, Image.Resampling.BILINEAR)
    return Image.composite(Image.new("RGB", image.size, COLOUR), image, mask)
