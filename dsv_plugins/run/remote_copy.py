"""A run folder at an address of fsspec, such as s3://bucket/run: what is finished is copied there as soon as it is.

A run folder relies on locks, renames and memory maps, which object stores do not have. So the work is done in a local
folder, and the address has a copy from which any machine can resume. A folder counts there once its manifest is
there, which comes last; one whose copying was cut short does not. Nothing keeps two machines from working on one
address at once: both then train the same, and neither harms the other's trainings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from dsv_plugins.errors import InputError, StoreError, describe_error, shown
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import MANIFEST, RunFolder, files_below, finished_folder, write_bytes

__all__ = ["RemoteCopy", "is_address"]

FINISHED_DEPTH = {"data": 1, "model": 1, "candidates": 2, "shared": 2, "frozen": 3}
"""How deep in the run folder the finished folders below each of its folders are."""


def is_address(out: object) -> bool:
    """Return whether a run folder is given as an address, and not as a path."""
    return isinstance(out, str) and "://" in out


class RemoteCopy:
    """The copy of a run folder at an address.

    Args:
        address: Where the copy is, as fsspec reads it.
        folder: The run folder.
    """

    def __init__(self, address: str, folder: RunFolder) -> None:
        self._address = address.rstrip("/")
        self._folder = folder
        self._copied: dict[str, bytes] = {}
        try:
            self._files, self._root = _opened(self._address)
        except (ImportError, ValueError) as error:  # a file system that needs a package, or that nobody knows
            raise InputError(f"{address} cannot be used as a run folder: {describe_error(error)}") from error

    def pull(self) -> None:
        """Copy what is finished at the address into the run folder, unless it is there already."""
        with self._talking("read"):
            self._files.invalidate_cache()
            found = self._files.find(self._root) if self._files.exists(self._root) else []
            names = [PurePosixPath(file).relative_to(self._root) for file in map(self._stripped, found)]
            self._require_inside(names)
            for folder in [name.parent for name in names if _is_manifest(name)]:
                self._fetch(folder, [name for name in names if folder in name.parents])
            for path in self._single_files():
                if PurePosixPath(path.name) in names:
                    there = self._files.cat_file(f"{self._root}/{path.name}")
                    if path == self._folder.journal:
                        write_bytes(path, _merged(there, path.read_bytes() if path.exists() else b""))
                    elif not path.exists():
                        write_bytes(path, there)

    def push(self) -> None:
        """Copy what is finished and not at the address yet."""
        with self._talking("written"):
            self._files.makedirs(self._root, exist_ok=True)
            for manifest in sorted(self._folder.path.rglob(MANIFEST)):
                name = PurePosixPath(manifest.relative_to(self._folder.path).as_posix())
                if not _is_manifest(name) or name.parent.name.startswith("."):
                    continue
                content = manifest.read_bytes()
                if self._copied.get(str(name.parent)) != content:
                    self._send(manifest.parent)
                    self._copied[str(name.parent)] = content
            for path in self._single_files():
                if path.exists():
                    self._files.pipe_file(f"{self._root}/{path.name}", path.read_bytes())

    def _single_files(self) -> tuple[Path, ...]:
        return (self._folder.study, self._folder.journal, self._folder.selection)

    def _require_inside(self, names: list[PurePosixPath]) -> None:
        """Refuse an address whose names would lead out of the run folder, as those of a crafted archive can."""
        for name in names:
            if name.is_absolute() or ".." in name.parts:
                raise StoreError(
                    f"{self._address} holds {shown(str(name))}, which lies outside the run; "
                    "do not use what is there, and give another --out"
                )

    def _fetch(self, folder: PurePosixPath, names: list[PurePosixPath]) -> None:
        """Bring a folder here. One that is damaged at the address is left there, and is computed and copied again."""
        target = self._folder.path / folder
        if target.exists() and verify(target) is None:
            return
        with contextlib.suppress(_DamagedError), finished_folder(target) as partial:
            for name in names:
                file = partial / name.relative_to(folder)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(self._files.cat_file(f"{self._root}/{name}"))
            if verify(partial) is not None:
                raise _DamagedError
            manifest = (partial / MANIFEST).read_bytes()
            (partial / MANIFEST).unlink()  # the folder gets its own when it is finished, of the same files
            self._copied[str(folder)] = manifest

    def _send(self, folder: Path) -> None:
        for file in sorted(files_below(folder), key=lambda file: file.name == MANIFEST):
            name = file.relative_to(self._folder.path).as_posix()
            self._files.makedirs(f"{self._root}/{PurePosixPath(name).parent}", exist_ok=True)
            self._files.put_file(str(file), f"{self._root}/{name}")

    def _stripped(self, file: str) -> str:
        return str(self._files._strip_protocol(file))

    @contextlib.contextmanager
    def _talking(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # of the file system's driver, whichever that is
            raise StoreError(
                f"{self._address} cannot be {what} ({describe_error(error)}); fix that and run the same command again, "
                "which resumes from what is finished"
            ) from error


class _DamagedError(Exception):
    """What came from the address is not what was sent there."""


def _is_manifest(name: PurePosixPath) -> bool:
    """Whether a file is the manifest of a folder that a run finishes, and not that of a folder around or in it."""
    return name.name == MANIFEST and FINISHED_DEPTH.get(name.parts[0]) == len(name.parts) - 1


def _merged(there: bytes, here: bytes) -> bytes:
    """Return the journal of the address, with the lines that only this machine has behind it."""
    known = there.splitlines()
    return b"".join(line + b"\n" for line in dict.fromkeys([*known, *here.splitlines()]))


def _opened(address: str) -> tuple[Any, str]:
    files, root = fsspec.core.url_to_fs(address)
    return files, str(root)
