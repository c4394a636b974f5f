"""The trainings of a run: what is stored is taken, the rest is made by the executor."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv_plugins.errors import StoreError, TrainingError, WorkerError, reason_of
from dsv_plugins.evaluate import Job, load_evaluation, shared_start_of, work, work_on_shared_start
from dsv_plugins.interfaces import Executor, Outcome
from dsv_plugins.logbook import Logbook
from dsv_plugins.observers import Observer
from dsv_plugins.store import RunFolder, verify
from dsv_plugins.study import Study
from dsv_plugins.types import Candidate, Evaluation
from dsv_plugins.watching import Watcher

__all__ = ["Trainings"]


class Trainings:
    """Brings candidates to a number of updates, as a search asks for them.

    Args:
        study: The settings.
        folder: Where trainings are stored.
        executor: Who makes them.
        observer: Who is told of them.
        logbook: What keeps their events.
        shared_updates: The updates that all of them begin with.

    Attributes:
        asked: Every candidate that was asked for, by its id.
        stored: How far each one is trained.
        failures: Why some failed.
        costs: The updates spent on each one, for each number of updates it was brought to.
    """

    def __init__(
        self,
        study: Study,
        folder: RunFolder,
        executor: Executor,
        observer: Observer,
        logbook: Logbook,
        shared_updates: int,
    ) -> None:
        self._study = study
        self._folder = folder
        self._executor = executor
        self._observer = observer
        self._logbook = logbook
        self._shared_updates = shared_updates
        self.asked: dict[str, Candidate] = {}
        self.stored: dict[str, int | None] = {}
        self.failures: dict[str, str] = {}
        self.costs: dict[tuple[str, int | None], int] = {}

    def evaluate(
        self, candidates: Sequence[Candidate], updates: int | None, continues: int | None
    ) -> Mapping[str, Evaluation]:
        """Train those that are not stored yet, and load them all."""
        asked = {candidate.id: candidate for candidate in candidates}  # a search may propose one twice
        self.asked.update(asked)
        candidates = [candidate for candidate in asked.values() if candidate.id not in self.failures]
        missing = [candidate for candidate in candidates if not self._is_stored(candidate, updates)]
        start = self._shared_start(missing[0]) if missing and continues is None and self._shared_updates else None
        self._observer.dispatching(self._folder.path, missing, updates)
        jobs = [self._job(candidate, updates=updates, continues=continues, shared_start=start) for candidate in missing]
        for candidate, outcome in self._train(work, jobs):
            self._take(candidate, updates, outcome)
        noted = {
            (event["candidate"], event["updates"]) for event in self._folder.events() if event["event"] == "finished"
        }
        evaluations = {}
        for candidate in candidates:
            if candidate.id not in self.failures:
                self.stored[candidate.id] = updates and max(updates, self.stored.get(candidate.id) or 0)
                self.costs[candidate.id, updates] = (updates or 0) - (continues or 0)
                evaluation = load_evaluation(self._folder.candidate(candidate.id, updates))
                evaluations[candidate.id] = evaluation
                if (candidate.id, updates) not in noted:  # a kill fell between the end of its training and the note
                    seconds = sum(evaluation.timings.values())
                    self._logbook.record("finished", candidate=candidate.id, updates=updates, seconds=seconds)
        return evaluations

    def _shared_start(self, candidate: Candidate) -> str:
        """Train what all candidates begin with, unless it is stored, and return its id."""
        start = shared_start_of(candidate)
        if not self._is_whole(self._folder.shared_start(start.id), start):
            self._observer.dispatching(self._folder.path, [start], self._shared_updates)
            for _, outcome in self._train(work_on_shared_start, [self._job(start)]):
                if outcome.error is not None:
                    raise TrainingError(f"the start that all candidates share failed: {reason_of(outcome.error)}")
                assert outcome.value is not None
                self._observer.finished(start, outcome.value)
                self._logbook.record(
                    "shared start", start=start.id, updates=self._shared_updates, seconds=outcome.value
                )
        return start.id

    def _job(self, candidate: Candidate, **details: Any) -> Job:
        return Job(self._folder.path, candidate, threads=self._study.threads, plugins=self._study.plugins, **details)

    def _train(self, worker: Callable[[Job], float], jobs: Sequence[Job]) -> Iterator[tuple[Candidate, Outcome[float]]]:
        """Let the executor do the jobs, and tell how far each training is."""
        candidates = [job.candidate for job in jobs]
        with Watcher(self._folder.progress, candidates, self._observer) as watcher:
            for outcome in self._executor.run(worker, jobs) if jobs else ():
                candidate = candidates[outcome.index]
                watcher.end(candidate)
                if isinstance(outcome.error, (StoreError, WorkerError)):  # the fault of no candidate
                    raise outcome.error
                if outcome.note:
                    self._logbook.record("noted", candidate=candidate.id, message=outcome.note)
                    self._logbook.note(f"{candidate}: {outcome.note}")
                yield candidate, outcome

    def _take(self, candidate: Candidate, updates: int | None, outcome: Outcome[float]) -> None:
        """Note how a training ended, and tell."""
        if outcome.error is not None:
            reason = reason_of(outcome.error)
            self.failures[candidate.id] = reason
            self._logbook.record("failed", candidate=candidate.id, updates=updates, reason=reason)
            self._observer.failed(candidate, reason)
        else:
            assert outcome.value is not None
            self._logbook.record("finished", candidate=candidate.id, updates=updates, seconds=outcome.value)
            self._observer.finished(candidate, outcome.value)

    def _is_stored(self, candidate: Candidate, updates: int | None) -> bool:
        return self._is_whole(self._folder.candidate(candidate.id, updates), candidate)

    def _is_whole(self, folder: Path, candidate: Candidate) -> bool:
        """Whether a training is stored; a damaged one is removed, with a word."""
        if not folder.exists():
            return False
        problem = verify(folder)
        if problem is not None:
            self._logbook.note(f"{problem}; {candidate} is computed again")
            shutil.rmtree(folder)
        return problem is None
