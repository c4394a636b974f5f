"""What the checks of every kind are made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from dsv_plugins.records import Plugin, record_problems
from dsv_plugins.transforms import global_randomness

__all__ = [
    "Subject",
    "Suite",
    "demand",
    "described",
    "has_all_methods",
    "has_sound_record",
    "untouched_global_randomness",
]

Product = TypeVar("Product")
AnySubject = TypeVar("AnySubject", bound="Subject[Any]")

UNLIKELY_SEED = 872_359


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


@contextmanager
def untouched_global_randomness() -> Iterator[None]:
    """Fail the check unless the global generators of torch, `random` and numpy end as they begin."""
    with global_randomness() as seed_all:
        seed_all(UNLIKELY_SEED)  # or a plugin that seeds them could happen to leave them as they were
        before = _global_states()
        yield
        changed = [library for library, state in _global_states().items() if state != before[library]]
        demand(not changed, f"changes the global random generator of {', '.join(changed)}; use one of your own")


def described(error: BaseException) -> str:
    """An exception in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _global_states() -> dict[str, object]:
    _, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy": (np.asarray(keys).tobytes(), *rest),
    }
