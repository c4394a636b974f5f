"""The run folder: everything a study has finished, written so that a kill at any moment loses nothing else.

    RUN/
      study.json           what is computed: settings, versions, format
      journal.jsonl        what happened, one line for each event, appended
      lock                 held by the process that works on the run
      data/                the images as arrays, and their list
      shared/ID/           what the trainings of all candidates begin with, if the detector has such a start
        detector/            the detector after it
        manifest.json
      frozen/ID/SET/       what the part of the detector that is never trained makes of the images, computed once
      candidates/ID-N/     what candidate ID was after N updates: written once, never changed
        evaluation.json      candidate, health, timings, discordance and separability, training curve
        evaluation.safetensors   embeddings and scores
        preview.npy          a few train images under its augmentation
        heatmaps.npy         how unusual each patch of each test image is, if the detector can say
        projection.npy       some of its embeddings in the plane, for the report
        detector/            the trained detector
        manifest.json        the checksum of every other file
      progress/ID          where a training stands; only for display
      selection.json       candidates, losses, choices, what is kept, and how often each candidate wins a resample
      finished.json        what the selection depends on: the same study again takes it as it is if nothing has changed
      aucs.json            AUCs, if a benchmark or the demo knows the labels
      model/               the chosen detector, or those of an ensemble in members/, with a manifest, and the scores
                           and the brightness of held-out good images
      model.onnx, model.pt2   the same detector as one file, if it was exported
      report.html          the page that shows why

A finished folder appears by one rename after everything in it is on the disk. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from dsv_plugins.errors import StoreError

__all__ = [
    "FORMAT",
    "MANIFEST",
    "RunFolder",
    "checksum",
    "files_below",
    "finished_folder",
    "finite",
    "finite_or_none",
    "json_text",
    "read_json",
    "write_bytes",
    "write_json",
    "write_text",
    "writing",
]

FORMAT = 5
MANIFEST = "manifest.json"
PARTIAL, REPLACED = ".partial", ".replaced"
FLUSHES = 4


class RunFolder:
    """One study's folder. The methods that write need `locked()` around them, but for `finished_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.study = self.path / "study.json"
        self.selection = self.path / "selection.json"
        self.finished = self.path / "finished.json"
        self.data = self.path / "data"
        self.model = self.path / "model"
        self.report = self.path / "report.html"
        self.aucs = self.path / "aucs.json"
        self.progress = self.path / "progress"
        self.candidates = self.path / "candidates"
        self.shared_starts = self.path / "shared"
        self.frozen = self.path / "frozen"
        self.journal = self.path / "journal.jsonl"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; a second process fails at once."""
        with writing(self.path):
            for folder in (self.path, self.data, self.progress, self.candidates):
                folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / "lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:  # an OSError too
                raise StoreError(
                    f"another process is working on {self.path}; wait for it to end, or give another --out"
                ) from None
        try:
            _remove_leftovers(self.path)
            yield
        finally:
            lock.release()

    def candidate(self, candidate_id: str, updates: int | None) -> Path:
        """The folder of a candidate's evaluation after that many updates; None is the whole budget of its detector."""
        return self.candidates / f"{candidate_id}-{'all' if updates is None else updates}"

    def exported(self, suffix: str) -> Path:
        """Return the chosen detector as one file, in the format of that suffix."""
        return self.path / f"model{suffix}"

    def shared_start(self, start_id: str) -> Path:
        """Return the folder of the common start of the candidates' trainings."""
        return self.shared_starts / start_id

    def frozen_features(self, detector_id: str, images: str) -> Path:
        """Return the folder of what a detector's frozen part makes of a set of images."""
        return self.frozen / detector_id / images


@contextlib.contextmanager
def finished_folder(target: Path) -> Iterator[Path]:
    """Give a new folder to fill; it appears at `target`, whole and with its checksums, when the block ends well."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=PARTIAL, dir=target.parent))
    try:
        with writing(target):
            yield partial
            files = files_below(partial)
            sums = {file.relative_to(partial).as_posix(): checksum(file) for file in files}
            (partial / MANIFEST).write_text(json_text(sums))
            written = {*files, partial / MANIFEST, partial, *(file.parent for file in files)}
            with ThreadPoolExecutor(FLUSHES) as pool:  # the disk takes several at once in the time of one
                list(pool.map(_flush, written))
            _replace_folder(target, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace_folder(target: Path, partial: Path) -> None:
    """Let a complete folder take the place of what is at `target`.

    A kill between the two renames leaves nothing at `target`; `_remove_leftovers` then finishes what was begun.
    """
    replaced = partial.with_suffix(REPLACED)
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    _flush(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file in one step, as `write_text` does."""
    write_text(path, json_text(content))


def json_text(content: object) -> str:
    """What is written into a JSON file. Inside a `finished_folder` a plain write will do: all is flushed in the end."""
    return f"{json.dumps(content, indent=2)}\n"


def finite_or_none(value: float | None) -> float | None:
    """Return a number as JSON has it, which knows no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def finite(content: Any) -> Any:
    """Return plain JSON content with None for every number that is not finite."""
    if isinstance(content, Mapping):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return finite_or_none(content) if isinstance(content, float) else content


def write_text(path: Path, content: str) -> None:
    """Write a text file in one step, as `write_bytes` does; what of a file's name is not UTF-8 is spelled out."""
    write_bytes(path, content.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader sees the old one or the new one, never a part."""
    # A name of its own, so that several writers at once do not write into the same partial file.
    partial = path.with_name(f".{uuid.uuid4().hex}{PARTIAL}")
    with writing(path):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _flush(path.parent)


def read_json(path: Path) -> Mapping[str, Any]:
    """Read a JSON object from a run folder."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error
    if not isinstance(content, dict):
        raise StoreError(f"{path} is damaged (it holds no object)")
    return content


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into one line that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(
            f"{path} cannot be written ({reason}); fix that and run the same command again, "
            "which resumes from what is finished"
        ) from error


def files_below(folder: Path) -> list[Path]:
    """Return every file below a folder, at any depth, in the order of their names."""
    return sorted(file for file in folder.rglob("*") if file.is_file())


def checksum(file: Path) -> str:
    """Return the SHA-256 of a file's content, which is never in memory as a whole."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _remove_leftovers(run: Path) -> None:
    """Remove what killed processes had begun to write, and finish the replacement of a folder by a complete one.

    Links are not followed, since others may use what is there.
    """
    for parent, folders, files in os.walk(run):
        for name in sorted(filter(_is_leftover, [*folders, *files])):
            leftover = Path(parent, name)
            target = leftover.with_name(name[1:].rsplit(".", 2)[0])
            if leftover.with_suffix(REPLACED).is_dir() and leftover.suffix == PARTIAL and not target.exists():
                leftover.rename(target)
            elif leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    leftover.unlink()
        folders[:] = [name for name in folders if not _is_leftover(name)]


def _is_leftover(name: str) -> bool:
    return name.startswith(".") and name.endswith((PARTIAL, REPLACED))


def _flush(path: Path) -> None:
    """Make the disk keep a file, or the entries of a folder, before anything relies on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
