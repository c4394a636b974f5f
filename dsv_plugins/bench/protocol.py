"""The paper's protocol: every task with every augmentation, each a study of its own that can be resumed."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from dsv_plugins.bench.cells import POOLED, Cell, measure, vary
from dsv_plugins.bench.methods import DEFAULT, installed_selectors, usable_selectors
from dsv_plugins.bench.studies import (
    Trained,
    brightened,
    random_study,
    read_study,
    reuse_work,
    rival_study,
)
from dsv_plugins.bench.tasks import Task
from dsv_plugins.errors import DSVError, InputError, StoreError, TrainingError, reason_of
from dsv_plugins.plugins.registry import Registry, build_registry
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.run import Run
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.study import Study
from dsv_plugins.training.job import threads

__all__ = ["AUGMENTATIONS", "Bench", "BenchResult"]

AUGMENTATIONS = ("cutout", "cutavg", "cutdiff", "cutpaste")

Conduct = Callable[[Study], Run]
Report = Callable[[str], None]


@dataclass(frozen=True)
class BenchResult:
    """The measurements of a benchmark.

    Attributes:
        cells: For each task and seed, a cell for each augmentation and one for all of them together.
        failures: Why a part has no cell, by the name of the part.
        rivals: For each task and rival: task, detector, auc, seconds of the study (None if it was interrupted), pixels.
        merges: Whether a study of this detector keeps all candidates as one, weighted, and not its choice.
    """

    cells: list[Cell] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    rivals: list[dict[str, Any]] = field(default_factory=list)
    merges: bool = False


@dataclass(frozen=True)
class Bench:
    """A benchmark of all selectors on labelled tasks.

    Attributes:
        tasks: Labelled tasks.
        out: The folder of the run folders.
        augmentations: Names of augmentations; each has a pool of its own, and all together form one more.
        seeds: Everything is trained once with each of them.
        settings: Further settings of every study, such as `grid` and `detector_params`.
        thin: Shares of the test set to which anomalies are reduced, to judge the trained candidates again.
        brighten: A factor for the pixels of the normal test images, to judge them again; None for none.
        rivals: Names of detectors that learn without augmentations, to compare with on each task.
    """

    tasks: Sequence[Task]
    out: Path
    augmentations: Sequence[str] = AUGMENTATIONS
    seeds: Sequence[int] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    thin: Sequence[float] = ()
    brighten: float | None = None
    rivals: Sequence[str] = ()

    def run(self, conduct: Conduct, report: Report) -> BenchResult:
        """Train what is not trained yet, and measure everything.

        Args:
            conduct: Runs a study, perhaps with a display.
            report: Called with one line when a part begins or fails.

        Raises:
            InputError: A setting is wrong.
            StoreError: A run folder cannot be used; what was finished is kept.
        """
        self._check()
        work = _Work(self, conduct, report)
        with threads(int(self.settings.get("threads", 1))):  # as in a study, whose losses are then the same
            for task in self.tasks:
                for seed in self.seeds:
                    work.measure_task(task, seed)
                for rival in self.rivals:
                    work.measure_rival(task, rival)
        return work.result

    def study(self, task: Task, augmentation: str, seed: int, registry: Registry) -> Study:
        """Return the study of one cell, with all selectors, so that its run folder shows what each of them chose.

        The default selector decides what the run folder keeps. How clear each choice is, is not measured: it would take
        longer than the choices, and the labels tell more.
        """
        others = sorted(usable_selectors(registry, holdout=self.holdout) - {DEFAULT})
        return Study(
            train=task.train,
            test=task.test,
            augmentation=augmentation,
            selector=[DEFAULT, *others],
            seed=seed,
            out=self.out / task.name / f"{augmentation}-{seed}",
            **{"skip_bad": True, "confidence": False, **self.settings, "holdout": self.holdout},
        )

    @property
    def holdout(self) -> float:
        """Return the share of held-out train images of every study."""
        return float(self.settings.get("holdout", 0.0))

    def _check(self) -> None:
        """Refuse wrong settings once, before the first task."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            given = ",".join(map(str, self.seeds)) or "empty"
            raise InputError(f"seeds is {given}; give whole numbers of at least 0, each once, as in 0,1,2")
        if not self.tasks or not self.augmentations or len(set(self.augmentations)) < len(self.augmentations):
            raise InputError("give at least one task and one augmentation, and each augmentation once")
        if len(set(self.thin)) < len(self.thin):
            raise InputError(f"thin has a share twice: {', '.join(map(str, self.thin))}; give each once")
        for share in self.thin:
            if not 0 < share < 1:
                raise InputError(f"thin has the share {share}; give shares of the test set between 0 and 1")
        if self.brighten is not None and not self.brighten > 0:
            raise InputError(f"brighten is {self.brighten}; give a factor above 0, as 1.05")


class _Work:
    """A benchmark that is running."""

    def __init__(self, bench: Bench, conduct: Conduct, report: Report) -> None:
        self.bench = bench
        self.registry = build_registry(bench.settings.get("plugins", ()))
        self.conduct = conduct
        self.report = report
        self.selectors = installed_selectors(self.registry, holdout=bench.holdout)
        studies = list(self._studies())
        merges = [plan_study(study, self.registry).merges for study in studies]  # refuses wrong settings
        self.result = BenchResult(merges=merges[0])
        self.folders = [RunFolder(study.folder()) for study in studies]
        self.started, self.missing_at_start = time.monotonic(), self._missing()

    def measure_task(self, task: Task, seed: int) -> None:
        """Add the cells of one task and seed; a part that fails is reported, and the others are still measured."""
        with self._reported(f"{task.name}, seed {seed}"):
            task.check_labels()
            pools = []
            for augmentation in self.bench.augmentations:
                with self._begun(f"{task.name}, {augmentation}, seed {seed}"):
                    pools.append(self._measure_augmentation(task, augmentation, seed))
            if len(self.bench.augmentations) > 1:
                with self._reported(f"{task.name}, {POOLED}, seed {seed}"):
                    if len(pools) < len(self.bench.augmentations):
                        raise TrainingError("an augmentation is missing, so this pool would not be the same as others")
                    self._add((task.name, POOLED, seed), Trained.together(pools))

    def measure_rival(self, task: Task, name: str) -> None:
        """Add a rival on one task."""
        with self._begun(f"{task.name}, {name}"):
            trained, _ = self._trained(self._rival(task, name), task.ground_truth)
            pixels = trained.pixels.get(trained.evaluations[0].candidate.id, {})
            found = {"auc": trained.model_auc, "seconds": trained.seconds, "pixels": pixels}
            self.result.rivals.append({"task": task.name, "detector": name, **found})

    def _measure_augmentation(self, task: Task, augmentation: str, seed: int) -> Trained:
        """Train and measure one cell, and return its pool."""
        study = self.bench.study(task, augmentation, seed, self.registry)
        pool, result = self._trained(study, task.ground_truth)
        try:
            random, _ = self._trained(random_study(study, self.registry))
            pool = replace(pool, random=random.model_auc)
        except StoreError:
            raise
        except DSVError as error:  # the other methods can still be compared
            pool = replace(pool, notes=[*pool.notes, f"no Random run: {error}"])
        if (factor := self.bench.brighten) is not None:
            with self._reported(f"{task.name}, {augmentation}, seed {seed}, brighter normals"):
                pool = replace(pool, brighter={f"normals × {factor:g}": brightened(result, pool, factor)})
        self._add((task.name, augmentation, seed), pool)
        return pool

    def _trained(self, study: Study, ground_truth: Path | None = None) -> tuple[Trained, Run]:
        reuse_work(study)
        result = self.conduct(study)
        return read_study(result, ground_truth), result

    def _add(self, name: tuple[str, str, int], pool: Trained) -> None:
        cell = measure(name, pool, self.selectors, self.registry)
        self.result.cells.append(cell)
        with self._reported("{}, {}, seed {}, variations".format(*name)):
            varied = vary(pool, self.bench.thin, self.selectors, self.registry, seed=cell.seed)
            self.result.cells[-1] = replace(cell, aucs={**cell.aucs, **varied})

    def _rival(self, task: Task, name: str) -> Study:
        """Return the study of a rival, with the first seed: it has nothing to choose."""
        study = self.bench.study(task, self.bench.augmentations[0], self.bench.seeds[0], self.registry)
        return rival_study(study, name, self.registry)

    def _studies(self) -> Iterator[Study]:
        """Yield the studies of all cells and rivals."""
        for task in self.bench.tasks:
            for augmentation, seed in itertools.product(self.bench.augmentations, self.bench.seeds):
                yield self.bench.study(task, augmentation, seed, self.registry)
            for name in self.bench.rivals:
                yield self._rival(task, name)

    def _missing(self) -> int:
        return sum(not folder.selection.exists() for folder in self.folders)

    @contextlib.contextmanager
    def _begun(self, part: str) -> Iterator[None]:
        """Say that this part begins, with an estimate of the time left, and report its failure."""
        missing = self._missing()
        finished = self.missing_at_start - missing
        left = (time.monotonic() - self.started) / finished * missing if finished else 0
        self.report(f"{part}; about {timedelta(seconds=round(left))} left" if left else part)
        with self._reported(part):
            yield

    @contextlib.contextmanager
    def _reported(self, part: str) -> Iterator[None]:
        """Report a failure of this part and continue; only an unusable store ends the benchmark."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            self.result.failures[part] = reason_of(error)
            self.report(f"{part} failed: {self.result.failures[part]}")
