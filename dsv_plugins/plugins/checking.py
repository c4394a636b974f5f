"""What is wrong with a record, with settings for its factory, and with what the factory made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping

from dsv_plugins.errors import did_you_mean, shown
from dsv_plugins.plugins.records import NAME_RULE, Plugin, is_name
from dsv_plugins.plugins.spaces import When, space_problems

__all__ = [
    "REGISTRY_ARGUMENT",
    "defaults_of",
    "factory_problems",
    "parameters_of",
    "product_problem",
    "record_problems",
    "required_arguments",
    "takes_any",
]

REGISTRY_ARGUMENT = "registry"
"""The parameter by which a factory asks for the study's registry. Users cannot set it."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def record_problems(record: Plugin[object]) -> list[str]:
    """Return what is wrong with a record, one line each. Calls no factory."""
    problems: list[str] = []
    if not is_name(record.name):
        problems.append(f"the name is invalid; use {NAME_RULE}")
    if not isinstance(record.summary, str) or _CONTROL.search(record.summary):
        problems.append(f"the summary is {shown(record.summary)}; make it one line of text")
    faults = space_problems(record.space)
    if record.space and not record.searched and not faults:
        faults.append(f"its space is never searched; leave it out, and let users set --{record.kind}-params")
    problems += faults
    if not callable(record.factory):
        problems.append(f"the factory {shown(record.factory)} cannot be called")
    elif not faults:
        advice = f"give it a default{' or a place in the search space' if record.searched else ''}"
        taken = {**record.space, **record.first_point()}
        sure = {name: value for name, value in taken.items() if not isinstance(record.space.get(name), When)}
        problems += factory_problems(record.factory, taken, advice) or factory_problems(
            record.factory, sure, "give it a default, since it does not always count"
        )
    return problems


def product_problem(made: object, kind: type[Plugin[object]]) -> str:
    """Return why what a factory made does not fit its kind; empty if it does."""
    product = kind.product
    if isinstance(made, product):
        return ""
    if kind.method:
        return f"has no method {kind.method}, which every {product.__name__} has"
    return f"is no {product.__name__}; derive it from dsv_plugins.{product.__name__}"


def factory_problems(factory: Callable[..., object], params: Mapping[str, object], advice: str = "") -> list[str]:
    """Return why the factory would not take these hyperparameters by name, judged from its signature.

    Args:
        factory: What would be called.
        params: What it would be called with.
        advice: What to do about a parameter that is missing; by default, what the factory takes.
    """
    accepted = list(parameters_of(factory))
    takes = f"it takes {_quoted(accepted) or 'nothing'}"
    unknown = [] if takes_any(factory) else [name for name in params if name not in accepted]
    if unknown:
        meant = did_you_mean(unknown[0], accepted)
        return [f"the factory does not take {_quoted(unknown)}{f' ({meant})' if meant else ''}; {takes}"]
    missing = [name for name in required_arguments(factory) if name not in (*params, REGISTRY_ARGUMENT)]
    return [f"the factory needs {_quoted(missing)}; {advice or takes}"] if missing else []


def parameters_of(factory: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters that users may set, by name; none if the signature cannot be read."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: each for each in _signature(factory) if each.kind in named and each.name != REGISTRY_ARGUMENT}


def takes_any(factory: Callable[..., object]) -> bool:
    """Return whether a factory takes parameters that its signature does not name."""
    return any(each.kind is each.VAR_KEYWORD for each in _signature(factory))


def defaults_of(record: Plugin[object]) -> dict[str, object]:
    """Return the numbers that a plugin's factory takes by default, by the name of the parameter."""
    parameters = parameters_of(record.factory).values()
    defaults = {each.name: getattr(record.settings, each.name, each.default) for each in parameters}
    return {name: default for name, default in defaults.items() if type(default) in (int, float)}


def required_arguments(function: Callable[..., object]) -> list[str]:
    """Return the names of the arguments without which the function cannot be called."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in _signature(function) if each.default is each.empty and each.kind not in variadic]


def _signature(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function; any settings if it has no signature, as some that are written in C."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
