"""How far each training is, as a small file in the run folder: only for display, and never worth a failure."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass

from dsv_plugins.run.folder import RunFolder

__all__ = ["TrainingProgress", "read_progress", "write_progress"]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The updates made, the updates planned, and the loss of the last one."""

    update: int
    planned: int
    loss: float


def write_progress(run: RunFolder, candidate_id: str, progress: TrainingProgress) -> None:
    """Write how far the training of a candidate is."""
    with contextlib.suppress(OSError):
        (run.progress / candidate_id).write_text(json.dumps(asdict(progress)))


def read_progress(run: RunFolder, candidate_id: str, *, since: float) -> TrainingProgress | None:
    """Return how far the training of a candidate is; None if nothing was written since that time."""
    file = run.progress / candidate_id
    try:
        if file.stat().st_mtime < since:
            return None  # of an earlier run that was interrupted
        return TrainingProgress(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
