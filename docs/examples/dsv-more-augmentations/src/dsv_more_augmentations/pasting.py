"""Parts of an image, pasted elsewhere in the same image (Li et al., CutPaste, CVPR 2021)."""

import math
from dataclasses import dataclass

import torch

from dsv_more_augmentations.patches import boxes, inside, places


@dataclass(frozen=True)
class Patch:
    """A box of the image, pasted elsewhere."""

    patch_size: float

    def __call__(self, images, *, generator):
        box = boxes(images, self.patch_size, generator)
        top, left, rows, columns = box
        height, width = images.shape[-2:]
        down, right = torch.rand(2, len(images), 1, 1, generator=generator, device=images.device)
        from_top, from_left = (down * (height - rows + 1)).long(), (right * (width - columns + 1)).long()
        y, x = places(images)
        return pasted(images, inside(box, images), y - top + from_top, x - left + from_left)


@dataclass(frozen=True)
class Scar:
    """A strip of the image, turned by up to 45 degrees, a little lighter or darker, pasted elsewhere.

    Length and thickness are shares of the image's shorter side.
    """

    length: float
    thickness: float

    def __call__(self, images, *, generator):
        count, _, height, width = images.shape
        draws = torch.rand(6, count, 1, 1, generator=generator, dtype=images.dtype, device=images.device)
        row, column, from_row, from_column, turn, light = draws
        angle = (turn - 0.5) * math.pi / 2
        y, x = places(images)
        down, right = y - row * (height - 1), x - column * (width - 1)
        along = right * torch.cos(angle) + down * torch.sin(angle)
        across = down * torch.cos(angle) - right * torch.sin(angle)
        reach, half = (share * min(height, width) / 2 for share in (self.length, self.thickness))
        strip = ((along.abs() <= max(reach, 0.5)) & (across.abs() <= max(half, 0.5)))[:, None]
        source_y, source_x = from_row * (height - 1) + across, from_column * (width - 1) + along
        moved = pasted(images, strip, source_y.round().long(), source_x.round().long())
        return torch.where(strip, moved * (0.9 + 0.2 * light[:, None]), images).clamp(0, 1)


@dataclass(frozen=True)
class Either:
    """One augmentation or the other, for each image."""

    first: object
    second: object

    def __call__(self, images, *, generator):
        coin = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
        return torch.where(coin, self.first(images, generator=generator), self.second(images, generator=generator))


def pasted(images, mask, rows, columns):
    """The images, with the pixels of the mask replaced by those of the given rows and columns."""
    _, channels, height, width = images.shape
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    source = images.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, channels, -1)).view_as(images)
    return torch.where(mask, source, images)
