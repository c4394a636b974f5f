"""What a study is going to do: its candidates, its budget and its search, before any image is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from torch import Tensor

from dsv_plugins.data.dataset import Dataset, open_dataset, prepare
from dsv_plugins.data.images import BadFile
from dsv_plugins.errors import InputError, PluginSettingsError
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.records import AugmentationPlugin, DetectorEncoderPlugin, SearchPlugin, SelectorPlugin
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.plugins.search import Search
from dsv_plugins.plugins.spaces import (
    DEFAULT_RANGE_POINTS,
    Space,
    condition_problems,
    grid,
    of_detector,
    with_settings,
)
from dsv_plugins.study.check import check_names, checked_space, detector_settings, search_space
from dsv_plugins.study.observers import Observers
from dsv_plugins.study.settings import ENSEMBLE, StudySettings
from dsv_plugins.training.evaluate import make_augmentation, make_detector
from dsv_plugins.training.pseudo_anomalies import NEUTRAL, pseudo_anomalies
from dsv_plugins.training.suspects import suspects, unlikeness_of_images
from dsv_plugins.types import DETECTOR, Candidate, Size, size_of_same_aspect

__all__ = ["Arm", "Plan", "plan_study"]

DEFAULT_IMAGE_SIZE = 256


@dataclass(frozen=True, slots=True)
class Arm:
    """A part of what is searched.

    Attributes:
        detector: Name of the detector.
        augmentation: Name of the augmentation that it learns from; empty if it learns without.
        space: The hyperparameters of the augmentation, and settings of the detector as detector.NAME.
    """

    detector: str
    augmentation: str
    space: Space


@dataclass(frozen=True)
class Plan:
    """What a study is going to do.

    Attributes:
        settings: The settings of the study.
        registry: Where its plugins are found.
        search: Its search.
        search_record: What is known of the search before it runs.
        detectors: A detector for each name, which stands for all of that name that are trained.
        arms: The parts of what is searched, by a name that users see.
        image_size: The size at which images are loaded, if they are square.
        keeps_aspect: Whether others keep their aspect.
        budget: The whole budget of updates of each candidate; None if it is not known, or not the same for all.
    """

    settings: StudySettings
    registry: Registry
    search: Search
    search_record: SearchPlugin
    detectors: Mapping[str, DetectorEncoder]
    arms: Mapping[str, Arm]
    image_size: int
    keeps_aspect: bool
    budget: int | None

    @property
    def learns_from_augmentation(self) -> bool:
        """Whether an augmentation is searched at all."""
        return any(detector.learns_from_augmentation for detector in self.detectors.values())

    @property
    def merges(self) -> bool:
        """Whether all candidates can become one detector: they differ in what it learns from, and nothing else."""
        return not self.settings.compares_detectors and all(each.merges for each in self.detectors.values())

    def shared_updates(self, detector: str) -> int:
        """Return the updates that all candidates of a detector share."""
        return self.detectors[detector].shared_updates

    def spaces(self) -> dict[str, Space]:
        """Return what is searched in each arm."""
        return {name: arm.space for name, arm in self.arms.items()}

    def candidate(self, arm: str, params: Mapping[str, object], context: Mapping[str, str] | None = None) -> Candidate:
        """Return a candidate of this study."""
        detector, augmentation = self.arms[arm].detector, self.arms[arm].augmentation
        is_named = len(self.detectors) > 1 or not augmentation
        return Candidate(
            augmentation=augmentation,
            params={**({DETECTOR: detector} if is_named else {}), **params},
            detector=detector,
            detector_params=with_settings(self.settings.params_of(detector), of_detector(params)),
            seed=self.settings.seed,
            context={
                **(context or {}),
                "detector": self.registry.identity(DetectorEncoderPlugin, detector),
                "augmentation": self.registry.identity(AugmentationPlugin, augmentation or NEUTRAL),
            },
        )

    def refusal(self, candidate: Candidate) -> PluginSettingsError | None:
        """Why a candidate's plugins refuse its hyperparameters; None if they do not.

        Raises:
            PluginError: One of them fails otherwise.
        """
        try:
            make_augmentation(self.registry, candidate)
            if of_detector(candidate.params):
                make_detector(self.registry, candidate)
        except PluginSettingsError as error:
            return error
        return None

    def candidates(self, range_points: int = DEFAULT_RANGE_POINTS) -> list[Candidate]:
        """Every point of every arm that its plugins accept, in grid order, with `range_points` of each range.

        Raises:
            PluginSettingsError: All points of an arm are refused. That shows now, not after an hour.
        """
        accepted = []
        for name, space in self.spaces().items():
            candidates = [self.candidate(name, point) for point in grid(space, range_points)]
            refusals = [self.refusal(candidate) for candidate in candidates]
            if first := next(filter(None, refusals), None) if all(refusals) else None:
                raise first
            accepted += [each for each, refusal in zip(candidates, refusals, strict=True) if refusal is None]
        return accepted

    def context(self, dataset: Dataset) -> dict[str, str]:
        """Return what the outcome of every training depends on besides its candidate's plugins and settings."""
        return {
            "data": dataset.fingerprint,
            "torch": metadata.version("torch"),
            "threads": str(self.settings.threads),
        }

    def size_of(self, dataset: Dataset) -> Size:
        """Return the size at which the model takes images, before it cuts them into tiles."""
        if dataset.tiles is not None:
            return dataset.tiles.canvas
        height, width = dataset.train.shape[-2:]
        if all(detector.image_size is None for detector in self.detectors.values()):
            return height if height == width else (height, width)  # as they come, from tensors
        return size_of_same_aspect(height, width, self.image_size) if self.keeps_aspect else self.image_size

    def prepare_images(
        self, folder: Path, observers: Observers | None = None, note: Callable[[str], None] | None = None
    ) -> tuple[Dataset, Sequence[BadFile]]:
        """Write the images into a folder, unless they are there, and open them; with the files that were left out."""
        settings = self.settings

        def progress(images: str, done: int, planned: int) -> None:
            if observers is not None:
                observers.notify(Observer.decoding, images, done, planned)

        bad = prepare(
            settings.train,
            settings.test,
            folder,
            size=self.image_size,
            keeps_aspect=self.keeps_aspect,
            tile=settings.tile,
            overlap=settings.overlap,
            holdout=settings.holdout,
            seed=settings.seed,
            skip_bad=settings.skip_bad,
            drop_suspects=settings.drop_suspects,
            find_suspects=None if settings.drop_suspects is None else self._suspects,
            make_pseudo=lambda images: pseudo_anomalies(self.registry, images, settings.seed),
            progress=progress,
            note=note,
        )
        return open_dataset(folder), bad

    def _suspects(self, images: Tensor, rows: int) -> Sequence[int]:
        return suspects(unlikeness_of_images(self.registry, images, rows), self.settings.drop_suspects or 0.0)


def plan_study(settings: StudySettings, registry: Registry) -> Plan:
    """Look up everything that a study needs, and check it.

    Raises:
        InputError: A setting is wrong.
        PluginError: A plugin refuses its settings.
    """
    check_names(settings, registry)
    for name in settings.selectors:
        registry.create(SelectorPlugin, name, settings.params_of_selector(name))  # to see that it can be made
    detectors = {name: _common_detector(settings, registry, name) for name in settings.detectors}
    sizes = {name: detector.image_size for name, detector in detectors.items() if detector.image_size is not None}
    if len(set(sizes.values())) > 1:
        wanted = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(f"the detectors take images of different sizes ({wanted}); give one --image-size for all")
    budgets = {detector.updates for detector in detectors.values()}
    budget = budgets.pop() if len(budgets) == 1 else None
    search_record = registry.get(SearchPlugin, settings.search)
    if search_record.parts and budget is None:
        raise InputError(
            f"{settings.search} spends the budget in parts, and {', '.join(settings.detectors)} "
            f"{'have not one and the same' if len(detectors) > 1 else 'has no `updates`'}; give another search"
        )
    plan = Plan(
        settings=settings,
        registry=registry,
        search=registry.create(SearchPlugin, settings.search, settings.search_params),
        search_record=search_record,
        detectors=detectors,
        arms=_arms(settings, registry, detectors),
        image_size=settings.image_size or next(iter(sizes.values()), None) or DEFAULT_IMAGE_SIZE,
        keeps_aspect=all(detector.keeps_aspect for detector in detectors.values()),
        budget=budget,
    )
    if settings.test is None and settings.holdout == 0:
        raise InputError("without test images some good ones must stand in for them; remove --holdout 0 (holdout=0)")
    candidates = plan.candidates(range_points=2)  # the ends of a range stand for what is between them
    if settings.test is None and len(candidates) > 1 and settings.keep != ENSEMBLE:
        raise InputError(
            "without test images nothing can be chosen among several candidates; give test images, a single candidate, "
            f"as --detector patch-memory has, or --keep {ENSEMBLE}"
        )
    return plan


def _arms(settings: StudySettings, registry: Registry, detectors: Mapping[str, DetectorEncoder]) -> dict[str, Arm]:
    """Return the arms: a detector that learns from augmentations has one for each of them, another has one.

    Raises:
        InputError: A hyperparameter counts under a condition that cannot be.
    """
    arms: dict[str, Arm] = {}
    for name, detector in detectors.items():
        if not detector.learns_from_augmentation:
            arms[name] = Arm(name, "", checked_space(settings, registry, DetectorEncoderPlugin, name))
            continue
        for augmentation in settings.augmentations:
            label = f"{name} {augmentation}" if len(detectors) > 1 else augmentation
            arms[label] = Arm(name, augmentation, search_space(settings, registry, name, augmentation))
    for arm in arms.values():
        for problem in condition_problems(arm.space):
            raise InputError(f"grid: {problem}")
    return arms


def _common_detector(settings: StudySettings, registry: Registry, name: str) -> DetectorEncoder:
    """A detector that stands for all of a name that the study trains, which are made here to see that they can be.

    Raises:
        InputError: They differ in what they must have in common.
    """
    made, refusals = [], []
    for point in detector_settings(settings, registry, name, range_points=2):  # the ends of a range stand for all
        try:
            made.append(registry.create(DetectorEncoderPlugin, name, point))
        except PluginSettingsError as error:
            refusals.append(error)
    if not made:
        raise refusals[0]
    first, *others = made
    for other in others:
        for trait in (
            "image_size",
            "keeps_aspect",
            "updates",
            "shared_updates",
            "has_frozen_part",
            "learns_from_augmentation",
        ):
            one, another = getattr(first, trait), getattr(other, trait)
            if one != another:
                raise InputError(
                    f"grid: the candidates' detectors differ in {trait} ({one} and {another}), which is the same for a "
                    "whole study; give it in detector_params"
                )
    return first
