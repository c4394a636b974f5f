"""The paper's protocol: every task with every augmentation, each a study of its own that can be interrupted."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

from dsv_plugins.bench.aucs import auc_of, labels_of, measure_aucs
from dsv_plugins.bench.cells import POOLED, Cell, measure
from dsv_plugins.bench.methods import installed_methods, usable_selectors
from dsv_plugins.bench.tasks import Task
from dsv_plugins.bench.time_left import TimeLeft
from dsv_plugins.bench.variations import Variations, Varied, vary
from dsv_plugins.errors import DSVError, InputError, StoreError, TrainingError, reason_of
from dsv_plugins.hooks.registry import Registry, build_registry
from dsv_plugins.store.artifacts import has_image_index
from dsv_plugins.store.folder import RunFolder
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.result import Result
from dsv_plugins.study.study import Study
from dsv_plugins.training.job import threads
from dsv_plugins.types import Evaluation

__all__ = ["AUGMENTATIONS", "Bench", "Outcome"]

AUGMENTATIONS = ("cutout", "cutavg", "cutdiff", "cutpaste")
SELECTOR = "dsv"
"""It decides which model each run folder keeps."""

Conduct = Callable[[Study], Result]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a benchmark.

    Attributes:
        cells: What was measured: for each task and seed a cell for each augmentation, and one for all together.
        failures: Why a part of it has no cell, by the name of the part.
        varied: The AUCs of the choices on changed test sets, if any were asked for.
    """

    cells: Sequence[Cell]
    failures: Mapping[str, str]
    varied: Sequence[Varied] = ()


@dataclass(frozen=True)
class Bench:
    """Which selector chooses well? Settings here, the work in `run`.

    Attributes:
        tasks: Labelled tasks.
        out: Where the run folders go.
        augmentations: Names of augmentations; each has a pool of its own, and all together form one more.
        seeds: How many times everything is trained.
        settings: Further settings of every study, such as `grid` and `detector_params`.
        variations: Changed test sets on which the trained candidates are judged again.
    """

    tasks: Sequence[Task]
    out: Path
    augmentations: Sequence[str] = AUGMENTATIONS
    seeds: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    variations: Variations = field(default_factory=Variations)

    def run(self, conduct: Conduct, report: Report) -> Outcome:
        """Do what is not done yet, and measure everything.

        Args:
            conduct: Runs a study, perhaps with a display.
            report: Told of each part as it begins or fails.

        Raises:
            InputError: A setting is wrong.
            StoreError: A run folder cannot be used; what was finished is kept.
        """
        registry = build_registry(self.settings.get("plugins", ()))
        self._check()
        work = _Work(self, registry, conduct, report)
        for task in self.tasks:
            for seed in range(self.seeds):
                work.measure_task(task, seed)
        return Outcome(work.cells, work.failures, work.varied)

    def study(self, task: Task, augmentation: str, seed: int, registry: Registry) -> Study:
        """The study of one cell. It takes all selectors, so that its run folder shows what each of them chose.

        How clear each choice is would take longer than the choices, and the labels tell more.
        """
        others = sorted(usable_selectors(registry, holdout=self.holdout) - {SELECTOR})
        return Study(
            train=task.train,
            test=task.test,
            augmentation=augmentation,
            selector=[SELECTOR, *others],
            seed=seed,
            out=self.out / task.name / f"{augmentation}-{seed}",
            **{"skip_bad": True, "confidence": False, **self.settings},
        )

    @property
    def holdout(self) -> float:
        """The share of the train images that every study keeps out of training."""
        return float(self.settings.get("holdout", 0.0))

    def _check(self) -> None:
        """What is wrong with the settings shows now, and not once for every task."""
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; give a whole number of at least 1")
        if not self.tasks or not self.augmentations or len(set(self.augmentations)) < len(self.augmentations):
            raise InputError("give at least one task and one augmentation, and each augmentation once")
        self.variations.check()


class _Work:
    """A benchmark under way."""

    def __init__(self, bench: Bench, registry: Registry, conduct: Conduct, report: Report) -> None:
        self.bench = bench
        self.registry = registry
        self.conduct = conduct
        self.report = report
        self.methods = installed_methods(registry, holdout=bench.holdout)
        self.cells: list[Cell] = []
        self.failures: dict[str, str] = {}
        self.varied: list[Varied] = []
        for augmentation in bench.augmentations:
            plan_study(bench.study(bench.tasks[0], augmentation, 0, registry), registry)  # refuses wrong settings
        self.time_left = TimeLeft(dict(self._planned()))

    def measure_task(self, task: Task, seed: int) -> None:
        """Add the cells of one task and seed; what fails is reported, and the rest goes on."""
        with self._going_on(f"{task.name}, seed {seed}"):
            task.check_labels()
            pools = []
            for augmentation in self.bench.augmentations:
                part = f"{task.name}, {augmentation}, seed {seed}"
                self.report("; ".join(filter(None, (part, str(self.time_left)))))
                with self._going_on(part):
                    pools.append(self._measure(task, augmentation, seed))
            if len(self.bench.augmentations) > 1:
                with self._going_on(f"{task.name}, {POOLED}, seed {seed}"):
                    if len(pools) < len(self.bench.augmentations):
                        raise TrainingError("an augmentation is missing, and a smaller pool would be another question")
                    evaluations = [evaluation for pool, _ in pools for evaluation in pool]
                    self._add((task.name, POOLED, seed), evaluations, pools[0][1])

    def _measure(self, task: Task, augmentation: str, seed: int) -> tuple[list[Evaluation], list[bool]]:
        """Train and measure one cell, and return its pool with the labels of the test images."""
        study = self.bench.study(task, augmentation, seed, self.registry)
        self._share_work(study)
        result = self.conduct(study)
        labels = labels_of(result.run)
        measure_aucs(result, labels)
        finished = [entry.candidate for entry in result.candidates if entry.status == "finished"]
        evaluations = [result.evaluation(candidate) for candidate in finished]
        notes = [note for note in result.notes if note.startswith("left out")]
        notes += [f"{entry.candidate} failed: {entry.reason}" for entry in result.candidates if entry.reason]
        random = None
        try:
            random = self._random_auc(study, labels)
        except StoreError:
            raise
        except DSVError as error:  # one baseline less is no reason to lose the others
            notes.append(f"no Random run: {error}")
        cell = self._add((task.name, augmentation, seed), evaluations, labels, random=random, notes=notes)
        with self._going_on(f"{task.name}, {augmentation}, seed {seed}, variations"), threads(study.threads):
            self.varied += vary(
                cell,
                evaluations,
                labels,
                result,
                variations=self.bench.variations,
                methods=self.methods,
                registry=self.registry,
            )
        return evaluations, labels

    def _random_auc(self, study: Study, labels: Sequence[bool]) -> float:
        """The AUC of one more training, outside the pool, that redraws the hyperparameters for every image."""
        random = _random_study(study, self.registry)
        self._share_work(random)
        result = self.conduct(random)
        return auc_of(result.evaluation(result.choice.candidate), labels)

    def _add(
        self,
        name: tuple[str, str, int],
        evaluations: Sequence[Evaluation],
        labels: Sequence[bool],
        *,
        random: float | None = None,
        notes: Sequence[str] = (),
    ) -> Cell:
        cell = measure(
            name, evaluations, labels, methods=self.methods, registry=self.registry, random=random, notes=notes
        )
        self.cells.append(cell)
        return cell

    def _share_work(self, study: Study) -> None:
        """Copy what does not depend on the augmentation from another study of the task: images and shared starts."""
        run = RunFolder(study.folder())
        others = [RunFolder(path) for path in run.path.parent.glob("*/") if path != run.path]
        prepared = next((other.data for other in others if has_image_index(other.data)), None)
        if prepared is not None and not has_image_index(run.data):
            shutil.copytree(prepared, run.data, dirs_exist_ok=True)
        for start in (start for other in others for start in other.shared_starts.glob("[!.]*")):
            if not run.shared_start(start.name).exists():  # its name tells for which settings, seed and images it is
                shutil.copytree(start, run.shared_start(start.name))

    def _planned(self) -> Iterator[tuple[Path, int]]:
        for task in self.bench.tasks:
            for augmentation in self.bench.augmentations:
                for seed in range(self.bench.seeds):
                    study = self.bench.study(task, augmentation, seed, self.registry)
                    yield study.folder(), len(plan_study(study, self.registry).candidates())
                    with contextlib.suppress(DSVError):  # said where it is missed
                        yield _random_study(study, self.registry).folder(), 1

    @contextlib.contextmanager
    def _going_on(self, part: str) -> Iterator[None]:
        """Report a failure of this part; only a disk that takes no more ends the whole."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            reason = reason_of(error)
            self.failures[part] = reason
            self.report(f"{part} failed: {reason}")


def _random_study(study: Study, registry: Registry) -> Study:
    """A study of one candidate whose hyperparameters are ranges over the grid, drawn from for every image.

    Raises:
        DSVError: The augmentation has hyperparameters without a range, or does not take ranges.
    """
    points = [candidate.params for candidate in plan_study(study, registry).candidates()]
    ranges: dict[str, list[object]] = {}
    for name in points[0]:
        values = [point[name] for point in points]
        if len({str(value) for value in values}) == 1:
            ranges[name] = values[:1]
            continue
        numbers = [value for value in values if isinstance(value, Real)]
        if len(numbers) < len(values):
            raise InputError(f"{name} has values that are no numbers, so there is no range to draw it from")
        ranges[name] = [[float(min(numbers)), float(max(numbers))]]
    out = study.folder().with_name(f"{study.folder().name}-random")
    random = replace(study, grid=ranges, selector=SELECTOR, out=out)
    plan_study(random, registry)  # refuses an augmentation that takes no ranges
    return random
