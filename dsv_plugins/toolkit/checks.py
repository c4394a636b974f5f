"""Checks of a plugin's settings, each with a message that says what to give instead. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Collection

__all__ = ["check_choice", "check_integer", "check_positive", "check_range"]


def check_integer(name: str, value: object, *, least: int) -> None:
    """Demand a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; give a whole number of at least {least}")


def check_positive(name: str, value: float) -> None:
    """Demand a finite number above 0."""
    if not (_is_number(value) and 0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; give a number above 0")


def check_range(name: str, value: float, highest: float, *, below: bool = False) -> None:
    """Demand a number from 0 to `highest`, or to `below` that."""
    if not (_is_number(value) and 0 <= value <= highest and not (below and value == highest)):
        raise ValueError(f"{name} is {value!r}; give a number from 0 to {'below ' if below else ''}{highest:g}")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Demand one of some names."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; give one of {', '.join(choices)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
