"""What a study is going to do: its candidates, its budget and its search, before any image is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dsv_plugins.data.dataset import Dataset, open_dataset, prepare
from dsv_plugins.data.images import BadFile
from dsv_plugins.errors import InputError
from dsv_plugins.hooks.interfaces import DetectorEncoder
from dsv_plugins.hooks.observer import Observer
from dsv_plugins.hooks.records import AugmentationPlugin, DetectorEncoderPlugin, SearchPlugin
from dsv_plugins.hooks.registry import Registry
from dsv_plugins.hooks.search import Search
from dsv_plugins.hooks.spaces import DEFAULT_RANGE_POINTS, Space, grid, of_detector, with_settings
from dsv_plugins.study.check import check_names, detector_settings, search_spaces
from dsv_plugins.study.progress import Observers
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.types import DETECTOR_PREFIX, Candidate, Size, size_of_same_aspect

__all__ = ["Plan", "plan_study"]

DEFAULT_IMAGE_SIZE = 256


@dataclass(frozen=True)
class Plan:
    """What a study is going to do.

    Attributes:
        settings: The settings of the study.
        registry: Where its plugins are found.
        search: Its search.
        search_record: What is known of the search before it runs.
        image_size: The size at which images are loaded, if they are square.
        keeps_aspect: Whether others keep their aspect.
        budget: The detector's whole budget of updates; None if it is not known.
        shared_updates: The updates that all candidates share.
        has_frozen_part: Whether the detector has a part whose features are computed once for all candidates.
        learns_from_augmentation: Whether candidates differ at all.
    """

    settings: StudySettings
    registry: Registry
    search: Search
    search_record: SearchPlugin
    image_size: int
    keeps_aspect: bool
    budget: int | None
    shared_updates: int
    has_frozen_part: bool
    learns_from_augmentation: bool

    def spaces(self) -> dict[str, Space]:
        """The search space of each augmentation; a single point of one augmentation if the detector looks at none."""
        spaces = search_spaces(self.settings, self.registry)
        if self.learns_from_augmentation:
            return spaces
        name, space = next(iter(spaces.items()))
        point = next(iter(grid(space)))
        return {
            name: {
                parameter: values if parameter.startswith(DETECTOR_PREFIX) else [point[parameter]]
                for parameter, values in space.items()
            }
        }

    def candidate(
        self, augmentation: str, params: Mapping[str, object], context: Mapping[str, str] | None = None
    ) -> Candidate:
        """A candidate of this study.

        Raises:
            PluginError: The augmentation does not take these hyperparameters. That shows now, not after an hour.
        """
        candidate = Candidate(
            augmentation=augmentation,
            params=dict(params),
            detector=self.settings.detector,
            detector_params=with_settings(self.settings.detector_params, of_detector(params)),
            seed=self.settings.seed,
            context={
                **(context or {}),
                "augmentation": self.registry.identity(AugmentationPlugin, augmentation),
            },
        )
        self.registry.create(AugmentationPlugin, augmentation, candidate.augmentation_params)
        return candidate

    def candidates(self, range_points: int = DEFAULT_RANGE_POINTS) -> list[Candidate]:
        """Every point of every augmentation's search space, in grid order, with `range_points` of each range."""
        return [
            self.candidate(name, point) for name, space in self.spaces().items() for point in grid(space, range_points)
        ]

    def context(self, dataset: Dataset) -> dict[str, str]:
        """What the outcome of a training depends on besides the settings of its candidate."""
        return {
            "data": dataset.fingerprint,
            "detector": self.registry.identity(DetectorEncoderPlugin, self.settings.detector),
            "torch": metadata.version("torch"),
            "threads": str(self.settings.threads),
        }

    def size_of(self, dataset: Dataset) -> Size:
        """Return the size at which the detector takes images."""
        height, width = dataset.train.shape[-2:]
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
            holdout=settings.holdout,
            seed=settings.seed,
            skip_bad=settings.skip_bad,
            progress=progress,
            note=note,
        )
        return open_dataset(folder), bad


def plan_study(settings: StudySettings, registry: Registry) -> Plan:
    """Look up everything that a study needs, and check it.

    Raises:
        InputError: A setting is wrong.
        PluginError: A plugin refuses its settings.
    """
    check_names(settings, registry)
    detector = _common_detector(settings, registry)
    search_record = registry.get(SearchPlugin, settings.search)
    if search_record.parts and detector.updates is None:
        raise InputError(
            f"{settings.search} needs to know a detector's budget, and {settings.detector!r} has no `updates`"
        )
    plan = Plan(
        settings=settings,
        registry=registry,
        search=registry.create(SearchPlugin, settings.search, settings.search_params),
        search_record=search_record,
        image_size=settings.image_size or detector.image_size or DEFAULT_IMAGE_SIZE,
        keeps_aspect=detector.keeps_aspect,
        budget=detector.updates,
        shared_updates=detector.shared_updates,
        has_frozen_part=detector.has_frozen_part,
        learns_from_augmentation=detector.learns_from_augmentation,
    )
    plan.candidates(range_points=2)  # the ends of a range stand for what is between them
    return plan


def _common_detector(settings: StudySettings, registry: Registry) -> DetectorEncoder:
    """A detector that stands for all that the study trains, which are made here to see that they can be.

    Raises:
        InputError: They differ in what a study has only once.
    """
    first, *others = [
        registry.create(DetectorEncoderPlugin, settings.detector, point)
        for point in detector_settings(settings, registry, range_points=2)  # the ends of a range stand for the rest
    ]
    for other in others:
        for name in (
            "image_size",
            "keeps_aspect",
            "updates",
            "shared_updates",
            "has_frozen_part",
            "learns_from_augmentation",
        ):
            one, another = getattr(first, name), getattr(other, name)
            if one != another:
                raise InputError(
                    f"grid: the candidates' detectors differ in {name} ({one} and {another}), which is the same for a "
                    "whole study; give it in detector_params"
                )
    return first
