"""Draws docs/assets/more-augmentations.png: the augmentations of the example package dsv-more-augmentations."""

from __future__ import annotations

import sys
from pathlib import Path

import skimage
import torch
from PIL import Image, ImageDraw, ImageFont
from tiles import SIDE, tile

from dsv_plugins.plugins.spaces import grid

DOCS = Path(__file__).parents[1]
TARGET = DOCS / "assets" / "more-augmentations.png"
PIXELS, GAP, MARGIN, HEADER = 256, 4, 130, 36
COLUMNS = 6


def main() -> None:
    sys.path.insert(0, str(DOCS / "examples/dsv-more-augmentations/src"))
    from dsv_more_augmentations import augmentation

    texture = torch.from_numpy(skimage.data.brick()[:PIXELS, :PIXELS].copy())[None, None] / 255
    records = augmentation()
    height = HEADER + SIDE + GAP
    figure = Image.new("RGB", (MARGIN + COLUMNS * (SIDE + GAP), len(records) * height), "white")
    draw, font, small = ImageDraw.Draw(figure), ImageFont.load_default(17), ImageFont.load_default(12)
    for row, record in enumerate(records):
        top = row * height + HEADER
        draw.text((MARGIN - 8, top + SIDE / 2), record.name, fill="black", font=font, anchor="rm")
        for column, point in enumerate(grid(record.space)):
            left = MARGIN + column * (SIDE + GAP)
            words = "\n".join(f"{name} {value:g}" for name, value in point.items())
            draw.text((left + SIDE / 2, top - HEADER / 2), words, "black", small, anchor="mm", align="center")
            augmented = record.factory(**point)(texture, generator=torch.Generator().manual_seed(row + column))
            figure.paste(tile(texture[0, 0], augmented[0, 0]), (left, top))
    figure.quantize(128, dither=Image.Dither.NONE).save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
