"""What can be set of a plugin, read from the signature and the docstring of its factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import docstring_parser

from dsv_plugins.errors import shown
from dsv_plugins.plugins.records import Plugin, unwrapped

__all__ = ["Setting", "settings_of"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One parameter of a factory.

    Attributes:
        name: Its name.
        kind: Its type, as it is written; empty if it is not.
        default: Its default, as Python writes it; empty if a value is required.
        meaning: What the docstring says of it.
    """

    name: str
    kind: str
    default: str
    meaning: str


def settings_of(record: Plugin[object]) -> list[Setting]:
    """The parameters that a plugin's factory takes by name; none if its signature cannot be read."""
    parameters, meanings = _parameters(record.factory), _meanings(unwrapped(record.factory))
    if record.settings is not None:
        meanings |= _meanings(type(record.settings))
        for name, parameter in _parameters(type(record.settings)).items():
            if name in parameters:
                parameters[name] = parameter.replace(default=getattr(record.settings, name))
    return [
        Setting(name, _written(parameter.annotation), _default(parameter.default), meanings.get(name, ""))
        for name, parameter in parameters.items()
    ]


def _parameters(factory: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        found = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}
    return {
        name: parameter
        for name, parameter in found.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def _meanings(documented: object) -> dict[str, str]:
    """What a docstring says of each parameter or attribute."""
    return {
        each.arg_name: " ".join((each.description or "").split())
        for each in docstring_parser.parse(inspect.getdoc(documented) or "").params
    }


def _default(value: object) -> str:
    return "" if value is inspect.Parameter.empty else shown(value)


def _written(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
