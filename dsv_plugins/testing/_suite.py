"""What the checks of every kind are made of. Free of torch, which the workers of an executor do not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from dsv_plugins.records import Plugin, record_problems

__all__ = [
    "Subject",
    "Suite",
    "demand",
    "described",
    "has_all_methods",
    "has_sound_record",
]

Product = TypeVar("Product")
AnySubject = TypeVar("AnySubject", bound="Subject[Any]")


class Subject(Generic[Product]):
    """The plugin that a suite looks at; what is costly to make is made once and shared by the checks."""

    interface: ClassVar[type]
    methods: ClassVar[tuple[str, ...]]
    inherited: ClassVar[tuple[str, ...]] = ()
    """Methods for which the interface itself has an implementation."""

    def __init__(self, record: Plugin[Product]) -> None:
        self.record = record

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
    """The factory builds an object that has every method of the interface."""
    built = subject.build()
    kind, interface = type(built), subject.interface
    missing = [
        method
        for method in subject.methods
        if not callable(getattr(built, method, None))
        # A class derived from the interface inherits the empty bodies of those that it forgot.
        or (method not in subject.inherited and getattr(kind, method, None) is getattr(interface, method))
    ]
    demand(not missing, f"the factory built an object of class {kind.__name__}, which has no {', '.join(missing)}")


def demand(condition: bool, message: str) -> None:
    """Fail the check unless the condition holds. Not an assertion, which `python -O` would leave out."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(message)


def described(error: BaseException) -> str:
    """An exception in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
