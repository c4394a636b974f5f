"""An estimate of the time that a benchmark still takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from dsv_plugins.run.folder import RunFolder

__all__ = ["TimeLeft"]

MINUTE, HOUR = 60, 3600


class TimeLeft:
    """Estimates the time left from the trainings that have appeared in the run folders since it was made.

    It counts what is on the disk, including what an earlier call has finished.
    """

    def __init__(self, planned: Mapping[Path, int]) -> None:
        self._planned = planned
        self._started = time.monotonic()
        self._missing_at_start = self.missing()

    def missing(self) -> int:
        """The number of trainings that are not stored yet."""
        return sum(max(0, count - _stored(folder)) for folder, count in self._planned.items())

    def __str__(self) -> str:
        """The estimate in words; empty until a training has finished."""
        missing = self.missing()
        trained = self._missing_at_start - missing
        if trained <= 0 or not missing:
            return ""
        seconds = (time.monotonic() - self._started) / trained * missing
        return f"about {_words(seconds)} left"


def _stored(folder: Path) -> int:
    candidates = RunFolder(folder).candidates
    return sum(1 for each in candidates.glob("[!.]*")) if candidates.is_dir() else 0


def _words(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"
