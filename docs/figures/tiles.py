"""One augmented image, small, for the figures."""

from __future__ import annotations

from PIL import Image, ImageDraw
from torch import Tensor

__all__ = ["SIDE", "tile"]

SIDE = 144
RED = (220, 30, 30)
VISIBLE = 1 / 255


def tile(before: Tensor, after: Tensor) -> Image.Image:
    """The augmented image, with a frame around what changed: few could find a single pixel without."""
    picture = Image.fromarray((after * 255).round().byte().numpy()).resize((SIDE, SIDE), Image.Resampling.BOX)
    picture = picture.convert("RGB")
    changed = ((before - after).abs() > VISIBLE).nonzero()
    if len(changed):
        top, left = (changed.min(dim=0).values * SIDE / len(before)).floor().int().tolist()
        bottom, right = ((changed.max(dim=0).values + 1) * SIDE / len(before)).ceil().int().tolist()
        frame = (max(left - 4, 0), max(top - 4, 0), min(right + 3, SIDE - 1), min(bottom + 3, SIDE - 1))
        ImageDraw.Draw(picture).rectangle(frame, outline=RED)
    return picture
