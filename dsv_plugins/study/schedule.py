"""The trainings of a run: what is stored is loaded, the rest is trained by the executor."""

from __future__ import annotations

import json
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dsv_plugins.errors import (
    PluginError,
    PluginSettingsError,
    StoreError,
    TrainingError,
    WorkerError,
    reason_of,
    shown,
)
from dsv_plugins.plugins.interfaces import DetectorEncoder, Executor, Outcome
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.plugins.records import ExecutorPlugin
from dsv_plugins.run.artifacts import EvaluationFolder, read_image_index
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.study.observers import ProgressWatcher, RunLog
from dsv_plugins.study.plan import Plan
from dsv_plugins.training.job import (
    IMAGE_SETS,
    Job,
    compute_frozen_features,
    frozen_part_of,
    shared_start_of,
    train_candidate,
    train_shared_start,
)
from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Schedule", "outcomes_of"]

Work = TypeVar("Work")


class Schedule:
    """Trains candidates up to a number of updates, as a search requests them.

    Args:
        plan: What the study is going to do.
        folder: Where trainings are stored.
        executor: What runs them.
        log: What records them.

    Attributes:
        requested: Every candidate that was requested, by its id.
        trained_to: How far each one is trained.
        failures: Why some failed.
        costs: The updates spent on each one, for each number of updates it was trained to.
        first_error: What the first training that failed raised.
    """

    def __init__(self, plan: Plan, folder: RunFolder, executor: Executor, log: RunLog) -> None:
        self._plan = plan
        self._folder = folder
        self._executor = executor
        self._log = log
        self.requested: dict[str, Candidate] = {}
        self.trained_to: dict[str, int | None] = {}
        self.failures: dict[str, str] = {}
        self.costs: dict[tuple[str, int | None], int] = {}
        self.first_error: BaseException | None = None
        self._refusals: dict[str, PluginSettingsError | None] = {}

    @property
    def updates_spent(self) -> int | None:
        """The training updates of all candidates; None if the detector does not count them."""
        if self._plan.budget is None:
            return None
        starts = {start.id: start for start in map(shared_start_of, self.requested.values())}
        return sum(self._plan.shared_updates(start.detector) for start in starts.values()) + sum(self.costs.values())

    def accepted(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that their plugins can be made with; a note tells which cannot, when they first come up."""
        new = [each for each in candidates if each.id not in self._refusals]
        self._refusals |= {each.id: self._plan.refusal(each) for each in new}
        refused = [each for each in new if self._refusals[each.id] is not None]
        if refused:
            several = f"{len(refused)} candidates are left out, the first: " if len(refused) > 1 else ""
            self._log.note(f"{several or f'{refused[0]} is left out: '}{self._refusals[refused[0].id]}")
        return [each for each in candidates if self._refusals[each.id] is None]

    def evaluate(
        self, candidates: Sequence[Candidate], updates: int | None, resumes_from: int | None
    ) -> Mapping[str, Evaluation]:
        """Train those that are not stored yet, and load them all."""
        requested = {each.id: each for each in self.accepted(candidates)}  # a search may propose one twice
        self.requested.update(requested)
        candidates = [candidate for candidate in requested.values() if candidate.id not in self.failures]
        missing = [candidate for candidate in candidates if not self._is_stored(candidate, updates)]
        for reason in _why_again(missing, self._folder) if resumes_from is None else ():
            self._log.note(reason)
        frozen = self._frozen_features([each for each in missing if self._detector(each).has_frozen_part])
        sharing = [each for each in missing if resumes_from is None and self._detector(each).shared_updates > 0]
        starts = self._shared_starts(sharing, frozen)
        self._log.notify(Observer.dispatching, self._folder.path, missing, updates)
        timeout = self._plan.settings.timeout
        jobs = [
            self._job(
                candidate,
                updates=updates,
                resumes_from=resumes_from,
                shared_start=starts.get(candidate.id),
                frozen=frozen.get(candidate.id),
                timeout=timeout,
            )
            for candidate in missing
        ]
        for candidate, outcome in self._train(train_candidate, jobs, timeout=timeout):
            self._take(candidate, updates, outcome)
        return self._load(candidates, updates, resumes_from)

    def _load(
        self, candidates: Sequence[Candidate], updates: int | None, resumes_from: int | None
    ) -> dict[str, Evaluation]:
        events = self._log.journal.events()
        recorded = {(event["candidate"], event["updates"]) for event in events if event["event"] == "finished"}
        evaluations = {}
        for candidate in candidates:
            if candidate.id not in self.failures:
                self.trained_to[candidate.id] = updates and max(updates, self.trained_to.get(candidate.id) or 0)
                self.costs[candidate.id, updates] = (updates or 0) - (resumes_from or 0)
                evaluation = EvaluationFolder(self._folder.candidate(candidate.id, updates)).load()
                evaluations[candidate.id] = evaluation
                if (candidate.id, updates) not in recorded:  # a kill fell between the end of its training and the event
                    seconds = sum(evaluation.timings.values())
                    self._log.record("finished", candidate=candidate.id, updates=updates, seconds=seconds)
        return evaluations

    def _shared_starts(self, candidates: Sequence[Candidate], frozen: Mapping[str, str]) -> dict[str, str]:
        """Train what candidates of the same detector begin with, unless it is stored; its id, by candidate id.

        Args:
            candidates: The candidates.
            frozen: The id of the frozen features of each, by candidate id, if the detector has any.
        """
        starts = {candidate.id: shared_start_of(candidate) for candidate in candidates}
        features = {start.id: frozen.get(candidate_id) for candidate_id, start in starts.items()}
        distinct = {start.id: start for start in starts.values()}.values()
        missing = [start for start in distinct if not self._is_whole(self._folder.shared_start(start.id), start)]
        if missing:
            self._log.notify(
                Observer.dispatching, self._folder.path, missing, self._plan.shared_updates(missing[0].detector)
            )
        jobs = [self._job(start, frozen=features[start.id]) for start in missing]
        for start, outcome in self._train(train_shared_start, jobs):
            if outcome.error is not None:
                raise TrainingError(f"the start that all candidates share failed: {reason_of(outcome.error)}")
            assert outcome.value is not None
            self._log.notify(Observer.finished, start, outcome.value)
            updates = self._plan.shared_updates(start.detector)
            self._log.record("shared start", start=start.id, updates=updates, seconds=outcome.value)
        return {candidate_id: start.id for candidate_id, start in starts.items()}

    def _frozen_features(self, candidates: Sequence[Candidate]) -> dict[str, str]:
        """Compute what the frozen parts make of the images, unless it is stored; the part's id, by candidate id."""
        settings = {candidate.id: self._detector(candidate).frozen_settings for candidate in candidates}
        frozen = {candidate.id: frozen_part_of(candidate, settings[candidate.id]).id for candidate in candidates}
        sets = (
            [images for images in IMAGE_SETS if images in read_image_index(self._folder.data).files] if frozen else []
        )
        jobs = []
        for part_id, candidate in {frozen[candidate.id]: candidate for candidate in candidates}.items():
            for images in sets:
                part = frozen_part_of(candidate, settings[candidate.id], images)
                if not self._is_whole(self._folder.frozen_features(part_id, images), part):
                    jobs.append(self._job(part, frozen=part_id))
        for _, outcome in self._train(compute_frozen_features, jobs):
            if outcome.error is not None:
                raise TrainingError(f"the frozen part of the detector failed: {reason_of(outcome.error)}")
        return frozen

    def _detector(self, candidate: Candidate) -> DetectorEncoder:
        return self._plan.detectors[candidate.detector]

    def _job(self, candidate: Candidate, **details: Any) -> Job:
        settings = self._plan.settings
        return Job(self._folder.path, candidate, threads=settings.threads, plugins=settings.plugins, **details)

    def _train(
        self, training: Callable[[Job], float], jobs: Sequence[Job], *, timeout: float | None = None
    ) -> Iterator[tuple[Candidate, Outcome[float]]]:
        """Let the executor run the jobs, and notify of how far each training is."""
        candidates = [job.candidate for job in jobs]
        executor = self._executor if timeout is None else self._executor.limited(seconds=timeout)
        label = self._plan.registry.label(ExecutorPlugin, self._plan.settings.executor)
        with ProgressWatcher(self._folder, candidates, self._log.observers) as watcher:
            for outcome in outcomes_of(executor, label, training, jobs) if jobs else ():
                candidate = candidates[outcome.index]
                watcher.end(candidate)
                if isinstance(outcome.error, (StoreError, WorkerError)):  # the fault of no candidate
                    raise outcome.error
                if outcome.note:
                    self._log.note(f"{candidate}: {outcome.note}")
                yield candidate, outcome

    def _take(self, candidate: Candidate, updates: int | None, outcome: Outcome[float]) -> None:
        """Record how a training ended."""
        if outcome.error is not None:
            reason = reason_of(outcome.error)
            self.failures[candidate.id] = reason
            self.first_error = self.first_error or outcome.error
            where = "".join(traceback.format_exception(outcome.error))
            self._log.record("failed", candidate=candidate.id, updates=updates, reason=reason, traceback=where)
            self._log.notify(Observer.failed, candidate, reason)
        else:
            assert outcome.value is not None
            self._log.record("finished", candidate=candidate.id, updates=updates, seconds=outcome.value)
            evaluation = EvaluationFolder(self._folder.candidate(candidate.id, updates)).load()
            self._log.notify(Observer.finished, candidate, outcome.value, evaluation=evaluation)

    def _is_stored(self, candidate: Candidate, updates: int | None) -> bool:
        return self._is_whole(self._folder.candidate(candidate.id, updates), candidate)

    def _is_whole(self, folder: Path, candidate: Candidate) -> bool:
        """Return whether a training is stored; a damaged one is removed, with a note."""
        if not folder.exists():
            return False
        problem = verify(folder)
        if problem is not None:
            self._log.note(f"{problem}; {candidate} is trained again")
            shutil.rmtree(folder)
        return problem is None


def outcomes_of(
    executor: Executor, label: str, work: Callable[[Work], float], jobs: Sequence[Work]
) -> Iterator[Outcome[float]]:
    """Yield the outcome of each job as the executor says that it ended.

    Args:
        executor: What runs the jobs.
        label: What names it.
        work: What is done with each job.
        jobs: The jobs.

    Raises:
        PluginError: The executor failed, or its outcomes are not one for each job.
    """
    missing = list(range(len(jobs)))
    with wrap_errors(label):
        outcomes = iter(executor.run(work, jobs))
    while True:
        with wrap_errors(label):
            outcome = next(outcomes, None)
        if outcome is None and not missing:
            return
        if not isinstance(outcome, Outcome):
            left = f"{shown(outcome)} in place of an outcome" if outcome is not None else "no outcome"
            raise PluginError(f"{label} gave {left} for {len(missing)} of {len(jobs)} jobs")
        if outcome.index not in missing:
            raise PluginError(f"{label} gave an outcome of job {shown(outcome.index)}, which is none that is left")
        if outcome.error is None and not isinstance(outcome.value, (int, float)):
            raise PluginError(f"{label} gave {shown(outcome.value)} as what a job returned")
        missing.remove(outcome.index)
        yield outcome


def _why_again(missing: Sequence[Candidate], folder: RunFolder) -> list[str]:
    """Return a line for each reason for which candidates that were trained before do not count any more.

    Args:
        missing: The candidates that are about to be trained.
        folder: The run folder, which still has the earlier trainings.
    """
    before = _stored(folder) if missing else {}
    reasons = Counter(
        "; ".join(_differences(candidate, before[key]))
        for candidate in missing
        if (key := _name_of(candidate)) in before
    )
    return [f"{count} of {len(missing)} trained before, trained again: {reason}" for reason, count in reasons.items()]


def _stored(folder: RunFolder) -> dict[str, Mapping[str, Any]]:
    """The contexts of the trainings that the folder has; the latest one if a candidate was trained more than once."""
    found: dict[str, Mapping[str, Any]] = {}
    trained = folder.candidates.glob("[!.]*") if folder.candidates.is_dir() else ()
    for path in sorted(trained, key=lambda path: path.stat().st_mtime):
        try:
            candidate = EvaluationFolder(path).record().candidate
        except StoreError:  # a damaged one tells nothing
            continue
        found[_name_of(candidate)] = candidate.context
    return found


def _name_of(candidate: Candidate) -> str:
    """Return what a user calls the same candidate."""
    settings = (candidate.augmentation, candidate.params, candidate.detector, candidate.detector_params, candidate.seed)
    return json.dumps(settings, sort_keys=True, default=str)


def _differences(candidate: Candidate, before: Mapping[str, Any]) -> list[str]:
    now = candidate.context
    changed = [name for name in now if now[name] != before.get(name)]
    return [_told(name, getattr(candidate, name, ""), str(before.get(name)), now[name]) for name in changed]


def _told(what: str, plugin: str, before: str, now: str) -> str:
    if what == "data":
        return "the images have changed"
    provider = before.partition(" [")[0]
    if plugin and provider == now.partition(" [")[0]:
        return f"the code of the {what} {plugin} ({provider}) has changed"
    return f"{what} {plugin}".rstrip() + f" was {before} and is {now}"
