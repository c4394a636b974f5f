"""Patches at random places, and two things to do in them."""

import math
from dataclasses import dataclass

import torch
from torchvision.transforms.v2 import functional


@dataclass(frozen=True)
class NoisePatch:
    """Adds Gaussian noise of one strength in a patch."""

    patch_size: float
    strength: float

    def __call__(self, images, *, generator):
        noise = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=images.device)
        noisy = (images + self.strength * noise).clamp(0, 1)
        return torch.where(inside(boxes(images, self.patch_size, generator), images), noisy, images)


@dataclass(frozen=True)
class BlurPatch:
    """Blurs a patch; sigma is in pixels."""

    patch_size: float
    sigma: float

    def __call__(self, images, *, generator):
        side = 2 * math.ceil(2 * self.sigma) + 1
        blurred = functional.gaussian_blur(images, [side, side], [self.sigma, self.sigma])
        return torch.where(inside(boxes(images, self.patch_size, generator), images), blurred, images)


def boxes(images, share, generator):
    """A box for each image: top, left, height and width in pixels, of this share of the area, up to three times as long
    as wide."""
    count, _, height, width = images.shape
    ratio, down, right = torch.rand(3, count, generator=generator, device=images.device)
    stretch = 3 ** (ratio - 0.5)
    side = math.sqrt(share * height * width)
    rows = (side * stretch).round().clamp(1, height)
    columns = (side / stretch).round().clamp(1, width)
    top, left = (down * (height - rows + 1)).floor(), (right * (width - columns + 1)).floor()
    return [edge.long()[:, None, None] for edge in (top, left, rows, columns)]


def inside(box, images):
    """Which pixels are in the box of their image, for all channels at once."""
    top, left, rows, columns = box
    y, x = places(images)
    return ((y >= top) & (y < top + rows) & (x >= left) & (x < left + columns))[:, None]


def places(images):
    """The row of each pixel and its column."""
    height, width = images.shape[-2:]
    return torch.arange(height, device=images.device)[:, None], torch.arange(width, device=images.device)
