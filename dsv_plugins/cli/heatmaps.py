"""Files that say where scored images are unusual: overlays in red, masks, the heat of each pixel, and boxes."""

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
from dsv_plugins.run.folder import write_json
from dsv_plugins.types import Levels

__all__ = ["BoxFile", "PictureFolder", "heat_of_pixels", "mask_above", "overlay_of"]

LONGEST = 240
"""Bytes of a picture's name, of the 255 of most file systems: the rest is for a number and the suffix."""
Draw = Callable[[NDArray[np.uint8], NDArray[Any]], Image.Image | NDArray[np.float32]]
"""Draws what the heat of an image says, at the image's own size; or returns the numbers to write."""


def overlay_of(scale: tuple[float, float]) -> Draw:
    """Draw images with their unusual patches in red; the scale is the same for all images of a run."""
    return lambda pixels, heat: overlay(pixels, heat, scale)


def mask_above(threshold: float) -> Draw:
    """Draw which pixels are hotter than a threshold, in white on black."""
    return lambda pixels, heat: Image.fromarray(
        np.where(heat_of_pixels(pixels, heat) > threshold, 255, 0).astype(np.uint8)
    )


def heat_of_pixels(pixels: NDArray[np.uint8], heat: NDArray[Any]) -> NDArray[np.float32]:
    """Return the heat of each pixel of an image: (height, width)."""
    height, width = pixels.shape[1:]
    patches = Image.fromarray(np.asarray(heat, dtype=np.float32))
    return np.asarray(patches.resize((width, height), Image.Resampling.BILINEAR))


class BoxFile:
    """A file with boxes around what is unusual in each image, as COCO has them.

    Args:
        path: The file.
        threshold: The heat above which a pixel is unusual.
        levels: As for `decode`.
    """

    def __init__(self, path: Path, threshold: float, levels: Levels | None) -> None:
        self._path, self._threshold, self._levels = path, threshold, levels
        self._images: list[dict[str, Any]] = []
        self._boxes: list[dict[str, Any]] = []

    def write(self, files: Sequence[Path], heatmaps: Tensor) -> None:
        """Find the boxes of some images."""
        from scipy.ndimage import find_objects, label

        for file, patches in zip(files, heatmaps.numpy(), strict=True):
            heat = heat_of_pixels(decode(file, None, levels=self._levels), patches)
            image = len(self._images) + 1
            height, width = heat.shape
            self._images.append({"id": image, "file_name": str(file), "height": height, "width": width})
            regions, _ = label(heat > self._threshold)
            for number, (rows, columns) in enumerate(find_objects(regions), start=1):
                inside = regions[rows, columns] == number
                self._boxes.append(
                    {
                        "id": len(self._boxes) + 1,
                        "image_id": image,
                        "category_id": 1,
                        "bbox": [columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start],
                        "area": int(inside.sum()),
                        "score": float(heat[rows, columns][inside].max()),
                        "iscrowd": 0,
                    }
                )

    def check(self) -> None:
        """Write the file, in one step."""
        categories = [{"id": 1, "name": "anomaly"}]
        write_json(self._path, {"images": self._images, "annotations": self._boxes, "categories": categories})


class PictureFolder:
    """A folder with one file for each image, named after the image and the folder it lies in.

    Args:
        path: The folder; it is made if it is missing.
        draw: Makes a picture, or numbers.
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
            drawn = self._draw(decode(file, None, levels=self._levels), heat)
            name = self._name(file)
            try:
                if isinstance(drawn, Image.Image):
                    drawn.save(self._path / f"{name}.png")
                else:
                    np.save(self._path / f"{name}.npy", drawn)
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
