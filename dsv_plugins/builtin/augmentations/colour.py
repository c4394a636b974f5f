"""Colour jitter of whole batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["jitter_colours"]

# A colour is a grey plus a chroma. Saturation scales the chroma and hue turns it, in the plane of YIQ's I and Q, so
# every change of the two is a combination of three fixed maps. The rows of I and Q sum to zero: grey stays grey.
_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]], dtype=torch.float64)
_LUMA = _YIQ[0]
_GREY = _LUMA.expand(3, 3)
_CHROMA = torch.eye(3, dtype=torch.float64) - _GREY
_TURNED_CHROMA = _YIQ.inverse() @ torch.tensor([[0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64) @ _YIQ
_MAPS = torch.stack([_GREY, _CHROMA, _TURNED_CHROMA])


def jitter_colours(
    images: Tensor, strength: float, *, generator: torch.Generator, means: Tensor | None = None
) -> Tensor:
    """Change each image's brightness, contrast, saturation and hue at random, by one affine map of its colours.

    Images that do not have three channels change in brightness and contrast only.

    Args:
        images: Floating point in [0, 1], of shape (images, channels, height, width). Not modified.
        strength: From 0 to 0.5. Factors are uniform from 1 - strength to 1 + strength; hue turns by up to this share of
            a circle, to either side.
        generator: On the images' device.
        means: The colours about whose grey contrast changes, of shape (images, channels); by default the images' means.
    """
    count, channels = images.shape[:2]
    precision = torch.promote_types(images.dtype, torch.float32)
    if means is None:
        means = images.mean((-2, -1), dtype=precision)
    draws = torch.rand(4, count, generator=generator, dtype=precision, device=images.device)
    shifts = strength * (2 * draws - 1)
    brightness, contrast, saturation = 1 + shifts[:3]
    turn = 2 * math.pi * shifts[3]
    if channels == 3:
        luma = _LUMA.to(means)
        weights = torch.stack([torch.ones_like(turn), saturation * turn.cos(), saturation * turn.sin()], dim=1)
        maps = torch.tensordot(weights, _MAPS.to(weights), dims=1)
    else:
        luma = means.new_full((channels,), 1 / channels)
        maps = torch.eye(channels, dtype=precision, device=images.device)
    maps = (brightness * contrast)[:, None, None] * maps
    offsets = (brightness * (1 - contrast) * (means @ luma))[:, None, None]
    changed = torch.baddbmm(offsets.to(images.dtype), maps.to(images.dtype), images.flatten(2))
    return changed.clamp_(0, 1).view_as(images)
