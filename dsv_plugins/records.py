"""The records that a plugin's hooks return: what it is called, how it is made, what can be set.

A record is data, not behaviour. The registry can therefore look at each plugin on its own, and blame the right one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from dsv_plugins.interfaces import Augmentation, DetectorEncoder, Executor, Selector
from dsv_plugins.spaces import Space, grid, space_problems

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "RECORDS",
    "AugmentationPlugin",
    "DetectorEncoderPlugin",
    "ExecutorPlugin",
    "Plugin",
    "SelectorPlugin",
    "record_problems",
]

Product = TypeVar("Product", covariant=True)

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Plugin(Generic[Product]):
    """What every record has.

    Attributes:
        name: Lower-case letters, digits and single hyphens; users type it.
        factory: Called with hyperparameters as keywords; returns the plugin's object. Import what is heavy in there.
        summary: One line for the table of plugins.
        space: The hyperparameters to search, with their values.
    """

    kind: ClassVar[str]

    name: str
    factory: Callable[..., Product]
    summary: str = ""
    space: Space = field(default_factory=dict)

    def first_point(self) -> dict[str, object]:
        """The first point of the search space: the settings used where any will do."""
        return grid(self.space)[0]


@dataclass(frozen=True)
class AugmentationPlugin(Plugin[Augmentation]):
    """A way to make pseudo-anomalies; returned by the `augmentation` hook."""

    kind: ClassVar[str] = "augmentation"


@dataclass(frozen=True)
class DetectorEncoderPlugin(Plugin[DetectorEncoder]):
    """A detector with an encoder that training shapes; returned by the `detector_encoder` hook.

    Attributes:
        check_params: Settings with which the conformance kit can fit it in seconds, such as a small width.
    """

    kind: ClassVar[str] = "detector_encoder"

    check_params: Mapping[str, object] = field(default_factory=dict)

    def first_point(self) -> dict[str, object]:
        """The first point of the search space, made small by `check_params`."""
        return {**super().first_point(), **self.check_params}


@dataclass(frozen=True)
class SelectorPlugin(Plugin[Selector]):
    """A loss over candidates that needs no labels; returned by the `selector` hook.

    Attributes:
        judges_alone: Whether a candidate's loss depends on that candidate only. Such a selector can steer a search.
    """

    kind: ClassVar[str] = "selector"

    judges_alone: bool = False


@dataclass(frozen=True)
class ExecutorPlugin(Plugin[Executor]):
    """A way to run many candidates; returned by the `executor` hook."""

    kind: ClassVar[str] = "executor"


RECORDS: Mapping[str, type[Plugin[object]]] = {
    record.kind: record for record in (AugmentationPlugin, DetectorEncoderPlugin, SelectorPlugin, ExecutorPlugin)
}
"""The record class that belongs to each hook."""


def record_problems(record: Plugin[object]) -> list[str]:
    """What is wrong with a record, one line each; empty where it is sound. Calls no factory."""
    problems: list[str] = []
    if not isinstance(record.name, str) or not _NAME.fullmatch(record.name):
        problems.append(f"the name {record.name!r} is invalid; use lower-case letters, digits and single hyphens")
    if not isinstance(record.summary, str):
        problems.append(f"the summary is {record.summary!r:.60}; make it one line of text")
    faults = space_problems(record.space)
    problems += faults
    if not callable(record.factory):
        problems.append(f"the factory {record.factory!r:.60} cannot be called")
    elif not faults:
        problems += factory_problems(record.factory, record.first_point())
    return problems


def factory_problems(factory: Callable[..., object], params: Mapping[str, object]) -> Sequence[str]:
    """Why the factory would not take these hyperparameters by name, judged from its signature."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables written in C have no signature; they are judged when called
        return []
    parameters = signature.parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        unknown = [name for name in params if name not in accepted]
        if unknown:
            return [f"the factory does not take {_quoted(unknown)}; it takes {_quoted(accepted) or 'nothing'}"]
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in params
    ]
    if missing:
        return [f"the factory needs {_quoted(missing)}; give a default or a place in the search space"]
    return []


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
