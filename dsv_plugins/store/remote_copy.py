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

from dsv_plugins.errors import InputError, StoreError, describe_error
from dsv_plugins.store.folder import MANIFEST, RunFolder, finished_folder, verify, write_text

__all__ = ["RemoteCopy", "is_address"]


def is_address(out: object) -> bool:
    """Whether a run folder is given as an address, and not as a path."""
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
            for folder in [name.parent for name in names if name.name == MANIFEST]:
                self._fetch(folder, [name for name in names if folder in name.parents])
            for path in self._single_files():
                if PurePosixPath(path.name) in names:
                    there = self._files.cat_file(f"{self._root}/{path.name}").decode()
                    if path == self._folder.journal:
                        write_text(path, _merged(there, path.read_text() if path.exists() else ""))
                    elif not path.exists():
                        write_text(path, there)

    def push(self) -> None:
        """Copy what is finished and not at the address yet."""
        with self._talking("written"):
            self._files.makedirs(self._root, exist_ok=True)
            for manifest in sorted(self._folder.path.rglob(MANIFEST)):
                name = manifest.parent.relative_to(self._folder.path).as_posix()
                content = manifest.read_bytes()
                if self._copied.get(name) != content and not manifest.parent.name.startswith("."):
                    self._send(manifest.parent)
                    self._copied[name] = content
            for path in self._single_files():
                if path.exists():
                    self._files.pipe_file(f"{self._root}/{path.name}", path.read_bytes())

    def _single_files(self) -> tuple[Path, ...]:
        return (self._folder.study, self._folder.journal, self._folder.selection)

    def _fetch(self, folder: PurePosixPath, names: list[PurePosixPath]) -> None:
        """Bring a folder here. One that is damaged at the address is left there, and is computed and copied again."""
        target = self._folder.path / folder
        if ".." in folder.parts or (target.exists() and verify(target) is None):
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
            self._copied[folder.as_posix()] = manifest

    def _send(self, folder: Path) -> None:
        files = sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.name == MANIFEST)
        for file in files:
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


def _merged(there: str, here: str) -> str:
    """The journal of the address, with the lines that only this machine has behind it."""
    known = set(there.splitlines())
    return there + "".join(f"{line}\n" for line in here.splitlines() if line not in known)


def _opened(address: str) -> tuple[Any, str]:
    files, root = fsspec.core.url_to_fs(address)
    return files, str(root)
