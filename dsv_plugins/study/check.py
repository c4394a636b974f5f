"""Whether a study's plugins exist and fit together. No plugin is made for that, so a wrong name shows at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from dsv_plugins.errors import InputError, PluginSettingsError, did_you_mean
from dsv_plugins.plugins.checking import defaults_of, factory_problems
from dsv_plugins.plugins.interfaces import Executor
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.plugin_errors import wrap_exits
from dsv_plugins.plugins.records import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    ObserverPlugin,
    SearchPlugin,
    SelectorPlugin,
)
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.plugins.spaces import (
    DEFAULT_RANGE_POINTS,
    Space,
    Values,
    as_suggested,
    grid,
    of_detector,
    plain,
    unsuitable_values,
    with_settings,
)
from dsv_plugins.study.observers import Observers
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.types import DETECTOR, DETECTOR_PREFIX

__all__ = [
    "check_detectors",
    "check_names",
    "checked_space",
    "detector_settings",
    "make_executor",
    "make_observers",
    "search_space",
]


def check_names(settings: StudySettings, registry: Registry) -> None:
    """Check that the plugins exist and fit together.

    Raises:
        InputError: They do not.
    """
    for kind, names in (
        (AugmentationPlugin, settings.augmentations),
        (DetectorEncoderPlugin, settings.detectors),
        (ObserverPlugin, settings.observer_names),
    ):
        for name in names:
            registry.get(kind, name)
    for detector, augmentation in itertools.product(settings.detectors, settings.augmentations):
        _check_pair(registry.get(DetectorEncoderPlugin, detector), augmentation, registry)
    for name in settings.grid:
        owner, dot, _ = name.partition(".")
        if dot and owner not in (DETECTOR, *settings.detectors):
            meant = did_you_mean(owner, settings.detectors)
            raise InputError(
                f"grid: {name} is a setting of no detector in this study{f' ({meant})' if meant else ''}; give "
                f"{DETECTOR}.NAME, or the name of one of {', '.join(settings.detectors)}"
            )
    for name in settings.observer_params:
        if name not in settings.observer_names:
            known = ", ".join(settings.observer_names) or "there are none"
            raise InputError(f"observer_params has settings for {name!r}, which is not among the observers: {known}")
        factory = registry.get(ObserverPlugin, name).factory
        for problem in factory_problems(factory, settings.observer_params[name]):
            raise PluginSettingsError(f"{registry.label(ObserverPlugin, name)}: {problem}")
    for name in settings.selector_params if len(settings.selectors) > 1 else ():
        if name not in settings.selectors:
            known = ", ".join(settings.selectors)
            raise InputError(f"selector_params has settings for {name!r}, which is not among the selectors: {known}")
    for name in settings.selectors:
        for problem in factory_problems(registry.get(SelectorPlugin, name).factory, settings.params_of_selector(name)):
            raise PluginSettingsError(f"{registry.label(SelectorPlugin, name)}: {problem}")
        if registry.get(SelectorPlugin, name).needs_holdout and settings.holdout == 0:
            raise InputError(f"{name!r} needs held-out images; remove --holdout 0 (holdout=0)")
    decides = settings.selectors[0]
    if settings.compares_detectors and registry.get(SelectorPlugin, decides).depends_on_scale:
        serve = ", ".join(record.name for record in registry.of_kind(SelectorPlugin) if not record.depends_on_scale)
        raise InputError(
            f"{decides!r} cannot compare different detectors, or one with different settings, since it depends on the "
            f"scale of their embeddings; put one of {serve} first"
        )
    judges = registry.get(SearchPlugin, settings.search).judges
    if judges and not registry.get(SelectorPlugin, settings.selectors[0]).judges_alone:
        alone = ", ".join(record.name for record in registry.of_kind(SelectorPlugin) if record.judges_alone)
        raise InputError(
            f"{settings.search} judges candidates one by one, and {settings.selectors[0]!r} judges only a whole pool; "
            f"put one of {alone} first"
        )


def _check_pair(detector: DetectorEncoderPlugin, augmentation: str, registry: Registry) -> None:
    """Refuse an augmentation that a detector cannot learn from, which would fail once for each candidate."""
    changes = registry.get(AugmentationPlugin, augmentation).changes
    if detector.learns_from is None or changes in detector.learns_from:
        return
    known = registry.of_kind(AugmentationPlugin)
    fit = ", ".join(record.name for record in known if record.changes in detector.learns_from)
    raise InputError(
        f"{detector.name} learns from changed {' or '.join(detector.learns_from)}, and {augmentation!r} changes "
        f"{changes}; give one of {fit}"
    )


def check_detectors(settings: StudySettings, registry: Registry) -> None:
    """Let the detectors check what only they know, such as whether their weights can be had.

    Raises:
        InputError: One cannot be made.
    """
    for name in settings.detectors:
        preflight = registry.get(DetectorEncoderPlugin, name).preflight
        if preflight is not None:
            with wrap_exits(registry.label(DetectorEncoderPlugin, name)):
                for point in detector_settings(settings, registry, name):
                    preflight(**point)


def detector_settings(
    settings: StudySettings, registry: Registry, name: str, range_points: int = DEFAULT_RANGE_POINTS
) -> list[dict[str, object]]:
    """Return the settings with which a study trains one of its detectors: one point, unless its grid varies them."""
    points = grid(checked_space(settings, registry, DetectorEncoderPlugin, name), range_points)
    return [with_settings(settings.params_of(name), of_detector(point)) for point in points]


def make_executor(settings: StudySettings, registry: Registry) -> Executor:
    """Return the executor of a study, for no more trainings at once than there are candidates."""
    workers = {} if settings.workers is None else {"workers": settings.workers}
    executor = registry.create(ExecutorPlugin, settings.executor, {**settings.executor_params, **workers})
    if registry.get(SearchPlugin, settings.search).proposes:  # how many there will be is up to the search
        return executor
    pairs = itertools.product(settings.detectors, settings.augmentations)
    return executor.limited(jobs=sum(len(grid(search_space(settings, registry, *pair))) for pair in pairs))


def make_observers(settings: StudySettings, registry: Registry, own: Observer) -> Observers:
    """Return the caller's observer and the observer plugins of a study."""
    return Observers(
        own,
        {
            name: registry.create(ObserverPlugin, name, settings.observer_params.get(name))
            for name in settings.observer_names
        },
    )


def search_space(settings: StudySettings, registry: Registry, detector: str, augmentation: str) -> Space:
    """Return what is searched with one detector that learns from one augmentation.

    Raises:
        InputError: The study's grid has values that a plugin cannot take.
    """
    return {
        **registry.get(AugmentationPlugin, augmentation).space,
        **checked_space(settings, registry, AugmentationPlugin, augmentation),
        **checked_space(settings, registry, DetectorEncoderPlugin, detector),
    }


def checked_space(
    settings: StudySettings, registry: Registry, kind: type[AugmentationPlugin | DetectorEncoderPlugin], name: str
) -> dict[str, Values]:
    """The part of the study's grid that is of a plugin, as the plugin takes it; settings of detectors as detector.NAME.

    Raises:
        InputError: It has values that the plugin cannot take.
    """
    record = registry.get(kind, name)
    known: Mapping[str, Values] = {
        **{key: [value] for key, value in defaults_of(record).items()},
        **record.space,
    }
    if kind is DetectorEncoderPlugin:
        space = settings.varied_settings(name)
    else:
        space = {key: values for key, values in settings.grid.items() if "." not in key}
    for parameter, values in space.items():
        suggested = known.get(parameter.removeprefix(DETECTOR_PREFIX))
        if suggested is not None:
            if problem := unsuitable_values(values, suggested):
                raise InputError(f"grid: {parameter} of {name} cannot have these values: {problem}")
            # Which of a detector's settings count may depend on some that do not vary: its conditions are its own.
            space[parameter] = as_suggested(values, plain(suggested) if kind is DetectorEncoderPlugin else suggested)
    return space
