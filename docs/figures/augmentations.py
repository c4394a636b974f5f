"""Draws docs/assets/augmentations.png: one texture under every augmentation at every one of the paper's patch sizes."""

from __future__ import annotations

import itertools
from pathlib import Path

import skimage
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dsv_plugins import AugmentationPlugin, build_registry
from dsv_plugins.builtin.augmentations.hook import PAPER_PATCH_SIZES

TARGET = Path(__file__).parents[1] / "assets" / "augmentations.png"
NAMES = ("cutout", "cutavg", "cutdiff", "cutpaste")
PIXELS, SIDE, GAP, MARGIN, HEADER = 256, 144, 4, 84, 30
RED = (220, 30, 30)
VISIBLE = 1 / 255


def main() -> None:
    texture = torch.from_numpy(skimage.data.brick()[:PIXELS, :PIXELS].copy())[None, None] / 255
    halves = PAPER_PATCH_SIZES[:9], PAPER_PATCH_SIZES[9:]
    block_height = HEADER + len(NAMES) * (SIDE + GAP)
    figure = Image.new("RGB", (MARGIN + len(halves[0]) * (SIDE + GAP), len(halves) * block_height), "white")
    draw = ImageDraw.Draw(figure)
    font = ImageFont.load_default(17)

    registry = build_registry()
    for block, sizes in enumerate(halves):
        for (row, name), (column, patch_size) in itertools.product(enumerate(NAMES), enumerate(sizes)):
            left, top = MARGIN + column * (SIDE + GAP), block * block_height + HEADER + row * (SIDE + GAP)
            draw.text((MARGIN - 8, top + SIDE / 2), name, fill="black", font=font, anchor="rm")
            draw.text((left + SIDE / 2, block * block_height + HEADER / 2), f"{patch_size}", "black", font, anchor="mm")
            augmentation = registry.create(AugmentationPlugin, name, {"patch_size": patch_size})
            seed = PAPER_PATCH_SIZES.index(patch_size)
            augmented = augmentation(texture, generator=torch.Generator().manual_seed(seed))
            figure.paste(tile(texture[0, 0], augmented[0, 0]), (left, top))

    TARGET.parent.mkdir(parents=True, exist_ok=True)
    figure.quantize(128, dither=Image.Dither.NONE).save(TARGET, optimize=True)


def tile(before: Tensor, after: Tensor) -> Image.Image:
    """The augmented image, with a frame around what changed: few could find a single pixel without."""
    picture = Image.fromarray((after * 255).round().byte().numpy()).resize((SIDE, SIDE), Image.Resampling.BOX)
    picture = picture.convert("RGB")
    changed = ((before - after).abs() > VISIBLE).nonzero()
    if len(changed):
        top, left = (changed.min(dim=0).values * SIDE / PIXELS).floor().int().tolist()
        bottom, right = ((changed.max(dim=0).values + 1) * SIDE / PIXELS).ceil().int().tolist()
        frame = (max(left - 4, 0), max(top - 4, 0), min(right + 3, SIDE - 1), min(bottom + 3, SIDE - 1))
        ImageDraw.Draw(picture).rectangle(frame, outline=RED)
    return picture


if __name__ == "__main__":
    main()
