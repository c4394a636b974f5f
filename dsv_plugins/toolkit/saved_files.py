"""The files of a saved detector, what a detector needs before it is used, and errors that say what is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dsv_plugins.errors import InputError, describe_error

__all__ = [
    "PROGRESS_FILE",
    "TENSORS_FILE",
    "check_images",
    "fitted",
    "joined",
    "read_parts",
    "read_progress",
    "readable",
    "write_saved",
]

TENSORS_FILE, PROGRESS_FILE = "detector.safetensors", "detector.json"

Part = TypeVar("Part")


@contextlib.contextmanager
def readable(file: Path) -> Iterator[Path]:
    """Turn whatever goes wrong with a saved file into one line that names it."""
    try:
        yield file
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"{file} cannot be read as a saved detector; save it again ({describe_error(error)})"
        ) from error


def write_saved(folder: Path, tensors: Mapping[str, Tensor], progress: Mapping[str, object]) -> None:
    """Write the tensors and what there is to say of the training.

    The latter is written last: a save that is cut short must not pass for a complete one.
    """
    file = folder / PROGRESS_FILE
    file.unlink(missing_ok=True)
    save_file(dict(tensors), folder / TENSORS_FILE)
    file.write_text(json.dumps(progress, indent=2))


def read_progress(folder: Path, settings: Mapping[str, object]) -> Mapping[str, Any]:
    """Read what a detector wrote of its training.

    Raises:
        InputError: The file is missing or broken, or the detector in the folder has other settings.
    """
    with readable(folder / PROGRESS_FILE) as file:
        progress: Mapping[str, Any] = json.loads(file.read_text())
        saved = progress["settings"]
    if saved != json.loads(json.dumps(settings)):  # where a tuple is a list
        raise InputError(f"{folder} holds a detector of other settings; make this one with {saved} to load it")
    return progress


def joined(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of several parts under the names `part.name`, on the CPU."""
    return {
        f"{part}.{name}": value.contiguous().cpu() for part, tensors in parts.items() for name, value in tensors.items()
    }


def read_parts(file: Path) -> dict[str, dict[str, Tensor]]:
    """Read tensors that are named `part.name`, by their part; those without one are the part ""."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in load_file(file).items():
        part, _, rest = name.partition(".") if "." in name else ("", "", name)
        parts.setdefault(part, {})[rest] = value
    return parts


def fitted(part: Part | None) -> Part:
    """Return a part of a detector that only a training makes, or a file.

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
