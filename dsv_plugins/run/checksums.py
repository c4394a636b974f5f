"""Whether what is read is what was written: the checksums of the files of a finished folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv_plugins.errors import StoreError
from dsv_plugins.run.folder import MANIFEST, checksum, files_below, read_json

__all__ = ["RESTORE", "checked_file", "checked_file_if_any", "verify"]

RESTORE = "run the same `dsv select` again, which restores it"
"""What to do about a damaged file: a selection checks all that it finds, and computes the damaged part again."""


def verify(folder: Path) -> str | None:
    """Return why a finished folder cannot be used; None if it has the files that were written, and no others."""
    try:
        sums = _manifest(folder)
        found = {file.relative_to(folder).as_posix() for file in files_below(folder)} - {MANIFEST}
        for name in sums:
            if name not in found:
                return f"{folder}/{name} is missing"  # a damaged name may begin with a slash
            _check(folder / name, sums[name])
    except StoreError as error:
        return str(error)
    # Hidden files are those of desktops and network drives. Nobody reads them.
    strange = sorted(name for name in found - sums.keys() if not Path(name).name.startswith("."))
    return f"{folder / strange[0]} is not in {MANIFEST}" if strange else None


def checked_file(folder: Path, name: str) -> Path:
    """Return a file of a finished folder, once its checksum is found to be right.

    Raises:
        StoreError: It is missing or damaged.
    """
    file = checked_file_if_any(folder, name)
    if file is None:
        raise StoreError(f"{folder / name} is not in {MANIFEST}; {RESTORE}")
    return file


def checked_file_if_any(folder: Path, name: str) -> Path | None:
    """Do the same; return None if the folder was finished without such a file."""
    file = folder / name
    try:
        sums = _manifest(folder)
        if name not in sums:
            return None
        if not file.is_file():
            raise StoreError(f"{file} is missing")
        _check(file, sums[name])
    except StoreError as error:
        raise StoreError(f"{error}; {RESTORE}") from error
    return file


def _manifest(folder: Path) -> Mapping[str, Any]:
    sums = read_json(folder / MANIFEST)
    if not sums:
        raise StoreError(f"{folder / MANIFEST} is damaged (it lists no files)")
    return sums


def _check(file: Path, expected: object) -> None:
    try:
        found = checksum(file)
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror})") from error
    if found != expected:
        raise StoreError(f"{file} is damaged")
