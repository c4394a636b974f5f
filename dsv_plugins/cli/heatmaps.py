"""Pictures of where scored images are unusual: overlays in red, and masks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dsv_plugins.data.overlay import overlay
from dsv_plugins.errors import InputError, StoreError
from dsv_plugins.pixels import decode
from dsv_plugins.types import Levels

__all__ = ["PictureFolder", "mask_above", "overlay_of"]

LONGEST = 240
"""Bytes of a picture's name, of the 255 of most file systems: the rest is for a number and the suffix."""
Draw = Callable[[NDArray[np.uint8], NDArray[Any]], Image.Image]
"""Draws what the heat of an image says, at the image's own size."""


def overlay_of(scale: tuple[float, float]) -> Draw:
    """Draw images with their unusual patches in red; the scale is the same for all images of a run."""
    return lambda pixels, heat: overlay(pixels, heat, scale)


def mask_above(threshold: float) -> Draw:
    """Draw which pixels are hotter than a threshold, in white on black."""

    def mask(pixels: NDArray[np.uint8], heat: NDArray[Any]) -> Image.Image:
        height, width = pixels.shape[1:]
        enlarged = Image.fromarray(np.asarray(heat, dtype=np.float32)).resize(
            (width, height), Image.Resampling.BILINEAR
        )
        return Image.fromarray(np.where(np.asarray(enlarged) > threshold, 255, 0).astype(np.uint8))

    return mask


class PictureFolder:
    """A folder with one picture for each image, named after the image and the folder it lies in.

    Args:
        path: The folder; it is made if it is missing.
        draw: Makes a picture.
        option: The option that named the folder.
        levels: As for `decode`.
    """

    def __init__(self, path: Path, draw: Draw, option: str, levels: Levels | None) -> None:
        self._path = path
        self._levels = levels
        self._draw = draw
        self._option = option
        self._names: set[str] = set()
        self._failed: list[tuple[Path, OSError]] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be made ({error.strerror}); give another folder to {option}") from error

    def write(self, files: Sequence[Path], heatmaps: Tensor) -> None:
        """Write the pictures of some images; those that cannot be written do not keep the others from it."""
        for file, heat in zip(files, heatmaps.numpy(), strict=True):
            picture = self._draw(decode(file, None, levels=self._levels), heat)
            try:
                picture.save(self._path / f"{self._name(file)}.png")
            except OSError as error:
                self._failed.append((file, error))

    def check(self) -> None:
        """Name what could not be written.

        Raises:
            StoreError: There is something.
        """
        if self._failed:
            file, error = self._failed[0]
            raise StoreError(
                f"{len(self._failed)} pictures of {self._option} cannot be written to {self._path}, such as that of "
                f"{file} ({error.strerror or error})"
            )

    def _name(self, file: Path) -> str:
        """Return a name that no other image of this call has, and that is short enough for a file."""
        wanted = os.fsdecode(os.fsencode(f"{file.absolute().parent.name}-{file.stem}")[:LONGEST])
        name, number = wanted, 2
        while name in self._names:
            name, number = f"{wanted}-{number}", number + 1
        self._names.add(name)
        return name
