"""Judges the images that arrive in a folder, and appends a row for each to a CSV file."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from dsv_plugins.data.images import IMAGE_SUFFIXES, at_once, decode_all, files_below
from dsv_plugins.errors import DSVError, InputError, StoreError, cell
from dsv_plugins.pixels import Note
from dsv_plugins.run.model import Model
from dsv_plugins.serving.batches import Judged, judge_all

__all__ = ["COLUMNS", "Watch"]

COLUMNS = ("file", "modified", "score", "p_value", "verdict")
UNREADABLE = "unreadable"
BATCH = 64
State = tuple[int, int]
"""Size of a file, and when it was modified, in nanoseconds."""


class Watch:
    """A folder whose images are judged once each, also if the command is stopped and run again.

    An image that replaces another of the same name is another image: it was modified at another time.

    Args:
        model: The model.
        folder: The folder, with all folders in it.
        out: The CSV file.
        note: Called with a line about an image, such as one that cannot be read, or if the images have changed.

    Raises:
        InputError: The folder is not there, or the file is another one.
        StoreError: The file cannot be read or written.
    """

    def __init__(self, model: Model, folder: Path, out: Path, note: Note) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give the folder in which images arrive")
        self._model, self._folder, self._out, self._note = model, folder, out, note
        self._seen: dict[Path, State] = {}
        self._drift = model.drift()
        try:
            self._done = _rows_of(out)
        except OSError as error:
            raise StoreError(f"{out} cannot be used ({error.strerror}); give another --out") from error

    def judge_new(self) -> int:
        """Judge the images that have not changed since the last call, and return how many rows were appended."""
        ready, seen = [], {}
        for file in files_below(self._folder):
            state = _state(file) if file.suffix.lower() in IMAGE_SUFFIXES else None
            if state is None:
                continue
            seen[file] = state
            if self._seen.get(file) == state and (self._name(file), _told(state)) not in self._done:
                ready.append((state[1], file))
        self._seen = seen
        arrived, size = iter([file for _, file in sorted(ready)]), self._model.record.image_size
        while batch := list(itertools.islice(arrived, at_once(BATCH, size))):
            self._append(list(self._judged(batch)))
        return len(ready)

    def _judged(self, files: list[Path]) -> Iterator[tuple[Path, Judged | DSVError]]:
        record = self._model.record
        decoded = list(decode_all(files, record.image_size, self._note, levels=record.levels))
        images = [(file, image) for file, image in decoded if not isinstance(image, InputError)]
        if images:
            outcomes = judge_all(self._model, [image for _, image in images])
            yield from zip([file for file, _ in images], outcomes, strict=True)
        # One that was taken away meanwhile is no bad image.
        yield from ((file, error) for file, error in decoded if isinstance(error, InputError) and file.exists())

    def _append(self, judged: list[tuple[Path, Judged | DSVError]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for file, outcome in judged:
            if isinstance(outcome, DSVError):
                self._note(str(outcome))
            elif changed := self._drift.add([outcome.score], [outcome.light]):
                self._note(changed)
            key = self._name(file), _told(self._seen[file])
            self._done.add(key)
            said = (
                ("", "", UNREADABLE)
                if isinstance(outcome, DSVError)
                else (outcome.score, outcome.p_value, outcome.verdict)
            )
            writer.writerow([*key, *("" if value is None else value for value in said)])
        try:
            with self._out.open("a", newline="", encoding="utf-8") as target:
                target.write(text.getvalue())
        except OSError as error:
            raise StoreError(f"{self._out} cannot be written ({error.strerror}); what is in it stays") from error

    def _name(self, file: Path) -> str:
        return cell(file.relative_to(self._folder).as_posix())


def _rows_of(out: Path) -> set[tuple[str, str]]:
    """Return which images a file has rows of; it is begun if it is not there, and its last row completed or cut off."""
    with out.open("a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind("\n") + 1]  # a kill may have left a part of a row behind it
        header, *rows = csv.reader(io.StringIO(whole)) if whole else [list(COLUMNS)]
        if tuple(header) != COLUMNS or (content and not whole):
            raise InputError(f"{out} has other columns than {','.join(COLUMNS)}; give another --out")
        if len(whole) < len(content):
            file.truncate(len(whole.encode()))
        if not whole:
            file.write(f"{','.join(COLUMNS)}\n")
    return {(name, modified) for name, modified, *_ in rows}


def _state(file: Path) -> State | None:
    """Return the state of a file; None if it has gone, or is still empty."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None


def _told(state: State) -> str:
    """Return when a file was modified, to the microsecond."""
    _, nanoseconds = state
    seconds, rest = divmod(nanoseconds // 1000, 1_000_000)
    return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest).isoformat(timespec="microseconds")
