"""One run of a study: claim the folder, prepare the images, train what is missing, select, keep."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from dsv_plugins.dataset import open_dataset, prepare
from dsv_plugins.errors import InputError, StoreError, TrainingError
from dsv_plugins.evaluate import DETECTOR
from dsv_plugins.images import BadFile
from dsv_plugins.interfaces import Executor
from dsv_plugins.judgement import Judgement
from dsv_plugins.logbook import Logbook
from dsv_plugins.mirror import Mirror
from dsv_plugins.observers import Observer, Observers
from dsv_plugins.photometry import shift_warning
from dsv_plugins.records import DetectorEncoderPlugin, ObserverPlugin, SearchPlugin, SelectorPlugin
from dsv_plugins.registry import build_registry
from dsv_plugins.result import CandidateResult, Choice, Result
from dsv_plugins.search import SearchProblem
from dsv_plugins.selection import choose
from dsv_plugins.store import FORMAT, RunFolder, finished_folder, read_json, write_json
from dsv_plugins.study import Study
from dsv_plugins.trainings import Trainings
from dsv_plugins.types import Evaluation

__all__ = ["Run"]

DEFAULT_IMAGE_SIZE = 256


class Run:
    """One run of a study: what it has looked up, and what has happened so far.

    Args:
        study: The settings.
        observer: Told what happens, beside the study's observer plugins.
        executor: Where the trainings run, if it is made already.

    Raises:
        InputError: A setting is wrong.
    """

    def __init__(self, study: Study, observer: Observer, executor: Executor | None = None) -> None:
        self.study = study
        self.registry = build_registry(study.plugins)
        plugins = {name: self.registry.create(ObserverPlugin, name) for name in study.told}
        self.observer = Observers(observer, plugins)
        self.folder = RunFolder(study.folder())
        self.mirror = None if study.address is None else Mirror(study.address, self.folder)
        self.logbook = Logbook(self.folder, self.mirror, self.observer)
        study.check(self.registry)
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
        self.executor = executor or study.make_executor(self.registry)
        self.trainings = Trainings(study, self.folder, self.executor, self.observer, self.logbook, self.shared_updates)

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
            for file in self.prepare_images(self.folder.data):
                self.logbook.note(f"left out: {file}")
            warnings = self._warnings()
            for warning in warnings:
                self.logbook.note(warning)
            problem = self._problem()
            self.observer.started(self.folder.path, [] if self.search_record.proposes else problem.grid())
            evaluations = self.search.run(problem)
            finals = [evaluations[candidate_id] for candidate_id in self.trainings.asked if candidate_id in evaluations]
            if not finals:
                failures = list(self.trainings.failures.values())
                if not failures:
                    raise TrainingError(f"the search {study.search!r} gave no candidate the whole budget")
                raise TrainingError(f"every candidate failed; the first: {failures[0]}")
            judgement = Judgement(study, self.registry, self.logbook.note)
            losses = judgement.losses(finals)
            confidence = judgement.confidence(finals, list(losses))
            result = replace(self._collect(finals, losses, confidence), warnings=warnings)
            self._keep(result)
            for name, choice in result.selected.items():
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

    def _warnings(self) -> list[str]:
        """What in the images speaks against comparing them."""
        dataset = open_dataset(self.folder.data)
        warning = shift_warning(dataset.train, dataset.test)
        return [] if warning is None else [warning]

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
            self.logbook.record("resumed", pid=os.getpid(), command=_command())
        else:
            versions = {name: metadata.version(name) for name in ("dsv-plugins", "torch", "torchvision", "lightning")}
            write_json(self.folder.study, {"format": FORMAT, "identity": identity, "versions": versions})
            self.logbook.record("started", pid=os.getpid(), command=_command())

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
            evaluate=self.trainings.evaluate,
            losses=registry.create(SelectorPlugin, study.selectors[0]).losses,
            budget=self.budget,
            rungs=study.rungs,
            seed=study.seed,
            run=self.folder.path,
            note=self.logbook.note,
        )

    def _collect(
        self,
        finals: Sequence[Evaluation],
        losses: Mapping[str, Sequence[float]],
        confidence: Mapping[str, Mapping[str, float]],
    ) -> Result:
        """The result, with the candidates that have no place in the selection too."""
        trainings = self.trainings
        places = {evaluation.candidate.id: place for place, evaluation in enumerate(finals)}
        seconds = {e["candidate"]: e["seconds"] for e in self.folder.events() if e["event"] == "finished"}
        entries = []
        for candidate in trainings.asked.values():
            place = places.get(candidate.id)
            status = "failed" if candidate.id in trainings.failures else "stopped" if place is None else "finished"
            entries.append(
                CandidateResult(
                    candidate=candidate,
                    status=status,
                    reason=trainings.failures.get(candidate.id, ""),
                    losses=None if place is None else {name: values[place] for name, values in losses.items()},
                    updates=trainings.stored.get(candidate.id),
                    seconds=seconds.get(candidate.id),
                    health=None if place is None else finals[place].health,
                )
            )
        chosen = {name: choose(values) for name, values in losses.items()}
        self._note_concentration(finals[next(iter(chosen.values()))])
        return Result(
            run=self.folder.path,
            selected={
                name: Choice(trainings.asked[finals[place].candidate.id], losses[name][place])
                for name, place in chosen.items()
            },
            candidates=entries,
            updates_spent=None if self.budget is None else self.shared_updates + sum(trainings.costs.values()),
            confidence=confidence,
            notes=self.logbook.notes,
            plugins=self.study.plugins,
        )

    def _note_concentration(self, chosen: Evaluation) -> None:
        health = chosen.health
        if health is not None and not health.concentrated:
            self.logbook.note(
                f"the chosen {chosen.candidate} has a concentration of {health.concentration:.2f}, where DSV presumes "
                "far less than 1: its training did not bring the normal images close together; more updates may choose "
                "better"
            )

    def _keep(self, result: Result) -> None:
        """Write the selection and the chosen model."""
        first, choice = next(iter(result.selected.items()))
        write_json(self.folder.selection, result.as_selection())
        source = self.folder.candidate(choice.candidate.id, self.trainings.stored[choice.candidate.id]) / DETECTOR
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
        self.logbook.record("selected", candidate=choice.candidate.id, selector=first)


def _command() -> str:
    """The command line of this process, as one would type it."""
    program = Path(sys.argv[0]).name
    return shlex.join(["dsv" if program == "__main__.py" else program, *sys.argv[1:]])
