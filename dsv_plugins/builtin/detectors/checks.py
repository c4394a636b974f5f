"""Checks of a detector's settings, each with a message that says what to give instead."""

from __future__ import annotations

import math

__all__ = ["check_below", "check_density", "check_positive", "check_whole"]

DENSITIES = ("gaussian", "kde")


def check_whole(name: str, value: object, *, least: int) -> None:
    """Demand a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; give a whole number of at least {least}")


def check_positive(name: str, value: object) -> None:
    """Demand a finite number above 0."""
    if not _is_number(value) or not 0 < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}; give a number above 0")


def check_below(name: str, value: object, highest: float, *, inclusive: bool = False) -> None:
    """Demand a number from 0 to below `highest`, or to `highest` itself."""
    sound = _is_number(value) and (0 <= value <= highest if inclusive else 0 <= value < highest)  # type: ignore[operator]
    if not sound:
        raise ValueError(f"{name} is {value!r}; give a number from 0 to {'' if inclusive else 'below '}{highest:g}")


def check_density(value: str) -> None:
    """Demand the name of a density."""
    if value not in DENSITIES:
        raise ValueError(f"density is {value!r}; give one of {', '.join(DENSITIES)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
