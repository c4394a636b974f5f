"""Whether a study's plugins exist and fit together. No plugin is made for that, so a wrong name shows at once."""

from __future__ import annotations

from dsv_plugins.errors import InputError, PluginSettingsError
from dsv_plugins.hooks.blame import exits_blamed
from dsv_plugins.hooks.interfaces import Executor
from dsv_plugins.hooks.observer import Observer
from dsv_plugins.hooks.records import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    ObserverPlugin,
    SearchPlugin,
    SelectorPlugin,
    defaults_of,
    factory_problems,
)
from dsv_plugins.hooks.registry import Registry
from dsv_plugins.hooks.spaces import Space, Values, as_suggested, grid, unsuitable_values
from dsv_plugins.study.progress import Observers
from dsv_plugins.study.settings import StudySettings

__all__ = ["check_detector", "check_names", "make_executor", "make_observers", "search_spaces"]


def check_names(settings: StudySettings, registry: Registry) -> None:
    """Check that the plugins exist and fit together.

    Raises:
        InputError: They do not.
    """
    for kind, names in (
        (AugmentationPlugin, settings.augmentations),
        (DetectorEncoderPlugin, (settings.detector,)),
        (ObserverPlugin, settings.observer_names),
    ):
        for name in names:
            registry.get(kind, name)
    for name in settings.observer_params:
        if name not in settings.observer_names:
            known = ", ".join(settings.observer_names) or "there are none"
            raise InputError(f"observer_params has settings for {name!r}, which is not among the observers: {known}")
        factory = registry.get(ObserverPlugin, name).factory
        for problem in factory_problems(factory, settings.observer_params[name]):
            raise PluginSettingsError(f"{registry.label(ObserverPlugin, name)}: {problem}")
    for name in settings.selectors:
        if registry.get(SelectorPlugin, name).needs_holdout and settings.holdout == 0:
            raise InputError(
                f"{name!r} judges by good images kept out of training; --holdout 0 keeps none out, so leave it out"
            )
    judges = registry.get(SearchPlugin, settings.search).judges
    if judges and not registry.get(SelectorPlugin, settings.selectors[0]).judges_alone:
        alone = ", ".join(record.name for record in registry.of_kind(SelectorPlugin) if record.judges_alone)
        raise InputError(
            f"{settings.search} judges candidates one by one, and {settings.selectors[0]!r} judges only a whole pool; "
            f"put one of {alone} first"
        )


def check_detector(settings: StudySettings, registry: Registry) -> None:
    """Let the detector check what only it knows, such as whether its weights can be had.

    Raises:
        InputError: It cannot be made.
    """
    preflight = registry.get(DetectorEncoderPlugin, settings.detector).preflight
    if preflight is not None:
        with exits_blamed(registry.label(DetectorEncoderPlugin, settings.detector)):
            preflight(**settings.detector_params)


def make_executor(settings: StudySettings, registry: Registry) -> Executor:
    """The executor of a study, for no more trainings at once than there are candidates."""
    workers = {} if settings.workers is None else {"workers": settings.workers}
    executor = registry.create(ExecutorPlugin, settings.executor, {**settings.executor_params, **workers})
    if registry.get(SearchPlugin, settings.search).proposes:  # how many there will be is up to the search
        return executor
    return executor.limited(jobs=sum(len(grid(space)) for space in search_spaces(settings, registry).values()))


def make_observers(settings: StudySettings, registry: Registry, own: Observer) -> Observers:
    """The caller's observer and the observer plugins of a study."""
    return Observers(
        own,
        {
            name: registry.create(ObserverPlugin, name, settings.observer_params.get(name))
            for name in settings.observer_names
        },
    )


def search_spaces(settings: StudySettings, registry: Registry) -> dict[str, Space]:
    """The search space of each augmentation of a study.

    Raises:
        InputError: The study's grid has values that an augmentation cannot take.
    """
    spaces: dict[str, dict[str, Values]] = {}
    for name in settings.augmentations:
        record = registry.get(AugmentationPlugin, name)
        spaces[name] = space = {**record.space, **settings.grid}
        known = {**{key: [value] for key, value in defaults_of(record.factory).items()}, **record.space}
        for parameter in [key for key in settings.grid if key in known]:
            if problem := unsuitable_values(space[parameter], known[parameter]):
                raise InputError(f"grid: {parameter} of {name} cannot have these values: {problem}")
            space[parameter] = as_suggested(space[parameter], known[parameter])
    return dict(spaces)
