"""What can be set of a plugin, read from the signature and the docstring of its factory."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import docstring_parser

from dsv_plugins.errors import shown
from dsv_plugins.plugins.checking import parameters_of, takes_any
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
    """Return the parameters that a plugin's factory takes by name; none if its signature cannot be read."""
    parameters, meanings = _inherited(record.factory)
    if record.settings is not None:
        meanings |= _meanings(type(record.settings))
        for name, parameter in parameters_of(type(record.settings)).items():
            if name in parameters or takes_any(record.factory):
                parameters[name] = parameter.replace(default=getattr(record.settings, name))
    return [
        Setting(name, _written(parameter.annotation), _default(parameter.default), meanings.get(name, ""))
        for name, parameter in parameters.items()
    ]


def _inherited(factory: Callable[..., object]) -> tuple[dict[str, inspect.Parameter], dict[str, str]]:
    """Return a factory's parameters and their meanings; of a class also those that it passes on as **others."""
    parameters, made = parameters_of(factory), unwrapped(factory)
    if not isinstance(made, type):
        return parameters, _meanings(made)
    meanings: dict[str, str] = {}
    for each in reversed(made.__mro__[:-1]):
        meanings |= _meanings(each) | _meanings(vars(each).get("__init__"))
    initialisers = [vars(each)["__init__"] for each in made.__mro__[:-1] if "__init__" in vars(each)]
    for passing, inherited in itertools.pairwise(initialisers):
        if not takes_any(passing):
            break
        for name, parameter in parameters_of(functools.partial(inherited, None)).items():  # None stands for self
            parameters.setdefault(name, parameter)
    return parameters, meanings


def _meanings(documented: object) -> dict[str, str]:
    """Return what a docstring says of each parameter or attribute."""
    written = inspect.cleandoc(getattr(documented, "__doc__", None) or "")
    params = docstring_parser.parse(written).params
    return {each.arg_name: " ".join((each.description or "").split()) for each in params}


def _default(value: object) -> str:
    return "" if value is inspect.Parameter.empty else shown(value)


def _written(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
