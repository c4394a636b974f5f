"""The files of a saved detector, what a detector needs before it is used, and errors that say what is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from torch import Tensor

from dsv_plugins.errors import InputError, describe_error

__all__ = ["PROGRESS_FILE", "TENSORS_FILE", "by_prefix", "check_images", "fitted", "read_progress", "readable"]

TENSORS_FILE, PROGRESS_FILE = "detector.safetensors", "detector.json"

Part = TypeVar("Part")


@contextlib.contextmanager
def readable(file: Path) -> Iterator[Path]:
    """Whatever goes wrong with a saved file becomes one line that names it."""
    try:
        yield file
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"{file} cannot be read as a saved detector; save it again ({describe_error(error)})"
        ) from error


def read_progress(folder: Path, settings: Mapping[str, object]) -> Mapping[str, Any]:
    """What a detector wrote of its training.

    Raises:
        InputError: The file is missing or broken, or the detector in the folder has other settings.
    """
    with readable(folder / PROGRESS_FILE) as file:
        progress: Mapping[str, Any] = json.loads(file.read_text())
        saved = progress["settings"]
    if saved != settings:
        raise InputError(f"{folder} holds a detector of other settings; make this one with {saved} to load it")
    return progress


def by_prefix(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors named `part.name`, by their part."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        prefix, _, rest = name.partition(".")
        parts.setdefault(prefix, {})[rest] = value
    return parts


def fitted(part: Part | None) -> Part:
    """A part of a detector that only a training makes, or a file.

    Raises:
        InputError: It is not there yet.
    """
    if part is None:
        raise InputError("this detector is not trained yet; call fit or load first")
    return part


def check_images(images: Tensor) -> None:
    """Demand at least one image, grey or in colour."""
    if images.ndim != 4 or len(images) == 0 or images.shape[1] not in (1, 3):
        raise InputError(
            f"images have the shape {tuple(images.shape)}; give at least one, as (images, 1 or 3, height, width)"
        )
