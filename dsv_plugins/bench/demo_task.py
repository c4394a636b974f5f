"""A small inspection task from a real texture: crops of it are good parts, crops with drawn defects bad ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dsv_plugins.errors import InputError
from dsv_plugins.run.folder import finished_folder

__all__ = ["DEFECTS", "TEXTURES", "write_demo_task"]

TEXTURES = ("gravel", "brick", "grass")
SIDE = 64
TRAIN, TEST_GOOD, TEST_PER_DEFECT = 100, 40, 10
OVERSAMPLING = 4
"""Defects are drawn larger and scaled down, which smooths their edges."""

Pixels = NDArray[np.float64]
Draw = Callable[[Pixels, np.random.Generator], Pixels]


def write_demo_task(folder: Path, texture: str = "gravel", seed: int = 0) -> None:
    """Write a task in MVTec layout; the same seed gives the same task.

    Train images come from the upper half of the texture and test images from the lower, so that none shares a pixel.
    """
    image = _texture(texture).astype(np.float64)
    middle = len(image) // 2
    generator = np.random.default_rng(seed)
    with finished_folder(folder) as partial:
        _write(partial / "train" / "good", [_crop(image[:middle], generator) for _ in range(TRAIN)])
        _write(partial / "test" / "good", [_crop(image[middle:], generator) for _ in range(TEST_GOOD)])
        for name, draw in DEFECTS.items():
            crops = [_crop(image[middle:], generator) for _ in range(TEST_PER_DEFECT)]
            _write(partial / "test" / name, [draw(crop, generator) for crop in crops])


def _scratch(image: Pixels, generator: np.random.Generator) -> Pixels:
    """Draw a thin, slightly bent line, brighter or darker than the ground."""
    angle, length = generator.uniform(0, np.pi), generator.uniform(18, 40)
    centre = generator.uniform(14, SIDE - 14, 2)
    along = np.array([np.cos(angle), np.sin(angle)])
    across = np.array([-along[1], along[0]])
    ends = centre - along * length / 2, centre + along * length / 2
    bend = centre + across * generator.uniform(-4, 4)
    mask = _drawn(
        lambda canvas, scale: canvas.line(
            [tuple(point * scale) for point in (ends[0], bend, ends[1])], fill=255, width=round(1.5 * scale)
        )
    )
    return image + mask * float(generator.choice([-1, 1])) * generator.uniform(55, 95)


def _blot(image: Pixels, generator: np.random.Generator) -> Pixels:
    """Draw an irregular dark blob of several overlapping ellipses."""
    centre = generator.uniform(12, SIDE - 12, 2)
    parts = [(centre + generator.uniform(-3, 3, 2), generator.uniform(2, 5, 2)) for _ in range(4)]

    def draw(canvas: ImageDraw.ImageDraw, scale: int) -> None:
        for middle, radii in parts:
            canvas.ellipse([*((middle - radii) * scale), *((middle + radii) * scale)], fill=255)

    mask = _drawn(draw)
    return image * (1 - mask) + mask * (image * 0.35)


def _stain(image: Pixels, generator: np.random.Generator) -> Pixels:
    """Draw a soft change of brightness with no edge."""
    centre, spread = generator.uniform(16, SIDE - 16, 2), generator.uniform(4, 9, 2)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    fade: Pixels = np.exp(-(((columns - centre[0]) / spread[0]) ** 2 + ((rows - centre[1]) / spread[1]) ** 2) / 2)
    return image + fade * float(generator.choice([-1, 1])) * generator.uniform(45, 75)


def _hole(image: Pixels, generator: np.random.Generator) -> Pixels:
    """Draw a small round hole, nearly black, with a bright rim."""
    centre, radius = generator.uniform(10, SIDE - 10, 2), generator.uniform(2, 4)

    def disc(grown: float) -> Pixels:
        size = radius + grown
        return _drawn(
            lambda canvas, scale: canvas.ellipse([*((centre - size) * scale), *((centre + size) * scale)], fill=255)
        )

    rimmed = image + disc(1.0) * 35
    return rimmed * (1 - disc(0.0)) + disc(0.0) * 15


DEFECTS: Mapping[str, Draw] = {"scratch": _scratch, "blot": _blot, "stain": _stain, "hole": _hole}


def _drawn(draw: Callable[[ImageDraw.ImageDraw, int], None]) -> Pixels:
    """Return what is drawn, from 0 to 1, with smooth edges."""
    large = Image.new("L", (SIDE * OVERSAMPLING, SIDE * OVERSAMPLING))
    draw(ImageDraw.Draw(large), OVERSAMPLING)
    return np.asarray(large.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64) / 255


def _crop(image: Pixels, generator: np.random.Generator) -> Pixels:
    top, left = (int(generator.integers(0, length - SIDE + 1)) for length in image.shape)
    return image[top : top + SIDE, left : left + SIDE]


def _write(folder: Path, images: list[Pixels]) -> None:
    folder.mkdir(parents=True)
    for index, image in enumerate(images):
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / f"{index:03d}.png")


def _texture(name: str) -> NDArray[np.uint8]:
    if name not in TEXTURES:
        raise InputError(f"no texture is named {name!r}; give one of {', '.join(TEXTURES)}")
    try:
        from skimage import data
    except ImportError as error:
        raise InputError("the demo's textures come with scikit-image; pip install 'dsv-plugins[demo]'") from error
    texture: NDArray[np.uint8] = getattr(data, name)()
    return texture
