"""How far the trainings are, read from the run folder, wherever they run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from dsv_plugins.observers import Observer
from dsv_plugins.types import Candidate

__all__ = ["Watcher"]

POLL_SECONDS = 0.5


class Watcher:
    """Tells an observer of trainings under way. Use as a context manager around them.

    Args:
        folder: Where trainings write how far they are, a file for each candidate.
        candidates: Those about to be trained.
        observer: Who is told.
    """

    def __init__(self, folder: Path, candidates: Sequence[Candidate], observer: Observer) -> None:
        self._folder = folder
        self._waiting = {candidate.id: candidate for candidate in candidates}
        self._told: dict[str, int] = {}
        self._observer = observer
        self._started = time.time()
        self._looking = threading.RLock()  # nobody may hear of a training after its end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def end(self, candidate: Candidate) -> None:
        """Tell what is untold of a candidate, and nothing more of it afterwards."""
        with self._looking:
            if candidate.id in self._waiting:
                self._look(candidate)
                if candidate.id not in self._told:
                    self._observer.training(candidate)
                del self._waiting[candidate.id]

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            for candidate in list(self._waiting.values()):
                with self._looking:
                    if candidate.id in self._waiting:
                        self._look(candidate)

    def _look(self, candidate: Candidate) -> None:
        file = self._folder / candidate.id
        try:
            if file.stat().st_mtime < self._started - 1:
                return  # of an earlier run that was interrupted
            state = json.loads(file.read_text())
        except (OSError, ValueError):
            return
        if candidate.id not in self._told:
            self._observer.training(candidate)
        if self._told.get(candidate.id) != state["update"]:
            self._told[candidate.id] = state["update"]
            self._observer.updated(candidate, **state)
