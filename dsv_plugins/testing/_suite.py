"""What the checks of every kind are made of. Free of torch, which the workers of an executor do not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from dsv_plugins.plugins.checking import product_problem, record_problems
from dsv_plugins.plugins.records import Plugin
from dsv_plugins.plugins.registry import with_registry

__all__ = [
    "PREREQUISITES",
    "Subject",
    "Suite",
    "demand",
    "has_all_methods",
    "has_sound_record",
]

Product = TypeVar("Product")
AnySubject = TypeVar("AnySubject", bound="Subject[Any]")


class Subject(Generic[Product]):
    """The plugin that a suite looks at; what is costly to make is made once and shared by the checks."""

    methods: ClassVar[tuple[str, ...]] = ()
    """Those of a protocol, which Python does not enforce as it does those of a base class."""

    def __init__(self, record: Plugin[Product]) -> None:
        self.record = with_registry(record)

    def build(self) -> Product:
        """Make the plugin's object at the first point of its space."""
        return self.record.factory(**self.record.first_point())


@dataclass(frozen=True)
class Suite(Generic[AnySubject]):
    """The checks of one kind. Each is a function whose name users see, and whose docstring says what it demands."""

    subject: Callable[[Any], AnySubject]
    checks: tuple[Callable[[AnySubject], None], ...]

    def bind(self, record: Plugin[object]) -> dict[str, Callable[[], None]]:
        """The checks by name, ready to be called on one plugin, in the order in which they are to run."""
        subject = self.subject(record)
        return {check.__name__: partial(check, subject) for check in self.checks}


def has_sound_record(subject: Subject[Any]) -> None:
    """Name, summary and search space are valid, and the factory takes the hyperparameters by name."""
    problems = record_problems(subject.record)
    demand(not problems, "; ".join(problems))


def has_all_methods(subject: Subject[Any]) -> None:
    """The factory builds an object of the right class, with every method."""
    built, product = subject.build(), subject.record.product
    described = f"the factory made an object of class {type(built).__name__}, which"
    problem = product_problem(built, type(subject.record))
    demand(not problem, f"{described} {problem}")
    # A class derived from a protocol inherits the empty bodies of the methods that it forgot.
    missing = [method for method in subject.methods if getattr(type(built), method, None) is getattr(product, method)]
    demand(not missing, f"{described} has no {', '.join(missing)}")


PREREQUISITES = ("has_sound_record", "has_all_methods", "is_an_observer", "can_be_called", "can_be_trained")
"""Names of checks without which the others say nothing."""


def demand(condition: bool, message: str) -> None:
    """Fail the check unless the condition holds. Not an assertion, which `python -O` would leave out."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(message)
