"""Clouds of Perlin noise through which another part of the image shines (after Zavrtanik et al., DRAEM, ICCV 2021).

DRAEM takes textures from another data set. Here the texture is the image itself, moved and inverted.
"""

import math
from dataclasses import dataclass

import torch

from dsv_more_augmentations.pasting import pasted
from dsv_more_augmentations.patches import places


@dataclass(frozen=True)
class PerlinBlend:
    """Blends in a texture where the noise is highest.

    Attributes:
        cells: Cells of the noise along each side; more cells make smaller clouds.
        opacity: 1 hides what is below.
        coverage: Share of the image under clouds.
    """

    cells: int
    opacity: float
    coverage: float

    def __call__(self, images, *, generator):
        noise = perlin_noise(images, self.cells, generator)
        level = noise.flatten(1).quantile(1 - self.coverage, dim=1)[:, None, None]
        clouds = (noise > level)[:, None]
        down, right = torch.rand(2, len(images), 1, 1, generator=generator, device=images.device)
        height, width = images.shape[-2:]
        y, x = places(images)
        rows, columns = (y + (down * height).long()) % height, (x + (right * width).long()) % width
        texture = 1 - pasted(images, torch.ones_like(clouds), rows, columns)
        return torch.where(clouds, torch.lerp(images, texture, self.opacity), images)


def perlin_noise(images, cells, generator):
    """Noise for each image: random slopes at the corners of cells, blended smoothly between them."""
    count, _, height, width = images.shape
    angles = 2 * math.pi * torch.rand(count, cells + 1, cells + 1, generator=generator, device=images.device)
    slopes = torch.stack([angles.sin(), angles.cos()])
    y, x = ((torch.arange(n, device=images.device) + 0.5) * cells / n for n in (height, width))
    row, column = y.long(), x.long()
    y, x = (y - row)[:, None], x - column

    def corner(below, beside):
        down, right = slopes[:, :, row + below][..., column + beside]
        return down * (y - below) + right * (x - beside)

    smooth_y, smooth_x = (6 * t**5 - 15 * t**4 + 10 * t**3 for t in (y, x))
    upper = torch.lerp(corner(0, 0), corner(0, 1), smooth_x)
    lower = torch.lerp(corner(1, 0), corner(1, 1), smooth_x)
    return torch.lerp(upper, lower, smooth_y)
