"""The records that a plugin's hooks return: what it is called, how it is made, what can be set.

A record is data, not behaviour, so each plugin can be checked on its own, and the one at fault is named.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from dsv_plugins.plugins.interfaces import Augmentation, DetectorEncoder, Executor, Selector
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.search import Search
from dsv_plugins.plugins.spaces import Range, Space, draw

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
    "is_name",
    "unwrapped",
]

Product = TypeVar("Product", covariant=True)

IMAGES = "images"
NAME_RULE = "lower-case letters, digits and single hyphens"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Plugin(Generic[Product]):
    """What every record has.

    Attributes:
        name: Lower-case letters, digits and single hyphens; users type it.
        factory: Called with hyperparameters as keywords; returns the plugin's object. Import what is heavy in there. If
            it has a parameter `registry` without a default, it gets the study's `Registry`.
        summary: One line for the table of plugins.
        space: The hyperparameters to search, with their values; of augmentations and detectors only.
        settings: An object whose class documents the factory's parameters, and whose attributes are their defaults, if
            the factory itself does not say.
    """

    kind: ClassVar[str]
    product: ClassVar[type[Any]]
    """What the factory must return an instance of."""
    method: ClassVar[str] = ""
    """The method that makes any object one of this kind; empty if it must be derived from `product`."""
    searched: ClassVar[bool] = False
    """Whether a study searches the values of its space."""

    name: str
    factory: Callable[..., Product]
    summary: str = ""
    space: Space = field(default_factory=dict)
    settings: object = field(default=None, kw_only=True)

    def file(self) -> str:
        """Return where the factory is written; empty if that cannot be told."""
        try:
            return inspect.getsourcefile(unwrapped(self.factory)) or ""
        except TypeError:
            return ""

    def first_point(self) -> dict[str, object]:
        """Return the first point of the search space: the settings to use if any will do."""
        return draw(self.space, lambda _, values: values.low if isinstance(values, Range) else values[0])


@dataclass(frozen=True)
class AugmentationPlugin(Plugin[Augmentation]):
    """A way to make pseudo-anomalies; returned by the `augmentation` hook.

    Attributes:
        changes: What it makes them of: "images", or something inside a detector, such as its "features".
    """

    kind: ClassVar[str] = "augmentation"
    product: ClassVar[type[Any]] = Augmentation
    method: ClassVar[str] = "__call__"
    searched: ClassVar[bool] = True

    changes: str = field(default=IMAGES, kw_only=True)


@dataclass(frozen=True)
class DetectorEncoderPlugin(Plugin[DetectorEncoder]):
    """A detector with an encoder that training shapes; returned by the `detector_encoder` hook.

    Attributes:
        check_params: Settings with which the conformance kit can fit it in seconds, such as a small width.
        presets: The values that its setting `preset` takes, if it has one, each with the settings of a study that go
            with it, such as `{"paper": {"selector": "dsv"}}`; the command line takes them over.
        preflight: Called with the settings before any image is read or any worker started. Raises `InputError` if
            something is missing that a training needs, such as weights. Must be quick.
        learns_from: What an augmentation may change, that this detector learns from; None if any will do.
    """

    kind: ClassVar[str] = "detector_encoder"
    product: ClassVar[type[Any]] = DetectorEncoder
    searched: ClassVar[bool] = True

    check_params: Mapping[str, object] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    preflight: Callable[..., None] | None = None
    learns_from: Sequence[str] | None = (IMAGES,)

    def first_point(self) -> dict[str, object]:
        """Return the first point of the search space, made small by `check_params`."""
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
    method: ClassVar[str] = "losses"

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
    """Return the function or class behind a factory that has some of its arguments already."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory


def is_name(name: object) -> bool:
    """Return whether a plugin may be called so."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
