"""Draws docs/assets/augmentations.png: one texture under every augmentation at every one of the paper's patch sizes."""

from __future__ import annotations

import itertools
from pathlib import Path

import skimage
import torch
from PIL import Image, ImageDraw, ImageFont
from tiles import SIDE, tile

from dsv_plugins import AugmentationPlugin, build_registry
from dsv_plugins.builtin.augmentations.cut import PAPER_PATCH_SIZES

TARGET = Path(__file__).parents[1] / "assets" / "augmentations.png"
NAMES = ("cutout", "cutavg", "cutdiff", "cutpaste")
PIXELS, GAP, MARGIN, HEADER = 256, 4, 84, 30


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


if __name__ == "__main__":
    main()
