"""Search spaces: which values each hyperparameter of a plugin may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

__all__ = ["DEFAULT_RANGE_POINTS", "Range", "Space", "Values", "grid", "space_problems", "space_to_json"]

DEFAULT_RANGE_POINTS = 9


@dataclass(frozen=True, slots=True)
class Range:
    """A continuous range of one hyperparameter, ends included.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Whether the values are spread evenly on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    def grid(self, points: int = DEFAULT_RANGE_POINTS) -> tuple[float, ...]:
        """`points` values spread evenly over the range, from `low` to `high` exactly."""
        if points < 1:
            raise ValueError(f"a grid needs at least one point, not {points}")
        if points == 1 or self.low == self.high:
            return (self.low,)
        steps = [index / (points - 1) for index in range(1, points - 1)]
        if self.log:
            between = [self.low * math.exp(step * math.log(self.high / self.low)) for step in steps]
        else:
            between = [self.low + step * (self.high - self.low) for step in steps]
        return (self.low, *between, self.high)


Values = Union[Sequence[object], Range]
"""What one hyperparameter may be: a list of values, or a `Range` from which a grid can be drawn."""

Space = Mapping[str, Values]
"""The values of each hyperparameter, by name. An empty space means that there is nothing to choose."""


def grid(space: Space, range_points: int = DEFAULT_RANGE_POINTS) -> list[dict[str, object]]:
    """Every combination of the space's values, the last hyperparameter varying fastest.

    Args:
        space: The search space; an empty one has exactly one point, the empty one.
        range_points: How many points are drawn from each continuous range.
    """
    values = [choice.grid(range_points) if isinstance(choice, Range) else tuple(choice) for choice in space.values()]
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*values)]


def space_problems(space: object) -> list[str]:
    """What is wrong with a search space, one line each; empty where it is sound."""
    if not isinstance(space, Mapping):
        return [f"the search space is {_described(space)}; make it a mapping from hyperparameter to its values"]
    problems = []
    for name, values in space.items():
        if not isinstance(name, str) or not name.isidentifier():
            problems.append(f"the search space has the key {name!r}; a hyperparameter's name is a Python identifier")
        elif isinstance(values, Range):
            problems += [f"the range of {name!r} {fault}" for fault in _range_faults(values)]
        elif isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            problems.append(f"the values of {name!r} are {_described(values)}; give a list of values or a Range")
        elif len(values) == 0:
            problems.append(f"the search space of {name!r} is empty; give it at least one value")
    return problems


def space_to_json(space: Space) -> dict[str, object]:
    """The space as plain JSON: a list of values, or an object with low, high and log."""
    return {
        name: {"low": values.low, "high": values.high, "log": values.log} if isinstance(values, Range) else list(values)
        for name, values in space.items()
    }


def _range_faults(values: Range) -> list[str]:
    if not (math.isfinite(values.low) and math.isfinite(values.high)):
        return ["is not finite"]
    if values.low > values.high:
        return [f"is empty: low {values.low} is above high {values.high}"]
    if values.log and values.low <= 0:
        return [f"is logarithmic but starts at {values.low}; a logarithmic range starts above zero"]
    return []


def _described(value: object) -> str:
    return f"{value!r:.60}, a {type(value).__name__}"
