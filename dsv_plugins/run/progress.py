"""How far each training is, as a small file in the run folder: only for display, and never worth a failure."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dsv_plugins.run.folder import RunFolder

__all__ = [
    "TrainingProgress",
    "mark_driver",
    "progress_texts",
    "read_progress",
    "write_progress",
    "write_progress_text",
]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The updates made, the updates planned, and the loss of the last one."""

    update: int
    planned: int
    loss: float


def write_progress(run: RunFolder, candidate_id: str, progress: TrainingProgress) -> None:
    """Note how far the training of a candidate is."""
    write_progress_text(run, candidate_id, json.dumps(asdict(progress)))


def write_progress_text(run: RunFolder, candidate_id: str, text: str) -> None:
    """Note what another machine noted of how far the training of a candidate is."""
    with contextlib.suppress(OSError):
        (run.progress / candidate_id).write_text(text)


def progress_texts(run: RunFolder) -> Iterator[tuple[str, str]]:
    """What is noted of each training, to be sent to another machine; a file may be empty while it is written."""
    for file in run.progress.iterdir():
        if text := file.read_text():
            yield file.name, text


def mark_driver(run: RunFolder) -> Path:
    """A new file by which a worker sees that it reaches the same run folder."""
    mark = run.progress / f".driver-{uuid.uuid4().hex}"
    mark.touch()
    return mark


def read_progress(run: RunFolder, candidate_id: str, *, since: float) -> TrainingProgress | None:
    """How far the training of a candidate is; None if nothing was noted since that time."""
    file = run.progress / candidate_id
    try:
        if file.stat().st_mtime < since:
            return None  # of an earlier run that was interrupted
        return TrainingProgress(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
