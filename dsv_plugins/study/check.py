"""Whether a study's plugins exist and fit together. No plugin is made for that, so a wrong name shows at once."""

from __future__ import annotations

from collections.abc import Mapping

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
from dsv_plugins.hooks.spaces import (
    DEFAULT_RANGE_POINTS,
    Space,
    Values,
    as_suggested,
    grid,
    of_detector,
    unsuitable_values,
    with_settings,
)
from dsv_plugins.study.progress import Observers
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.types import DETECTOR_PREFIX

__all__ = [
    "check_detector",
    "check_names",
    "detector_settings",
    "make_executor",
    "make_observers",
    "search_spaces",
]


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
    decides = settings.selectors[0]
    if of_detector(settings.grid) and registry.get(SelectorPlugin, decides).depends_on_scale:
        raise InputError(
            f"{decides!r} cannot compare candidates whose detectors have different settings, since it depends on the "
            "scale of their embeddings; put another selector first, such as cosine or mc"
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
            for point in detector_settings(settings, registry):
                preflight(**point)


def detector_settings(
    settings: StudySettings, registry: Registry, range_points: int = DEFAULT_RANGE_POINTS
) -> list[dict[str, object]]:
    """The settings of the detectors that a study trains: one, unless its grid varies them."""
    space = of_detector(_checked_space(settings, registry, DetectorEncoderPlugin, settings.detector))
    return [with_settings(settings.detector_params, point) for point in grid(space, range_points)]


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
    detector = _checked_space(settings, registry, DetectorEncoderPlugin, settings.detector)
    return {
        name: {
            **registry.get(AugmentationPlugin, name).space,
            **_checked_space(settings, registry, AugmentationPlugin, name),
            **detector,
        }
        for name in settings.augmentations
    }


def _checked_space(
    settings: StudySettings, registry: Registry, kind: type[AugmentationPlugin | DetectorEncoderPlugin], name: str
) -> dict[str, Values]:
    """The part of the study's grid that is of a plugin, as the plugin takes it; names stay as they are in the grid."""
    prefix = DETECTOR_PREFIX if kind is DetectorEncoderPlugin else ""
    record = registry.get(kind, name)
    known: Mapping[str, Values] = {
        **{key: [value] for key, value in defaults_of(record).items()},
        **record.space,
    }
    space = {key: values for key, values in settings.grid.items() if key.startswith(DETECTOR_PREFIX) == bool(prefix)}
    for parameter, values in space.items():
        suggested = known.get(parameter.removeprefix(prefix))
        if suggested is not None:
            if problem := unsuitable_values(values, suggested):
                raise InputError(f"grid: {parameter} of {name} cannot have these values: {problem}")
            space[parameter] = as_suggested(values, suggested)
    return space
