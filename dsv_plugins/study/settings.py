"""The settings of a study, and what they identify: its run folder, and the trainings that belong to it.

A setting is part of the identity unless its metadata say `identifies: False`, so that none can be forgotten there. The
command line takes its flags, their help and their groups from here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv_plugins.errors import InputError, shown
from dsv_plugins.plugins.plugin_files import as_plugins
from dsv_plugins.plugins.records import Plugin
from dsv_plugins.plugins.search import Rungs
from dsv_plugins.plugins.spaces import Space, Values, When, space_problems, space_to_json
from dsv_plugins.run.remote_copy import is_address
from dsv_plugins.types import DETECTOR_PREFIX

if TYPE_CHECKING:  # torch comes with it
    from dsv_plugins.data.sources import Source

__all__ = ["RUNS_VARIABLE", "StudySettings"]

RUNS_VARIABLE = "DSV_RUNS"

IMAGES, CANDIDATES, DETECTORS, SELECTION, EXECUTION = (
    {"group": name} for name in ("images", "candidates", "detector", "selection", "execution")
)
"""The groups of the settings in the help of a command. A setting without a group has no flag."""
FREE = {"identifies": False}
"""Runs that differ in such a setting only are one run."""
LARGEST_SEED = 2**32 - 1
"""What numpy, scikit-learn and torch all take."""
KEPT = CHOICE, WEIGHTED, ENSEMBLE = "choice", "weighted", "ensemble"
LEAST_TILE, MOST_OVERLAP = 32, 0.9
MOST_SUSPECTS = 0.5
MOST_THREADS = 256
"""More than that crash torch on some machines, and no training is faster with them."""


@dataclass(frozen=True)
class StudySettings:
    """Every setting of a study.

    Attributes:
        train: Normal images: a folder, a pattern such as good/*.png, a list of paths, a txt or csv file of paths, a
            dataset of torch, or a uint8 tensor (images, channels, height, width).
        test: Unlabelled images, likewise. Without them nothing can be chosen: one candidate, or the ensemble of all, is
            kept, and held-out images stand in for test images in the report.
        drop_suspects: Leave out train images that look so unlike the others that they may be defective, but never more
            than this share of them.
        tile: Cut images into square tiles with sides of so many of their own pixels, so that small defects of large
            images are not lost; each tile is resized to the detector's size. An image is as anomalous as its most
            anomalous tile.
        overlap: The part of its side that a tile shares with the next; more than the largest small defect is enough.
        augmentation: Name of an augmentation plugin, or several as a,b,c: their candidates form one pool.
        grid: Values or ranges of hyperparameters, in place of those that the plugin suggests; of the detector's
            settings, too, as detector.NAME, or of one of several detectors, as patch-memory.NAME.
        search: Name of the search plugin, which decides what is trained and how far: grid, halving, …
        search_params: Settings of the search, such as {trials: 20}.
        rungs: In how many parts the budget is spent, for searches that spend it in parts.
        rung_factor: By how much the budget grows from part to part.
        detector: Name of the detector-encoder plugin, or several as a,b,c: their candidates form one pool.
        detector_params: Settings of the detector, such as {width: 16}; of one of several, by its name, such as
            {patch-memory: {window: 3}}.
        holdout: Share of the train images to keep out of training; their scores decide which images are anomalous.
            By default a fifth, but 19 to 100 images, and never more than a third.
        selector: Name of a selector plugin, or several as a,b,c; the first one decides which detector is kept.
        selector_params: Settings of the selector, such as {variant: reference}; of several, by the selector's name,
            such as {dsv: {variant: reference}}.
        keep: What is kept as the model: the choice; all candidates weighted by the loss of the first selector; or the
            ensemble of all alike. By default weighted, if all can be merged into one detector, else the choice.
        seed: Fixes every random draw.
        executor: Name of the executor plugin, which runs the trainings.
        executor_params: Settings of the executor, such as {num_gpus: 1}.
        workers: Trainings at once; by default one on each core.
        timeout: Seconds that the training of one candidate may take; one that takes longer fails. The executor
            `processes` stops its process; others notice when the training next reports its progress.
        threads: Threads of each training. Results do not depend on the executor, but they do depend on the threads.
        observers: Name of an observer plugin, or several as a,b,c, to notify of what happens, such as loggers.
        observer_params: Settings of observers, by the observer's name, such as {mlflow: {experiment: parts}}.
        skip_bad: Leave out files that cannot be read, and test images that are train images too.
        out: The run folder, or its address, as s3://…; the same command resumes it. By default a folder named after the
            settings, below $DSV_RUNS or ./dsv-runs.
        image_size: Height and width to load images at; the detector's own if None.
        confidence: Whether to measure how often each choice would be the same on resampled test images.
        plugins: Plugins that are in no package: files and names of modules, as a,b,c; from Python also records, modules
            and objects with hooks.
    """

    train: Source
    test: Source | None = None
    drop_suspects: float | None = field(default=None, kw_only=True, metadata=IMAGES)
    tile: int | None = field(default=None, kw_only=True, metadata=IMAGES)
    overlap: float = field(default=0.25, kw_only=True, metadata=IMAGES)
    augmentation: str | Sequence[str] = field(default="cutpaste", metadata=CANDIDATES)
    grid: Space = field(default_factory=dict, metadata=CANDIDATES)
    search: str = field(default="grid", metadata=CANDIDATES)
    search_params: Mapping[str, object] = field(default_factory=dict, metadata=CANDIDATES | FREE)
    rungs: int = field(default=3, metadata=CANDIDATES)
    rung_factor: float = field(default=3.0, metadata=CANDIDATES)
    detector: str | Sequence[str] = field(default="patch-fusion", metadata=DETECTORS)
    detector_params: Mapping[str, object] = field(default_factory=dict, metadata=DETECTORS)
    holdout: float | None = field(default=None, metadata=SELECTION)
    selector: str | Sequence[str] = field(default="cosine", metadata=SELECTION | FREE)
    selector_params: Mapping[str, Any] = field(default_factory=dict, metadata=SELECTION | FREE)
    keep: str | None = field(default=None, metadata=SELECTION | FREE)
    seed: int = field(default=0, metadata=SELECTION)
    executor: str = field(default="processes", metadata=EXECUTION | FREE)
    executor_params: Mapping[str, object] = field(default_factory=dict, metadata=EXECUTION | FREE)
    workers: int | None = field(default=None, metadata=EXECUTION | FREE)
    timeout: float | None = field(default=None, metadata=EXECUTION | FREE)
    threads: int = field(default=1, metadata=EXECUTION)
    observers: str | Sequence[str] = field(default="", metadata=EXECUTION | FREE)
    observer_params: Mapping[str, Mapping[str, object]] = field(default_factory=dict, metadata=EXECUTION | FREE)
    skip_bad: bool = field(default=False, metadata=EXECUTION | FREE)
    out: Path | str | None = field(default=None, metadata=EXECUTION | FREE)
    image_size: int | None = None
    confidence: bool = field(default=True, metadata=FREE)
    plugins: Any = field(default=(), metadata=EXECUTION | FREE)

    def __post_init__(self) -> None:
        self._take_records()
        for problem in space_problems(self.grid, of_study=True):
            raise InputError(f"grid: {problem}")
        if self.keep is not None and self.keep not in KEPT:
            raise InputError(f"keep is {shown(self.keep)}; give one of {', '.join(KEPT)}")
        _check_number("seed", self.seed, 0, LARGEST_SEED)
        _check_number("threads", self.threads, 1, MOST_THREADS)
        if self.drop_suspects is not None and not 0 < self.drop_suspects <= MOST_SUSPECTS:
            raise InputError(f"drop_suspects is {self.drop_suspects}; give a share above 0, up to {MOST_SUSPECTS}")
        if self.tile is not None:
            _check_number("tile", self.tile, LEAST_TILE)
        if not 0 <= self.overlap <= MOST_OVERLAP:
            raise InputError(f"overlap is {self.overlap}; give a part of a tile's side from 0 to {MOST_OVERLAP}")
        for name, params in self.observer_params.items():
            if not isinstance(params, Mapping):
                raise InputError(f"observer_params of {name!r} is {shown(params)}; give its settings by their names")
        if self.workers is not None:
            _check_number("workers", self.workers, 1)
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise InputError(f"timeout is {self.timeout}; give a number of seconds above 0")
        self.schedule  # noqa: B018 — it checks rungs and factor

    def _take_records(self) -> None:
        """Let a record stand where a name is expected: it joins the plugins, and its name takes its place."""
        taken: list[object] = []

        def named(value: object) -> object:
            if isinstance(value, Plugin):
                taken.append(value)
                return value.name
            return value

        for setting in ("augmentation", "search", "detector", "selector", "executor", "observers"):
            value = getattr(self, setting)
            several = isinstance(value, Iterable) and not isinstance(value, str)
            object.__setattr__(self, setting, [named(each) for each in value] if several else named(value))
        object.__setattr__(self, "plugins", (*as_plugins(self.plugins), *taken))

    @property
    def augmentations(self) -> tuple[str, ...]:
        """The names of the augmentations."""
        return _names(self.augmentation, "augmentation")

    @property
    def detectors(self) -> tuple[str, ...]:
        """The names of the detectors."""
        return _names(self.detector, "detector")

    def params_of(self, detector: str) -> dict[str, object]:
        """Return the settings of one detector; those of one of several are by its name, and the rest is for all."""
        if len(self.detectors) == 1:
            return dict(self.detector_params)
        common = {name: value for name, value in self.detector_params.items() if name not in self.detectors}
        own = self.detector_params.get(detector, {})
        if not isinstance(own, Mapping):
            raise InputError(f"detector_params of {detector!r} is {shown(own)}; give its settings by their names")
        return {**common, **own}

    def varied_settings(self, detector: str) -> dict[str, Values]:
        """Return the settings of one detector that the grid varies, as detector.NAME."""
        own = (DETECTOR_PREFIX, f"{detector}.")

        def renamed(name: str) -> str:
            return f"{DETECTOR_PREFIX}{name.partition('.')[2]}" if name.startswith(own) else name

        return {
            renamed(name): values.renamed(renamed) if isinstance(values, When) else values
            for name, values in self.grid.items()
            if name.startswith(own)
        }

    @property
    def compares_detectors(self) -> bool:
        """Whether the candidates have different detectors, or one with different settings."""
        return len(self.detectors) > 1 or any("." in name for name in self.grid)

    @property
    def selectors(self) -> tuple[str, ...]:
        """The names of the selectors, the deciding one first."""
        return _names(self.selector, "selector")

    def params_of_selector(self, selector: str) -> dict[str, object]:
        """Return the settings of one selector; those of one of several are by its name."""
        params = self.selector_params if len(self.selectors) == 1 else self.selector_params.get(selector, {})
        if not isinstance(params, Mapping):
            raise InputError(f"selector_params of {selector!r} is {shown(params)}; give its settings by their names")
        return dict(params)

    @property
    def observer_names(self) -> tuple[str, ...]:
        """The names of the observer plugins."""
        return _names(self.observers, "observers") if self.observers else ()

    @property
    def schedule(self) -> Rungs:
        """How the budget grows, for searches that spend it in parts."""
        return Rungs(self.rungs, self.rung_factor)

    def identity(self) -> dict[str, Any]:
        """Return what a run folder belongs to, as plain JSON: every setting that tells one run from another."""
        special = {
            "train": _named_source(self.train),
            "test": _named_source(self.test),
            "augmentation": list(self.augmentations),
            "detector": ",".join(self.detectors),
            "grid": space_to_json(self.grid),
        }
        settings = {
            setting.name: special.get(setting.name, getattr(self, setting.name))
            for setting in fields(self)
            if setting.metadata.get("identifies", True)
        }
        try:
            return json.loads(json.dumps(settings, allow_nan=False))  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            raise InputError(f"the settings cannot be stored ({error}); give numbers, text or lists") from error

    @property
    def address(self) -> str | None:
        """The address where the run folder has a copy; None if `out` is a path."""
        return str(self.out) if is_address(self.out) else None

    def folder(self) -> Path:
        """The run folder, as an absolute path; for an address, the folder on this machine where the work is done."""
        if self.out is not None and self.address is None:
            return Path(self.out).absolute()
        content = self.address or json.dumps(self.identity(), sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return Path(
            os.environ.get(RUNS_VARIABLE, "dsv-runs"), f"{'-'.join(self.augmentations).replace(':', '-')}-{digest}"
        ).absolute()


def _check_number(setting: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{setting} is {value}; give a whole number {limits}")


def _names(value: str | Sequence[str], setting: str) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)
    if not all(names) or not names or len(set(names)) != len(names):
        raise InputError(f"{setting} is {', '.join(names) or 'empty'}; name at least one, and each once")
    return tuple(names)


def _named_source(source: Any) -> str | None:
    """Return what tells a source of images from another. Torch is not imported for it."""
    if source is None:
        return None
    if isinstance(source, (Path, str)):
        return str(Path(source).absolute())
    if isinstance(source, (list, tuple)):
        names = "\n".join(str(Path(each).absolute()) for each in source)
        return hashlib.sha256(names.encode()).hexdigest()[:16]
    if not hasattr(source, "contiguous"):  # a dataset; what it holds is a part of each candidate's id
        return f"{type(source).__module__}.{type(source).__qualname__}, {len(source)} images"
    return hashlib.sha256(source.contiguous().cpu().numpy().tobytes()).hexdigest()[:16]
