"""Finished folders as plain arrays, which travel between machines that share no disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv_plugins.run.folder import MANIFEST

__all__ = ["Files", "finished_folders", "read_files", "write_files"]

Files = Mapping[str, NDArray[np.uint8]]
"""The content of files, by their path below a folder."""


def finished_folders(run: Path) -> list[Path]:
    """Every folder below a run that was finished."""
    return [manifest.parent for manifest in run.rglob(MANIFEST)]


def read_files(folder: Path) -> Files:
    """The content of a finished folder, to be sent to another machine."""
    return {
        file.relative_to(folder).as_posix(): np.fromfile(file, np.uint8)
        for file in folder.rglob("*")
        if file.is_file() and file.name != MANIFEST
    }


def write_files(folder: Path, files: Files) -> None:
    """Write what `read_files` returned."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(file)
