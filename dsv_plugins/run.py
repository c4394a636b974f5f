"""One run of a study: claim the folder, prepare the images, train what is missing, select, keep."""

from __future__ import annotations

import functools
import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dsv_plugins.bootstrap import win_shares
from dsv_plugins.dataset import open_dataset, prepare
from dsv_plugins.errors import (
    DSVError,
    InputError,
    PluginError,
    StoreError,
    TrainingError,
    WorkerError,
    described,
    one_line,
)
from dsv_plugins.evaluate import (
    DETECTOR,
    Job,
    load_evaluation,
    prepare_worker,
    shared_start_of,
    work,
    work_on_shared_start,
)
from dsv_plugins.images import BadFile
from dsv_plugins.interfaces import Outcome
from dsv_plugins.mirror import Mirror
from dsv_plugins.observers import Observer, Observers
from dsv_plugins.photometry import shift_warning
from dsv_plugins.records import DetectorEncoderPlugin, ExecutorPlugin, ObserverPlugin, SearchPlugin, SelectorPlugin
from dsv_plugins.registry import Registry, build_registry
from dsv_plugins.result import CandidateResult, Choice, Result
from dsv_plugins.search import SearchProblem
from dsv_plugins.selection import choose
from dsv_plugins.store import FORMAT, RunFolder, finished_folder, read_json, verify, write_json
from dsv_plugins.study import Study
from dsv_plugins.types import Candidate, Evaluation
from dsv_plugins.watching import Watcher

__all__ = ["Run"]

DEFAULT_IMAGE_SIZE = 256


class Run:
    """One run of a study: what it has looked up, and what has happened so far."""

    def __init__(self, study: Study, observer: Observer) -> None:
        self.study = study
        self.registry = build_registry(study.plugins)
        plugins = {name: self.registry.create(ObserverPlugin, name) for name in study.told}
        self.observer = Observers(observer, plugins)
        self.folder = RunFolder(study.folder())
        self.mirror = None if study.address is None else Mirror(study.address, self.folder)
        self.asked: dict[str, Candidate] = {}
        self.stored: dict[str, int | None] = {}
        self.failures: dict[str, str] = {}
        self.costs: dict[tuple[str, int | None], int] = {}
        self.notes: list[str] = []
        _check_settings(study, self.registry)
        # What is wrong with them shows before images are read; the ends of a range stand for what is between them.
        study.candidates(self.registry, context={}, range_points=2)
        detector = self.registry.create(DetectorEncoderPlugin, study.detector, study.detector_params)
        self.image_size = study.image_size or int(getattr(detector, "image_size", DEFAULT_IMAGE_SIZE))
        self.budget: int | None = getattr(detector, "updates", None)
        self.shared_updates = int(getattr(detector, "shared_updates", 0))
        if self.search_record.parts and self.budget is None:
            raise InputError(
                f"{study.search} needs to know a detector's budget, and {study.detector!r} has no `updates`"
            )
        self.search = self.registry.create(SearchPlugin, study.search, study.search_params)
        workers = {} if study.workers is None else {"workers": study.workers}
        self.executor = self.registry.create(ExecutorPlugin, study.executor, {**study.executor_params, **workers})

    @property
    def search_record(self) -> SearchPlugin:
        """What is known of the study's search before it runs."""
        return self.registry.get(SearchPlugin, self.study.search)

    def result(self) -> Result:
        """Do what is not done yet, and say what came out."""
        study = self.study
        with self.folder.locked():
            if self.mirror is not None:
                self.mirror.pull()
            self._claim()
            self._warm_up()
            for file in self.prepare_images(self.folder.data):
                self._note(f"left out: {file}")
            self._note_shift()
            problem = self._problem()
            self.observer.started(self.folder.path, [] if self.search_record.proposes else problem.grid())
            evaluations = self.search.run(problem)
            candidates = list(self.asked.values())
            finals = [candidate for candidate in candidates if candidate.id in evaluations]
            if not finals:
                if not self.failures:
                    raise TrainingError(f"the search {study.search!r} gave no candidate the whole budget")
                raise TrainingError(f"every candidate failed; the first: {next(iter(self.failures.values()))}")
            losses = self._losses([evaluations[candidate.id] for candidate in finals])
            selected = {name: self._choice(finals, values) for name, values in losses.items()}
            confidence = self._confidence([evaluations[candidate.id] for candidate in finals], list(selected))
            result = self._collect(candidates, finals, evaluations, losses, selected, confidence)
            self._keep(result)
            for name, choice in selected.items():
                self.observer.selected(name, choice.candidate, choice.loss)
            return result

    def prepare_images(self, folder: Path) -> Sequence[BadFile]:
        """Write the study's images into a folder, and return the files that were left out."""
        study = self.study
        return prepare(
            study.train,
            study.test,
            folder,
            size=self.image_size,
            holdout=study.holdout,
            seed=study.seed,
            skip_bad=study.skip_bad,
            progress=self.observer.decoding,
        )

    def _note_shift(self) -> None:
        dataset = open_dataset(self.folder.data)
        warning = shift_warning(dataset.train, dataset.test)
        if warning is not None:
            self._note(warning)

    def _claim(self) -> None:
        """Write what the run folder is for, or see that it is for this study."""
        identity = json.loads(json.dumps(self.study.identity()))
        if self.folder.study.exists():
            before = read_json(self.folder.study)
            if before["format"] != FORMAT:
                raise StoreError(f"{self.folder.path} has the format {before['format']}, and this version {FORMAT}")
            for name, value in before["identity"].items():
                if identity.get(name) != value:
                    raise InputError(
                        f"{self.folder.path} belongs to a study whose {name} is {value}, not {identity.get(name)}; "
                        "give another --out"
                    )
            self._record("resumed", pid=os.getpid(), command=_command())
        else:
            versions = {name: metadata.version(name) for name in ("dsv-plugins", "torch", "torchvision", "lightning")}
            write_json(self.folder.study, {"format": FORMAT, "identity": identity, "versions": versions})
            self._record("started", pid=os.getpid(), command=_command())

    def _warm_up(self) -> None:
        """Let workers start and import while images are read; a run that has a selection has nothing to train."""
        warm_up = getattr(self.executor, "warm_up", None)
        if warm_up is not None and not self.folder.selection.exists():
            study = self.study
            warm_up(functools.partial(prepare_worker, study.detector, dict(study.detector_params), study.plugins))

    def _context(self) -> dict[str, str]:
        dataset = open_dataset(self.folder.data)
        return {
            "data": dataset.fingerprint,
            "detector": str(self.registry.provider(DetectorEncoderPlugin, self.study.detector)),
            "torch": metadata.version("torch"),
            "threads": str(self.study.threads),
        }

    def _problem(self) -> SearchProblem:
        """The study as its search sees it."""
        study, registry = self.study, self.registry
        return SearchProblem(
            spaces=study.spaces(registry),
            candidate=functools.partial(study.candidate, registry, self._context()),
            evaluate=self._evaluate,
            losses=registry.create(SelectorPlugin, study.selectors[0]).losses,
            budget=self.budget,
            rungs=study.rungs,
            seed=study.seed,
            run=self.folder.path,
            note=self._note,
        )

    def _evaluate(
        self, candidates: Sequence[Candidate], updates: int | None, continues: int | None
    ) -> Mapping[str, Evaluation]:
        """Train those that are not stored yet, and load them all."""
        asked = {candidate.id: candidate for candidate in candidates}  # a search may propose one twice
        self.asked.update(asked)
        candidates = [candidate for candidate in asked.values() if candidate.id not in self.failures]
        missing = [candidate for candidate in candidates if not self._is_stored(candidate, updates)]
        start = self._shared_start(missing[0]) if missing and continues is None and self.shared_updates else None
        self.observer.dispatching(self.folder.path, missing, updates)
        jobs = [self._job(candidate, updates=updates, continues=continues, shared_start=start) for candidate in missing]
        for candidate, outcome in self._train(work, jobs):
            self._take(candidate, updates, outcome)
        noted = {
            (event["candidate"], event["updates"]) for event in self.folder.events() if event["event"] == "finished"
        }
        evaluations = {}
        for candidate in candidates:
            if candidate.id not in self.failures:
                self.stored[candidate.id] = updates and max(updates, self.stored.get(candidate.id) or 0)
                self.costs[candidate.id, updates] = (updates or 0) - (continues or 0)
                evaluation = load_evaluation(self.folder.candidate(candidate.id, updates))
                evaluations[candidate.id] = evaluation
                if (candidate.id, updates) not in noted:  # a kill fell between the end of its training and the note
                    seconds = sum(evaluation.timings.values())
                    self._record("finished", candidate=candidate.id, updates=updates, seconds=seconds)
        return evaluations

    def _shared_start(self, candidate: Candidate) -> str:
        """Train what all candidates begin with, unless it is stored, and return its id."""
        start = shared_start_of(candidate)
        if not self._is_whole(self.folder.shared_start(start.id), start):
            self.observer.dispatching(self.folder.path, [start], self.shared_updates)
            for _, outcome in self._train(work_on_shared_start, [self._job(start)]):
                if outcome.error is not None:
                    raise TrainingError(f"the start that all candidates share failed: {_reason(outcome.error)}")
                assert outcome.value is not None
                self.observer.finished(start, outcome.value)
                self._record("shared start", start=start.id, updates=self.shared_updates, seconds=outcome.value)
        return start.id

    def _job(self, candidate: Candidate, **details: Any) -> Job:
        return Job(self.folder.path, candidate, threads=self.study.threads, plugins=self.study.plugins, **details)

    def _train(self, worker: Callable[[Job], float], jobs: Sequence[Job]) -> Iterator[tuple[Candidate, Outcome[float]]]:
        """Let the executor do the jobs, and tell how far each training is."""
        candidates = [job.candidate for job in jobs]
        with Watcher(self.folder.progress, candidates, self.observer) as watcher:
            for outcome in self.executor.run(worker, jobs) if jobs else ():
                candidate = candidates[outcome.index]
                watcher.end(candidate)
                if isinstance(outcome.error, (StoreError, WorkerError)):  # the fault of no candidate
                    raise outcome.error
                if outcome.note:
                    self._record("noted", candidate=candidate.id, message=outcome.note)
                    self._note(f"{candidate}: {outcome.note}")
                yield candidate, outcome

    def _take(self, candidate: Candidate, updates: int | None, outcome: Outcome[float]) -> None:
        """Note how a training ended, and tell."""
        if outcome.error is not None:
            reason = _reason(outcome.error)
            self.failures[candidate.id] = reason
            self._record("failed", candidate=candidate.id, updates=updates, reason=reason)
            self.observer.failed(candidate, reason)
        else:
            assert outcome.value is not None
            self._record("finished", candidate=candidate.id, updates=updates, seconds=outcome.value)
            self.observer.finished(candidate, outcome.value)

    def _is_stored(self, candidate: Candidate, updates: int | None) -> bool:
        return self._is_whole(self.folder.candidate(candidate.id, updates), candidate)

    def _is_whole(self, folder: Path, candidate: Candidate) -> bool:
        """Whether a training is stored; a damaged one is removed, with a word."""
        if not folder.exists():
            return False
        problem = verify(folder)
        if problem is not None:
            self._note(f"{problem}; {candidate} is computed again")
            shutil.rmtree(folder)
        return problem is None

    def _losses(self, evaluations: Sequence[Evaluation]) -> dict[str, list[float]]:
        """The losses of every selector that can judge these candidates; the first must."""
        losses = {}
        for name in self.study.selectors:
            selector = self.registry.create(SelectorPlugin, name)
            label = f"selector {name!r} ({self.registry.provider(SelectorPlugin, name)})"
            try:
                values = [float(loss) for loss in selector.losses(evaluations)]
                if len(values) != len(evaluations):
                    raise PluginError(f"{label} gave {len(values)} losses for {len(evaluations)} candidates")
                choose(values)
            except Exception as error:
                reason = str(error) if isinstance(error, DSVError) else f"{label} failed: {_reason(error)}"
                if name == self.study.selectors[0]:
                    raise PluginError(reason) from error
                self._note(f"no choice by {name!r}: {reason}")
                continue
            losses[name] = values
            unusable = [
                str(e.candidate) for e, loss in zip(evaluations, values, strict=True) if not math.isfinite(loss)
            ]
            if unusable:
                self._note(f"{name!r} has no finite loss for {', '.join(unusable)}; they rank last")
        return losses

    def _confidence(self, evaluations: Sequence[Evaluation], names: Sequence[str]) -> dict[str, dict[str, float]]:
        """How often each candidate would win on other test images, by each selector that can judge resampled ones."""
        confidence = {}
        for name in names if self.study.confidence else ():
            selector = self.registry.create(SelectorPlugin, name)
            alone = self.registry.get(SelectorPlugin, name).judges_alone
            try:
                shares = win_shares(selector, evaluations, seed=self.study.seed, judges_alone=alone)
            except Exception as error:  # a plugin's loss may refuse a resample; its choice stands
                self._note(f"how clear the choice by {name!r} is cannot be told: {_reason(error)}")
                continue
            confidence[name] = {e.candidate.id: share for e, share in zip(evaluations, shares, strict=True)}
        return confidence

    def _choice(self, candidates: Sequence[Candidate], losses: Sequence[float]) -> Choice:
        index = choose(losses)
        return Choice(candidates[index], losses[index])

    def _collect(
        self,
        candidates: Sequence[Candidate],
        finals: Sequence[Candidate],
        evaluations: Mapping[str, Evaluation],
        losses: Mapping[str, Sequence[float]],
        selected: Mapping[str, Choice],
        confidence: Mapping[str, Mapping[str, float]],
    ) -> Result:
        by_candidate = {
            candidate.id: {name: values[index] for name, values in losses.items()}
            for index, candidate in enumerate(finals)
        }
        seconds = {e["candidate"]: e["seconds"] for e in self.folder.events() if e["event"] == "finished"}
        entries = []
        for candidate in candidates:
            evaluation = evaluations.get(candidate.id)
            status = "failed" if candidate.id in self.failures else "finished" if evaluation else "stopped"
            entries.append(
                CandidateResult(
                    candidate=candidate,
                    status=status,
                    reason=self.failures.get(candidate.id, ""),
                    losses=by_candidate.get(candidate.id),
                    updates=self.stored.get(candidate.id),
                    seconds=seconds.get(candidate.id),
                    health=evaluation.health if evaluation else None,
                )
            )
        chosen = next(iter(selected.values())).candidate
        health = evaluations[chosen.id].health
        if health is not None and not health.concentrated:
            self._note(
                f"the chosen {chosen} has a concentration of {health.concentration:.2f}, where DSV presumes far less "
                "than 1: its training did not bring the normal images close together; more updates may choose better"
            )
        return Result(
            run=self.folder.path,
            selected=selected,
            candidates=entries,
            updates_spent=None if self.budget is None else self.shared_updates + sum(self.costs.values()),
            confidence=confidence,
            notes=self.notes,
            plugins=self.study.plugins,
        )

    def _keep(self, result: Result) -> None:
        """Write the selection and the chosen model."""
        first, choice = next(iter(result.selected.items()))
        write_json(self.folder.selection, result.as_selection())
        source = self.folder.candidate(choice.candidate.id, self.stored[choice.candidate.id]) / DETECTOR
        with finished_folder(self.folder.model) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)
            write_json(
                folder / "model.json",
                {
                    "detector": choice.candidate.detector,
                    "detector_params": dict(choice.candidate.detector_params),
                    "augmentation": choice.candidate.augmentation,
                    "params": dict(choice.candidate.params),
                    "selector": first,
                    "image_size": self.image_size,
                },
            )
        self._record("selected", candidate=choice.candidate.id, selector=first)

    def _record(self, event: str, **details: object) -> None:
        """Append to the journal; what the event is about is finished by now, and can be copied to the address."""
        self.folder.note(event, **details)
        if self.mirror is not None:
            self.mirror.push()

    def _note(self, message: str) -> None:
        self.notes.append(message)
        self.observer.noted(message)


def _check_settings(study: Study, registry: Registry) -> None:
    if study.threads < 1:
        raise InputError(f"threads is {study.threads}; give a whole number of at least 1")
    for name in study.selectors:
        if registry.get(SelectorPlugin, name).needs_holdout and not study.holdout:
            raise InputError(
                f"{name!r} judges by good images kept out of training, and there are none: set --holdout 0.15"
            )
    judges = registry.get(SearchPlugin, study.search).judges
    if judges and not registry.get(SelectorPlugin, study.selectors[0]).judges_alone:
        alone = ", ".join(record.name for record in registry.of_kind(SelectorPlugin) if record.judges_alone)
        raise InputError(
            f"{study.search} judges candidates one by one, and {study.selectors[0]!r} judges only a whole pool; "
            f"put one of {alone} first"
        )


def _command() -> str:
    """The command line of this process, as one would type it."""
    program = Path(sys.argv[0]).name
    return shlex.join(["dsv" if program == "__main__.py" else program, *sys.argv[1:]])


def _reason(error: BaseException) -> str:
    return one_line(str(error)) if isinstance(error, DSVError) else described(error)
