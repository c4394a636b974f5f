"""The paper's protocol: every task with every augmentation, each a study of its own that can be resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv_plugins.bench.aucs import auc_of, labels_of, measure_aucs
from dsv_plugins.bench.cells import MODEL, POOLED, Cell, measure
from dsv_plugins.bench.methods import DEFAULT, installed_methods, usable_selectors
from dsv_plugins.bench.pixels import measure_pixels
from dsv_plugins.bench.random_run import random_study
from dsv_plugins.bench.reuse import reuse_work
from dsv_plugins.bench.rivals import Rival, rival_study
from dsv_plugins.bench.tasks import Task
from dsv_plugins.bench.time_left import TimeLeft
from dsv_plugins.bench.variations import Variations, VariedAUCs, vary
from dsv_plugins.errors import DSVError, InputError, StoreError, TrainingError, reason_of
from dsv_plugins.plugins.registry import Registry, build_registry
from dsv_plugins.run.run import Run
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.study import Study
from dsv_plugins.training.job import threads
from dsv_plugins.types import Evaluation

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
        varied: The AUCs of the choices on changed test sets, if any were asked for.
        rivals: The AUC of each rival on each task, if any were asked for.
        merges: Whether a study of this detector keeps all candidates as one, weighted, and not its choice.
    """

    cells: Sequence[Cell]
    failures: Mapping[str, str]
    varied: Sequence[VariedAUCs] = ()
    rivals: Sequence[Rival] = ()
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
        variations: Changed test sets on which the trained candidates are judged again.
        rivals: Names of detectors that learn without augmentations, to compare with on each task.
    """

    tasks: Sequence[Task]
    out: Path
    augmentations: Sequence[str] = AUGMENTATIONS
    seeds: Sequence[int] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variations: Variations = field(default_factory=Variations)
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
        registry = build_registry(self.settings.get("plugins", ()))
        self._check()
        work = _Work(self, registry, conduct, report)
        for task in self.tasks:
            for seed in self.seeds:
                work.measure_task(task, seed)
            work.measure_rivals(task)
        study = self.study(self.tasks[0], self.augmentations[0], self.seeds[0], registry)
        merges = plan_study(study, registry).merges
        return BenchResult(work.cells, work.failures, work.varied, work.rivals, merges)

    def study(self, task: Task, augmentation: str, seed: int, registry: Registry) -> Study:
        """The study of one cell, with all selectors, so that its run folder shows what each of them chose.

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
        """The share of the train images that every study keeps out of training."""
        return float(self.settings.get("holdout", 0.0))

    def _check(self) -> None:
        """Refuse wrong settings once, before the first task."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            given = ",".join(map(str, self.seeds)) or "empty"
            raise InputError(f"seeds is {given}; give whole numbers of at least 0, each once, as in 0,1,2")
        if not self.tasks or not self.augmentations or len(set(self.augmentations)) < len(self.augmentations):
            raise InputError("give at least one task and one augmentation, and each augmentation once")
        self.variations.check()


@dataclass(frozen=True, slots=True)
class _Pool:
    """The trained candidates of one cell, and what the labels say of them.

    Attributes:
        evaluations: The candidates.
        labels: Whether each test image is anomalous.
        pixels: The pixel measures of each candidate that has any, by its id.
    """

    evaluations: Sequence[Evaluation]
    labels: Sequence[bool]
    pixels: Mapping[str, Mapping[str, float]]


class _Work:
    """A benchmark that is running."""

    def __init__(self, bench: Bench, registry: Registry, conduct: Conduct, report: Report) -> None:
        self.bench = bench
        self.registry = registry
        self.conduct = conduct
        self.report = report
        self.methods = installed_methods(registry, holdout=bench.holdout)
        self.cells: list[Cell] = []
        self.failures: dict[str, str] = {}
        self.varied: list[VariedAUCs] = []
        self.rivals: list[Rival] = []
        self.time_left = TimeLeft(dict(self._planned()))

    def measure_task(self, task: Task, seed: int) -> None:
        """Add the cells of one task and seed; a part that fails is reported, and the others are still measured."""
        with self._reported(f"{task.name}, seed {seed}"):
            task.check_labels()
            pools = []
            for augmentation in self.bench.augmentations:
                part = f"{task.name}, {augmentation}, seed {seed}"
                self.report("; ".join(filter(None, (part, str(self.time_left)))))
                with self._reported(part):
                    pools.append(self._measure(task, augmentation, seed))
            if len(self.bench.augmentations) > 1:
                with self._reported(f"{task.name}, {POOLED}, seed {seed}"):
                    if len(pools) < len(self.bench.augmentations):
                        raise TrainingError("an augmentation is missing, so this pool would not be the same as others")
                    every = [evaluation for pool in pools for evaluation in pool.evaluations]
                    # A detector that learns without augmentations is the same candidate in each pool.
                    evaluations = list({evaluation.candidate.id: evaluation for evaluation in every}.values())
                    pixels = {name: found for pool in pools for name, found in pool.pixels.items() if name != MODEL}
                    self._add((task.name, POOLED, seed), _Pool(evaluations, pools[0].labels, pixels))

    def measure_rivals(self, task: Task) -> None:
        """Add the rivals on one task, with the first seed: they have nothing to choose."""
        for name in self.bench.rivals:
            part = f"{task.name}, {name}"
            self.report("; ".join(filter(None, (part, str(self.time_left)))))
            with self._reported(part):
                study = self._rival(task, name)
                reuse_work(study)
                result = self.conduct(study)
                labels, candidate = labels_of(result.path), result.choice.candidate
                pixels, _ = measure_pixels(result, task.ground_truth, labels)
                auc = auc_of(result.evaluation(candidate), labels)
                self.rivals.append(Rival(task.name, name, auc, _seconds(result), pixels.get(candidate.id, {})))

    def _rival(self, task: Task, name: str) -> Study:
        study = self.bench.study(task, self.bench.augmentations[0], self.bench.seeds[0], self.registry)
        return rival_study(study, name, self.registry)

    def _measure(self, task: Task, augmentation: str, seed: int) -> _Pool:
        """Train and measure one cell, and return its pool."""
        study = self.bench.study(task, augmentation, seed, self.registry)
        reuse_work(study)
        result = self.conduct(study)
        labels = labels_of(result.path)
        measure_aucs(result, labels)
        finished = [entry.candidate for entry in result.candidates if entry.status == "finished"]
        pixels, without_masks = measure_pixels(result, task.ground_truth, labels)
        pool = _Pool([result.evaluation(candidate) for candidate in finished], labels, pixels)
        notes = [note for note in result.notes if note.startswith("left out")]
        notes += [f"{entry.candidate} failed: {entry.reason}" for entry in result.candidates if entry.reason]
        notes += without_masks
        random = None
        try:
            random = self._random_auc(study, labels)
        except StoreError:
            raise
        except DSVError as error:  # the other methods can still be compared
            notes.append(f"no Random run: {error}")
        name = (task.name, augmentation, seed)
        cell = self._add(name, pool, random=random, seconds=_seconds(result), notes=notes)
        with self._reported(f"{task.name}, {augmentation}, seed {seed}, variations"), threads(study.threads):
            self.varied += vary(
                cell,
                pool.evaluations,
                labels,
                result,
                variations=self.bench.variations,
                methods=self.methods,
                registry=self.registry,
            )
        return pool

    def _random_auc(self, study: Study, labels: Sequence[bool]) -> float:
        """The AUC of the Random baseline, which is not in the pool."""
        random = random_study(study, self.registry)
        reuse_work(random)
        result = self.conduct(random)
        return auc_of(result.evaluation(result.choice.candidate), labels)

    def _add(
        self,
        name: tuple[str, str, int],
        pool: _Pool,
        *,
        random: float | None = None,
        seconds: float | None = None,
        notes: Sequence[str] = (),
    ) -> Cell:
        cell = measure(
            name,
            pool.evaluations,
            pool.labels,
            methods=self.methods,
            registry=self.registry,
            random=random,
            seconds=seconds,
            pixels=pool.pixels,
            notes=notes,
        )
        self.cells.append(cell)
        return cell

    def _planned(self) -> Iterator[tuple[Path, int]]:
        """The run folders, and the number of trainings in each.

        Raises:
            DSVError: A setting is wrong.
        """
        for task in self.bench.tasks:
            for name in self.bench.rivals:
                yield self._rival(task, name).folder(), 1
            for augmentation in self.bench.augmentations:
                for seed in self.bench.seeds:
                    study = self.bench.study(task, augmentation, seed, self.registry)
                    yield study.folder(), len(plan_study(study, self.registry).candidates())
                    with contextlib.suppress(DSVError):  # reported with the cell that lacks it
                        yield random_study(study, self.registry).folder(), 1

    @contextlib.contextmanager
    def _reported(self, part: str) -> Iterator[None]:
        """Report a failure of this part and continue; only an unusable store ends the benchmark."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            reason = reason_of(error)
            self.failures[part] = reason
            self.report(f"{part} failed: {reason}")


def _seconds(result: Run) -> float | None:
    """How long the study of a result took; None if it was interrupted."""
    return result.journal.elapsed()
