"""Copies of scored images with their unusual places in red."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from dsv_plugins.data.overlay import overlay
from dsv_plugins.errors import InputError
from dsv_plugins.study.model import Trained

__all__ = ["HeatmapFolder"]


class HeatmapFolder:
    """A folder with one overlay for each image, named after the image and the folder it lies in.

    Args:
        path: The folder; it is made if it is missing.
        scale: Where the colour begins and where it is strongest.
    """

    def __init__(self, path: Path, scale: tuple[float, float]) -> None:
        self._path = path
        self._scale = scale
        self._names: set[str] = set()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be made ({error.strerror}); give another folder to --heatmaps") from error

    def write(self, files: Sequence[Path], pixels: Tensor, detector: Trained) -> None:
        """Write the overlays of some images."""
        heatmaps = detector.heatmap(pixels)
        assert heatmaps is not None  # or it would have no scale
        for file, image, heat in zip(files, pixels.numpy(), heatmaps.numpy(), strict=True):
            overlay(image, heat, self._scale).save(self._path / f"{self._name(file)}.png")

    def _name(self, file: Path) -> str:
        """A name that no other image of this call has."""
        wanted = f"{file.absolute().parent.name}-{file.stem}"
        name, number = wanted, 2
        while name in self._names:
            name, number = f"{wanted}-{number}", number + 1
        self._names.add(name)
        return name
