"""What the checks of every kind are made of. Free of torch, which the workers of an executor do not need."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Generic, TypeVar

from dsv_plugins.plugins.checking import product_problem, record_problems
from dsv_plugins.plugins.records import Plugin
from dsv_plugins.plugins.registry import with_registry

__all__ = ["PREREQUISITES", "Suite", "demand", "names_of"]

Product = TypeVar("Product")

PREREQUISITES = ("has_sound_record", "has_all_methods", "can_be_called", "can_be_trained")
"""Names of checks without which the others say nothing."""


class Suite(Generic[Product]):
    """The checks of a plugin. Each kind has a class of its own, in which every method without an underscore is a check.

    Users see the name of the method, and its docstring says what it demands. What is costly to make is made once and
    shared by the checks.
    """

    methods: ClassVar[tuple[str, ...]] = ()
    """Those of a protocol, which Python does not enforce as it does those of a base class."""

    def __init__(self, record: Plugin[Product]) -> None:
        self.record = with_registry(record)

    def has_sound_record(self) -> None:
        """Name, summary and search space are valid, and the factory takes the hyperparameters by name."""
        problems = record_problems(self.record)
        demand(not problems, "; ".join(problems))

    def has_all_methods(self) -> None:
        """The factory builds an object of the right class, with every method."""
        built, product = self._build(), self.record.product
        described = f"the factory made an object of class {type(built).__name__}, which"
        problem = product_problem(built, type(self.record))
        demand(not problem, f"{described} {problem}")
        # A class derived from a protocol inherits the empty bodies of the methods that it forgot.
        missing = [name for name in self.methods if getattr(type(built), name, None) is getattr(product, name)]
        demand(not missing, f"{described} has no {', '.join(missing)}")

    def _build(self) -> Product:
        """Make the plugin's object at the first point of its space."""
        return self.record.factory(**self.record.first_point())


def names_of(suite: type[Suite[Any]]) -> list[str]:
    """The names of a kind's checks in the order in which they are written, those that all kinds have first.

    One that a kind names again runs at that place.
    """
    names: dict[str, None] = {}
    for each in reversed(suite.__mro__):
        own = [name for name, value in vars(each).items() if inspect.isfunction(value) and not name.startswith("_")]
        names = dict.fromkeys([*(name for name in names if name not in own), *own])
    return list(names)


def demand(condition: bool, message: str) -> None:
    """Fail the check unless the condition holds. Not an assertion, which `python -O` would leave out."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(message)
