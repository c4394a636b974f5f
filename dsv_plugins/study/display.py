"""How a study looks while it runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsv_plugins.plugins.observer import Observer
from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Display"]

SILENCE = 30.0
"""Seconds without a line after which one tells how far a training is, if there is no terminal for a bar."""


class Display(Observer):
    """Shows decoding, each training that is under way and the whole.

    ```python
    with Display() as display:
        result = select("parts/train/good", "parts/test", observer=display)
    ```

    Args:
        console: Where to show it; the standard error if None.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._decoding: dict[str, TaskID] = {}
        self._training: dict[str, TaskID] = {}
        self._waiting: dict[str, Candidate] = {}
        self._parts: dict[str, float] = {}
        self._whole: TaskID | None = None
        self._done = 0
        self._said = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def decoding(self, images: str, done: int, planned: int) -> None:
        """Move the bar of a set of images."""
        if images not in self._decoding:
            self._decoding[images] = self._progress.add_task(f"reading {images} images", total=planned, detail="")
        self._progress.update(self._decoding[images], completed=done, detail=f"{done}/{planned}")
        if done == planned:
            self._say(f"read {planned} {images} images")
            self._progress.update(self._decoding[images], visible=False)

    def dispatching(self, run: Path, candidates: Sequence[Candidate], updates: int | None) -> None:
        """Start a round of trainings."""
        self._waiting = {candidate.id: candidate for candidate in candidates}
        self._done = 0
        if not candidates:
            self._say("every candidate is trained already")
            return
        trained = f"{len(candidates)} candidates" if len(candidates) > 1 else str(candidates[0])
        self._say(f"training {trained}{f' for {updates} updates' if updates else ''}")
        if self._whole is not None:
            self._progress.remove_task(self._whole)
        self._whole = self._progress.add_task("all candidates", total=len(candidates), detail="")

    def updated(self, candidate: Candidate, update: int, planned: int, loss: float) -> None:
        """Move the bar of a training."""
        if candidate.id not in self._training:
            self._training[candidate.id] = self._progress.add_task(escape(str(candidate)), total=planned, detail="")
        detail = f"{update}/{planned} loss {loss:.3f}"
        self._progress.update(self._training[candidate.id], completed=update, detail=detail)
        self._parts[candidate.id] = update / planned
        self._show_whole()
        if not self._console.is_terminal and time.monotonic() - self._said >= SILENCE:
            self._say(f"{candidate}: {detail}, {self._done} of {self._planned()} done")

    def finished(self, candidate: Candidate, seconds: float, evaluation: Evaluation | None = None) -> None:
        """Take a candidate off the display."""
        self._end(candidate)
        self._say(f"{candidate} done in {seconds:.0f} s, {self._done} of {self._planned()}")

    def failed(self, candidate: Candidate, reason: str) -> None:
        """Take a candidate off the display, with its reason."""
        self._end(candidate)
        self._say(f"{candidate} failed: {reason}")

    def noted(self, message: str) -> None:
        """Show a line."""
        self._say(f"note: {message}")

    def _planned(self) -> int:
        return self._done + len(self._waiting)

    def _end(self, candidate: Candidate) -> None:
        self._waiting.pop(candidate.id, None)
        self._parts.pop(candidate.id, None)
        if candidate.id in self._training:
            self._progress.remove_task(self._training.pop(candidate.id))
        self._done += 1
        self._show_whole()

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._console.print(escape(line), soft_wrap=True, highlight=False)

    def _show_whole(self) -> None:
        if self._whole is not None:  # trainings under way count in part, so that the time left is known early
            completed = self._done + sum(self._parts.values())
            self._progress.update(self._whole, completed=completed, detail=f"{self._done}/{self._planned()}")
