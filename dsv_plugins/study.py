"""The study: from two sets of images to a selected, trained detector."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv_plugins.errors import InputError
from dsv_plugins.interfaces import Executor
from dsv_plugins.mirror import is_address
from dsv_plugins.observers import Observer
from dsv_plugins.records import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    ObserverPlugin,
    SearchPlugin,
    SelectorPlugin,
)
from dsv_plugins.registry import Registry, build_registry
from dsv_plugins.search import Rungs
from dsv_plugins.spaces import DEFAULT_RANGE_POINTS, Space, grid, space_problems, space_to_json
from dsv_plugins.types import Candidate
from dsv_plugins.workers import warmed_up

if TYPE_CHECKING:  # torch comes with these
    from dsv_plugins.dataset import Source
    from dsv_plugins.result import Result

__all__ = ["RUNS_VARIABLE", "Study", "select"]

RUNS_VARIABLE = "DSV_RUNS"


@dataclass(frozen=True)
class Study:
    """Which augmentation hyperparameters suit these images? Settings here, the work in `run`.

    Attributes:
        train: Normal images: a folder, or a uint8 tensor (images, channels, height, width).
        test: Unlabelled images, likewise.
        augmentation: Name of an augmentation plugin, or several: their candidates form one pool.
        grid: Values or ranges of hyperparameters, in place of those in the plugin's search space.
        detector: Name of the detector-encoder plugin.
        detector_params: Settings of the detector.
        selector: Name of a selector plugin, or several; the first one decides which detector is kept.
        search: Name of the search plugin: "grid" trains every candidate fully; "halving" drops the worse ones early.
        search_params: Settings of the search.
        rungs: How the budget grows, for searches that spend it in parts.
        seed: Fixes every draw.
        holdout: Share of the train images to keep out of training, for selectors that want unseen normals.
        confidence: Whether to ask, for each choice, how often it would be the same on resampled test images.
        executor: Name of the executor plugin.
        executor_params: Settings of the executor.
        observers: Name of an observer plugin, or several, to tell what happens, such as loggers.
        workers: How many candidates at once, for executors that have workers.
        threads: Threads of each training. Results are the same whatever the executor, not whatever the threads.
        image_size: Height and width to load images at; the detector's own where None.
        skip_bad: Go on without files that cannot be read and without test images that are train images too.
        out: The run folder; one named after the settings, below $DSV_RUNS or ./dsv-runs, where None. An address of
            fsspec, such as s3://bucket/run, gets a copy of everything finished, to go on from on any machine.
        plugins: Plugins that are in no package, as for `build_registry`.
    """

    train: Source
    test: Source
    augmentation: str | Sequence[str] = "cutpaste"
    grid: Space = field(default_factory=dict)
    detector: str = "cutpaste-resnet18"
    detector_params: Mapping[str, object] = field(default_factory=dict)
    selector: str | Sequence[str] = "dsv"
    search: str = "grid"
    search_params: Mapping[str, object] = field(default_factory=dict)
    rungs: Rungs = field(default_factory=Rungs)
    seed: int = 0
    holdout: float = 0.0
    confidence: bool = True
    executor: str = "processes"
    executor_params: Mapping[str, object] = field(default_factory=dict)
    observers: str | Sequence[str] = ()
    workers: int | None = None
    threads: int = 1
    image_size: int | None = None
    skip_bad: bool = False
    out: Path | str | None = None
    plugins: tuple[object, ...] = ()

    def run(self, observer: Observer | None = None) -> Result:
        """Do what is not done yet, and select.

        Args:
            observer: Told what happens, beside the observer plugins that the study names.

        Raises:
            InputError: A setting or a file is wrong.
            StoreError: The run folder cannot be used; what was finished is kept.
            TrainingError: Every candidate failed.
        """
        registry = build_registry(self.plugins)
        self.check(registry)
        executor = self.make_executor(registry)
        with warmed_up(executor, self):
            from dsv_plugins.run import Run  # it needs this module, and brings torch, for which no worker should wait

            return Run(self, observer or Observer(), executor).result()

    @property
    def augmentations(self) -> tuple[str, ...]:
        """The names of the augmentations."""
        return _names(self.augmentation, "augmentation")

    @property
    def selectors(self) -> tuple[str, ...]:
        """The names of the selectors, the deciding one first."""
        return _names(self.selector, "selector")

    @property
    def told(self) -> tuple[str, ...]:
        """The names of the observer plugins."""
        return _names(self.observers, "observers") if self.observers else ()

    def check(self, registry: Registry) -> None:
        """See that the plugins are there and go together; no plugin is made for that, so it takes no time.

        Raises:
            InputError: They are not, or do not.
        """
        for kind, names in (
            (AugmentationPlugin, self.augmentations),
            (DetectorEncoderPlugin, (self.detector,)),
            (ObserverPlugin, self.told),
        ):
            for name in names:
                registry.get(kind, name)
        if self.threads < 1:
            raise InputError(f"threads is {self.threads}; give a whole number of at least 1")
        for name in self.selectors:
            if registry.get(SelectorPlugin, name).needs_holdout and not self.holdout:
                raise InputError(
                    f"{name!r} judges by good images kept out of training, and there are none: set --holdout 0.15"
                )
        judges = registry.get(SearchPlugin, self.search).judges
        if judges and not registry.get(SelectorPlugin, self.selectors[0]).judges_alone:
            alone = ", ".join(record.name for record in registry.of_kind(SelectorPlugin) if record.judges_alone)
            raise InputError(
                f"{self.search} judges candidates one by one, and {self.selectors[0]!r} judges only a whole pool; "
                f"put one of {alone} first"
            )

    def make_executor(self, registry: Registry) -> Executor:
        """The executor, with its settings."""
        workers = {} if self.workers is None else {"workers": self.workers}
        return registry.create(ExecutorPlugin, self.executor, {**self.executor_params, **workers})

    def spaces(self, registry: Registry) -> dict[str, Space]:
        """The search space of each augmentation."""
        for problem in space_problems(self.grid):
            raise InputError(f"grid: {problem}")
        return {name: {**registry.get(AugmentationPlugin, name).space, **self.grid} for name in self.augmentations}

    def candidate(
        self, registry: Registry, context: Mapping[str, str], augmentation: str, params: Mapping[str, object]
    ) -> Candidate:
        """A candidate of this study."""
        registry.create(AugmentationPlugin, augmentation, params)  # a wrong setting shows now, not after an hour
        return Candidate(
            augmentation=augmentation,
            params=dict(params),
            detector=self.detector,
            detector_params=dict(self.detector_params),
            seed=self.seed,
            context={**context, "augmentation": str(registry.provider(AugmentationPlugin, augmentation))},
        )

    def candidates(
        self, registry: Registry, context: Mapping[str, str], range_points: int = DEFAULT_RANGE_POINTS
    ) -> list[Candidate]:
        """The pool, in grid order: every point of every augmentation's search space, so many of each range."""
        return [
            self.candidate(registry, context, name, point)
            for name, space in self.spaces(registry).items()
            for point in grid(space, range_points)
        ]

    def identity(self) -> dict[str, Any]:
        """What a run folder belongs to: every setting that decides which trainings there are."""
        return {
            "train": _named_source(self.train),
            "test": _named_source(self.test),
            "augmentation": list(self.augmentations),
            "grid": space_to_json(self.grid),
            "detector": self.detector,
            "detector_params": dict(self.detector_params),
            "image_size": self.image_size,
            "search": self.search,
            "rungs": None if self.search == "grid" else [self.rungs.count, self.rungs.factor],
            "seed": self.seed,
            "holdout": self.holdout,
            "threads": self.threads,
        }

    @property
    def address(self) -> str | None:
        """Where the run folder has a copy, if `out` is an address."""
        return str(self.out) if is_address(self.out) else None

    def folder(self) -> Path:
        """The run folder, as an absolute path; of an address, the folder on this machine where the work is done."""
        if self.out is not None and self.address is None:
            return Path(self.out).absolute()
        digest = _digest(self.address or json.dumps(self.identity(), sort_keys=True))
        return Path(os.environ.get(RUNS_VARIABLE, "dsv-runs"), f"{'-'.join(self.augmentations)}-{digest}").absolute()


def select(train: Source | str, test: Source | str, *, observer: Observer | None = None, **settings: Any) -> Result:
    """Run a study in one call; the settings are those of `Study`."""
    return Study(_source(train), _source(test), **settings).run(observer)


def _names(value: str | Sequence[str], what: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or len(set(names)) != len(names):
        raise InputError(f"{what} is {', '.join(names) or 'empty'}; name at least one, and each once")
    return names


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _source(source: Source | str) -> Source:
    return Path(source) if isinstance(source, str) else source


def _named_source(source: Source) -> str:
    if isinstance(source, Path):
        return str(source.absolute())
    return hashlib.sha256(source.contiguous().cpu().numpy().tobytes()).hexdigest()[:16]
