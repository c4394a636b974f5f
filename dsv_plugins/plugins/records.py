"""The records that a plugin's hooks return: what it is called, how it is made, what can be set.

A record is data, not behaviour, so the registry can check each plugin on its own and name the one at fault.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from dsv_plugins.errors import did_you_mean, shown
from dsv_plugins.plugins.interfaces import Augmentation, DetectorEncoder, Executor, Selector
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.search import Search
from dsv_plugins.plugins.spaces import Range, Space, When, draw, space_problems

__all__ = [
    "NAME_RULE",
    "RECORDS",
    "AugmentationPlugin",
    "DetectorEncoderPlugin",
    "ExecutorPlugin",
    "ObserverPlugin",
    "Plugin",
    "SearchPlugin",
    "SelectorPlugin",
    "defaults_of",
    "factory_problems",
    "is_name",
    "product_problem",
    "record_problems",
    "unwrapped",
]

Product = TypeVar("Product", covariant=True)

NAME_RULE = "lower-case letters, digits and single hyphens"
PROTOCOL_METHODS = ("__call__", "losses")
"""What an augmentation and a selector have: any object with that method is one."""
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Plugin(Generic[Product]):
    """What every record has.

    Attributes:
        name: Lower-case letters, digits and single hyphens; users type it.
        factory: Called with hyperparameters as keywords; returns the plugin's object. Import what is heavy in there.
        summary: One line for the table of plugins.
        space: The hyperparameters to search, with their values.
        settings: An object whose class documents the factory's parameters, and whose attributes are their defaults, if
            the factory itself does not say.
    """

    kind: ClassVar[str]
    product: ClassVar[type[Any]]
    """What the factory must return an instance of."""

    name: str
    factory: Callable[..., Product]
    summary: str = ""
    space: Space = field(default_factory=dict)
    settings: object = field(default=None, kw_only=True)

    def file(self) -> str:
        """Where the factory is written; empty if that cannot be told."""
        try:
            return inspect.getsourcefile(unwrapped(self.factory)) or ""
        except TypeError:
            return ""

    def first_point(self) -> dict[str, object]:
        """The first point of the search space: the settings to use if any will do."""
        return draw(self.space, lambda _, values: values.low if isinstance(values, Range) else values[0])


@dataclass(frozen=True)
class AugmentationPlugin(Plugin[Augmentation]):
    """A way to make pseudo-anomalies; returned by the `augmentation` hook."""

    kind: ClassVar[str] = "augmentation"
    product: ClassVar[type[Any]] = Augmentation


@dataclass(frozen=True)
class DetectorEncoderPlugin(Plugin[DetectorEncoder]):
    """A detector with an encoder that training shapes; returned by the `detector_encoder` hook.

    Attributes:
        check_params: Settings with which the conformance kit can fit it in seconds, such as a small width.
        presets: The values that its setting `preset` takes, if it has one, each with the settings of a study that go
            with it, such as `{"paper": {"selector": "dsv"}}`; the command line takes them over.
        preflight: Called with the settings before any image is read or any worker started. Raises `InputError` if
            something is missing that a training needs, such as weights. Must be quick.
    """

    kind: ClassVar[str] = "detector_encoder"
    product: ClassVar[type[Any]] = DetectorEncoder

    check_params: Mapping[str, object] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    preflight: Callable[..., None] | None = None

    def first_point(self) -> dict[str, object]:
        """The first point of the search space, made small by `check_params`."""
        return {**super().first_point(), **self.check_params}


@dataclass(frozen=True)
class SelectorPlugin(Plugin[Selector]):
    """A loss over candidates that needs no labels; returned by the `selector` hook.

    Attributes:
        judges_alone: Whether a candidate's loss depends on that candidate only. Such a selector can steer a search.
        needs_holdout: Whether it judges by normal images kept out of training. A study without them refuses it.
        presumes_concentration: Whether it relies on trainings that bring the normal images close together. If that did
            not happen, the study warns.
        depends_on_scale: Whether its loss grows with the scale of the embeddings. It then cannot compare candidates
            whose detectors have different settings.
    """

    kind: ClassVar[str] = "selector"
    product: ClassVar[type[Any]] = Selector

    judges_alone: bool = False
    needs_holdout: bool = False
    presumes_concentration: bool = False
    depends_on_scale: bool = False


@dataclass(frozen=True)
class SearchPlugin(Plugin[Search]):
    """A way to spend a study's updates on candidates; returned by the `search` hook.

    Attributes:
        judges: Whether it looks at losses while it searches. The study's first selector must then judge a candidate
            alone.
        parts: Whether it spends the budget in parts. The detector must then have `updates`.
        proposes: Whether it decides by itself which candidates there are; the others take all points of the grid.
    """

    kind: ClassVar[str] = "search"
    product: ClassVar[type[Any]] = Search

    judges: bool = False
    parts: bool = False
    proposes: bool = False


@dataclass(frozen=True)
class ExecutorPlugin(Plugin[Executor]):
    """A way to run many candidates; returned by the `executor` hook."""

    kind: ClassVar[str] = "executor"
    product: ClassVar[type[Any]] = Executor


@dataclass(frozen=True)
class ObserverPlugin(Plugin[Observer]):
    """Something that is notified of what happens in a study, such as a logger; returned by the `observer` hook."""

    kind: ClassVar[str] = "observer"
    product: ClassVar[type[Any]] = Observer


RECORDS: Mapping[str, type[Plugin[object]]] = {
    record.kind: record
    for record in (
        AugmentationPlugin,
        DetectorEncoderPlugin,
        SelectorPlugin,
        SearchPlugin,
        ExecutorPlugin,
        ObserverPlugin,
    )
}
"""The record class that belongs to each hook."""


def unwrapped(factory: Callable[..., object]) -> Callable[..., object]:
    """The function or class behind a factory that has some of its arguments already."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory


def is_name(name: object) -> bool:
    """Whether a plugin may be called so."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def record_problems(record: Plugin[object]) -> list[str]:
    """What is wrong with a record, one line each; empty if it is sound. Calls no factory."""
    problems: list[str] = []
    if not is_name(record.name):
        problems.append(f"the name is invalid; use {NAME_RULE}")
    if not isinstance(record.summary, str) or _CONTROL.search(record.summary):
        problems.append(f"the summary is {shown(record.summary)}; make it one line of text")
    faults = space_problems(record.space)
    problems += faults
    if not callable(record.factory):
        problems.append(f"the factory {shown(record.factory)} cannot be called")
    elif not faults:
        advice = "give it a default or a place in the search space"
        taken = {**record.space, **record.first_point()}
        sure = {name: value for name, value in taken.items() if not isinstance(record.space.get(name), When)}
        problems += factory_problems(record.factory, taken, advice) or factory_problems(
            record.factory, sure, "give it a default, since it does not always count"
        )
    return problems


def product_problem(made: object, kind: type[Plugin[object]]) -> str:
    """Why what a factory made does not fit its kind; empty if it does."""
    product = kind.product
    if isinstance(made, product):
        return ""
    if not getattr(product, "_is_protocol", False):
        return f"is no {product.__name__}; derive it from dsv_plugins.{product.__name__}"
    # Any object with the methods will do, so its class is not what is wrong.
    methods = [name for name in PROTOCOL_METHODS if name in vars(product)]
    missing = [name for name in methods if not callable(getattr(made, name, None))]
    return f"has no method {' and '.join(missing)}, which every {product.__name__} has"


def factory_problems(factory: Callable[..., object], params: Mapping[str, object], advice: str = "") -> list[str]:
    """Why the factory would not take these hyperparameters by name, judged from its signature.

    Args:
        factory: What would be called.
        params: What it would be called with.
        advice: What to do about a parameter that is missing; by default, what the factory takes.
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature; they are judged when called
        return []
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = f"it takes {_quoted(accepted) or 'nothing'}"
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        unknown = [name for name in params if name not in accepted]
        if unknown:
            meant = did_you_mean(unknown[0], accepted)
            return [f"the factory does not take {_quoted(unknown)}{f' ({meant})' if meant else ''}; {takes}"]
    missing = [name for name in required_arguments(factory) if name not in params]
    return [f"the factory needs {_quoted(missing)}; {advice or takes}"] if missing else []


def defaults_of(record: Plugin[object]) -> dict[str, object]:
    """The numbers that a plugin's factory takes by default, by the name of the parameter."""
    try:
        parameters = inspect.signature(record.factory).parameters.values()
    except (TypeError, ValueError):
        return {}
    defaults = {p.name: getattr(record.settings, p.name, p.default) for p in parameters}
    return {name: default for name, default in defaults.items() if type(default) in (int, float)}


def required_arguments(function: Callable[..., object]) -> list[str]:
    """The names of the arguments without which the function cannot be called."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
