"""A small inspection task made on the spot: a photographed texture, and defects drawn onto it.

For trying things out where no data set is at hand. The textures come with scikit-image, the extra `dsv-plugins[demo]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from dsv_plugins.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DEFECTS", "Task", "Texture", "draw_defect", "make_task"]

Texture = Literal["brick", "gravel", "grass"]
Pixels = NDArray[np.uint8]

SIDE = 64
OVERSAMPLING = 4
"""Defects are drawn so much larger and then shrunk, which smooths their edges."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Images of shape (images, 1, 64, 64), uint8.

    Attributes:
        train: Normal crops of one half of the texture.
        test: Crops of the other half, normal and defective.
        labels: True for the defective ones. For judging a choice, never for making one.
    """

    train: Tensor
    test: Tensor
    labels: Tensor


def make_task(
    texture: Texture = "brick", seed: int = 0, *, train: int = 100, normal: int = 40, defective: int = 40
) -> Task:
    """Make a task, the same for the same arguments.

    Args:
        texture: Which photograph.
        seed: Fixes the crops and the defects.
        train: Normal images to train on.
        normal: Normal images in the test set.
        defective: Defective ones; the kinds of defect take turns.

    Raises:
        InputError: scikit-image is not installed, or has no such texture.
    """
    import torch

    generator = np.random.default_rng(seed)
    photograph = _photograph(texture)
    middle = photograph.shape[1] // 2
    # Mirrored, so that a perspective runs the same way in both halves.
    left, right = photograph[:, :middle], photograph[:, :middle:-1]
    train_crops = [_crop(left, generator) for _ in range(train)]
    test_crops = [_crop(right, generator) for _ in range(normal + defective)]
    for place in range(defective):
        kind = list(DEFECTS)[place % len(DEFECTS)]
        test_crops[normal + place] = draw_defect(test_crops[normal + place], kind, generator)

    def tensor(crops: list[Pixels]) -> Tensor:
        return (
            torch.from_numpy(np.stack(crops)[:, None]) if crops else torch.empty((0, 1, SIDE, SIDE), dtype=torch.uint8)
        )

    return Task(tensor(train_crops), tensor(test_crops), torch.arange(normal + defective) >= normal)


def draw_defect(image: Pixels, kind: str, generator: np.random.Generator) -> Pixels:
    """Return a copy of a grey image with a defect of that kind, of random place, size and strength."""
    drawn: Pixels = DEFECTS[kind](image.astype(np.float64), generator).round().clip(0, 255).astype(np.uint8)
    return drawn


def _scratch(image: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """A thin line with a bend, brighter or darker than what is under it."""
    length = generator.uniform(12, 45)
    angle = generator.uniform(0, math.pi)
    bend = generator.normal(0, 0.25)
    x, y = _place(generator)
    points = [
        (
            x + length * step * math.cos(angle + bend * step),
            y + length * step * math.sin(angle + bend * step),
        )
        for step in np.linspace(-0.5, 0.5, 6)
    ]
    mask = _drawn(lambda draw: draw.line(_large(points), fill=255, width=_width(generator.uniform(0.8, 2.2))))
    return _blended(image, mask, _tone(image, generator), generator.uniform(0.5, 0.9))


def _blot(image: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """A splash with a ragged edge, in one tone."""
    radius = generator.uniform(2, 8)
    x, y = _place(generator)
    corners = 14
    points = [
        (x + r * math.cos(2 * math.pi * k / corners), y + r * math.sin(2 * math.pi * k / corners))
        for k, r in enumerate(radius * generator.uniform(0.6, 1.3, corners))
    ]
    mask = _drawn(lambda draw: draw.polygon(_large(points), fill=255))
    return _blended(image, mask, _tone(image, generator), generator.uniform(0.5, 0.9))


def _stain(image: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """A soft spot through which the texture shows."""
    x, y = _place(generator)
    widths = generator.uniform(6, 14, 2)
    mask = _drawn(
        lambda draw: draw.ellipse(_large([(x - widths[0], y - widths[1]), (x + widths[0], y + widths[1])]), fill=255),
        blur=float(widths.min()) / 2.5,
    )
    return _blended(image, mask, _tone(image, generator), generator.uniform(0.3, 0.6))


def _hole(image: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """A round hole in shadow, with light on one side of its rim."""
    x, y = _place(generator)
    radius = generator.uniform(2, 6)
    angle = generator.uniform(0, 360)

    def box(size: float) -> list[tuple[float, float]]:
        return _large([(x - size, y - size), (x + size, y + size)])

    hole = _drawn(lambda draw: draw.ellipse(box(radius), fill=255))
    rim = _drawn(lambda draw: draw.arc(box(radius + 0.8), angle, angle + 150, fill=255, width=_width(1.0)))
    shaded = _blended(image, hole, image.min() * generator.uniform(0.3, 0.9), generator.uniform(0.7, 1.0))
    return _blended(shaded, rim, image.max(), 0.6)


DEFECTS: Mapping[str, Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]] = {
    "scratch": _scratch,
    "blot": _blot,
    "stain": _stain,
    "hole": _hole,
}
"""The kinds of defect, and what draws them."""


def _photograph(texture: str) -> Pixels:
    if texture not in get_args(Texture):
        raise InputError(f"no texture is named {texture!r}; known: {', '.join(get_args(Texture))}")
    try:
        from skimage import data
    except ImportError as error:
        raise InputError(
            "the textures come with scikit-image, which is not installed: pip install 'dsv-plugins[demo]'"
        ) from error
    photograph: Pixels = getattr(data, texture)()
    return photograph


def _crop(photograph: Pixels, generator: np.random.Generator) -> Pixels:
    top, left = (int(generator.integers(length - SIDE + 1)) for length in photograph.shape)
    crop: Pixels = photograph[top : top + SIDE, left : left + SIDE].copy()
    return crop


def _place(generator: np.random.Generator) -> tuple[float, float]:
    """The middle of a defect, far enough from the edge for most of it to be seen."""
    x, y = generator.uniform(0.15 * SIDE, 0.85 * SIDE, 2)
    return float(x), float(y)


def _tone(image: NDArray[np.float64], generator: np.random.Generator) -> float:
    """Somewhat outside the image's own tones, dark or bright."""
    dark, bright = np.quantile(image, [0.05, 0.95])
    step = generator.uniform(10, 60)
    return float(dark - step if generator.random() < 0.5 else bright + step)


def _drawn(draw: Callable[[ImageDraw.ImageDraw], None], blur: float = 0.0) -> NDArray[np.float64]:
    """What the function draws in white on black, as a mask from 0 to 1."""
    canvas = Image.new("L", (SIDE * OVERSAMPLING, SIDE * OVERSAMPLING))
    draw(ImageDraw.Draw(canvas))
    if blur:
        canvas = canvas.filter(ImageFilter.GaussianBlur(blur * OVERSAMPLING))
    return np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64) / 255


def _large(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(OVERSAMPLING * x, OVERSAMPLING * y) for x, y in points]


def _width(pixels: float) -> int:
    return max(1, round(OVERSAMPLING * pixels))


def _blended(image: NDArray[np.float64], mask: NDArray[np.float64], tone: float, opacity: float) -> NDArray[np.float64]:
    return image + opacity * mask * (tone - image)
