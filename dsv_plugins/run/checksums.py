"""Whether what is read is what was written: checksums of the files of a finished folder, and seals of single files."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsv_plugins.errors import StoreError, describe_error
from dsv_plugins.run.folder import MANIFEST, checksum, files_below, read_json, write_json

__all__ = [
    "RESTORE",
    "check_seal",
    "read_sealed",
    "sound",
    "trusted_file",
    "trusted_file_if_any",
    "verify",
    "write_sealed",
]

RESTORE = "run the same `dsv select` again, which restores it"
"""What to do about a damaged file: a selection checks all that it finds, and computes the damaged part again."""
SEAL = "checksum"


def verify(folder: Path) -> str | None:
    """Why a finished folder cannot be trusted; None if it has the files that were written, and no others."""
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


def trusted_file(folder: Path, name: str) -> Path:
    """A file of a finished folder, once its checksum is found to be right.

    Raises:
        StoreError: It is missing or damaged.
    """
    file = trusted_file_if_any(folder, name)
    if file is None:
        raise StoreError(f"{folder / name} is not in {MANIFEST}; {RESTORE}")
    return file


def trusted_file_if_any(folder: Path, name: str) -> Path | None:
    """The same; None if the folder was finished without such a file."""
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


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that holds a checksum of its own content."""
    write_json(path, {**content, SEAL: _seal(content)})


def read_sealed(path: Path, advice: str = RESTORE) -> dict[str, Any]:
    """Read what `write_sealed` wrote.

    Args:
        path: The file.
        advice: What to do if it is damaged.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return check_seal(path, read_json(path))
    except StoreError as error:
        raise StoreError(f"{error}; {advice}") from error


def check_seal(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file without its checksum, if that is right.

    Raises:
        StoreError: It is not.
    """
    sealed = {name: value for name, value in content.items() if name != SEAL}
    if content.get(SEAL) != _seal(sealed):
        raise StoreError(f"{path} is damaged (its checksum is wrong)")
    return sealed


@contextlib.contextmanager
def sound(file: Path) -> Iterator[None]:
    """Name the file whose content is not of the form that we write."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(f"{file} is damaged ({describe_error(error)}); {RESTORE}") from error


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


def _seal(content: Mapping[str, Any]) -> str:
    # Through JSON and back, as the content comes when it is read.
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
