"""Search spaces: which values each hyperparameter of a plugin may take."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from typing import TypeGuard, TypeVar

from dsv_plugins.errors import shown
from dsv_plugins.types import DETECTOR_PREFIX

__all__ = [
    "DEFAULT_RANGE_POINTS",
    "Range",
    "Space",
    "Values",
    "When",
    "as_suggested",
    "condition_problems",
    "draw",
    "grid",
    "of_detector",
    "plain",
    "space_problems",
    "space_to_json",
    "unsuitable_values",
    "with_settings",
]

DEFAULT_RANGE_POINTS = 9

Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class Range:
    """A range of one hyperparameter, ends included.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Whether the values are spread evenly on a logarithmic scale.
        integer: Whether the values are whole numbers; both ends must be.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def grid(self, points: int = DEFAULT_RANGE_POINTS) -> tuple[float, ...]:
        """`points` values spread evenly over the range, from `low` to `high` exactly; one if the two are equal.

        Of whole numbers there are fewer if the range has fewer.
        """
        if points < 1:
            raise ValueError(f"a grid needs at least one point, not {points}")
        if points == 1 or self.low == self.high:
            return (self.low,)
        # In decimals: the last bit of a float's logarithm differs between machines, and with it a candidate's id would.
        with localcontext(Context(prec=40)):
            low, high = Decimal(self.low), Decimal(self.high)
            steps = [Decimal(index) / (points - 1) for index in range(1, points - 1)]
            if self.log:
                between = [low * (high / low) ** step for step in steps]
            else:
                between = [low + step * (high - low) for step in steps]
            if self.integer:
                return tuple(dict.fromkeys([self.low, *(round(value) for value in between), self.high]))
            return (self.low, *map(float, between), self.high)


@dataclass(frozen=True, slots=True)
class When:
    """Values of a hyperparameter that counts only if another one, which stands before it, has a certain value.

    ```python
    space = {"mode": ["drop", "posterize"], "size": When("mode", "drop", Range(0.05, 0.4))}
    ```

    A candidate in which it does not count is made without it, so the factory needs a default for it.

    Attributes:
        name: The other hyperparameter. If that one does not count, neither does this one.
        equals: The value that the other one must have; a list means any of these.
        values: A list of values, or a `Range`.
    """

    name: str
    equals: object
    values: Sequence[object] | Range

    @property
    def accepted(self) -> list[object]:
        """The values of the other hyperparameter with which this one counts."""
        return list(self.equals) if isinstance(self.equals, (list, tuple)) else [self.equals]

    def counts(self, chosen: Mapping[str, object]) -> bool:
        """Whether it counts, by the values that are chosen so far."""
        return self.name in chosen and chosen[self.name] in self.accepted

    def renamed(self, rename: Callable[[str], str]) -> When:
        """The same under another name of the other hyperparameter."""
        return replace(self, name=rename(self.name))


Values = Sequence[object] | Range | When
"""What one hyperparameter may be: a list of values, a `Range`, or `When` around one of these."""

Space = Mapping[str, Values]
"""The values of each hyperparameter, by name: plain JSON, so that a candidate has an id and can be stored.

An empty space means that there is nothing to choose.
"""


def plain(values: Values) -> Sequence[object] | Range:
    """The values without the condition under which they count."""
    return values.values if isinstance(values, When) else values


def draw(space: Space, choose: Callable[[str, Sequence[object] | Range], object]) -> dict[str, object]:
    """A point of the space: what `choose` makes of the values of each hyperparameter that counts, in their order."""
    point: dict[str, object] = {}
    for name, values in space.items():
        if not isinstance(values, When) or values.counts(point):
            point[name] = choose(name, plain(values))
    return point


def grid(space: Space, range_points: int = DEFAULT_RANGE_POINTS) -> list[dict[str, object]]:
    """Every combination of the space's values, the last hyperparameter varying fastest.

    Combinations that differ in nothing that counts are one.

    Args:
        space: The search space; an empty one has exactly one point, the empty one.
        range_points: How many points are drawn from each continuous range.
    """
    points: list[dict[str, object]] = [{}]
    for name, given in space.items():
        values = plain(given)
        tried = values.grid(range_points) if isinstance(values, Range) else tuple(values)
        points = [
            point
            for before in points
            for point in (
                [{**before, name: value} for value in tried]
                if not isinstance(given, When) or given.counts(before)
                else [before]
            )
        ]
    return points


def of_detector(named: Mapping[str, Named]) -> dict[str, Named]:
    """The part of a space, or of a point in it, that is of the detector, by the names of the detector's settings."""
    return {
        name.removeprefix(DETECTOR_PREFIX): value for name, value in named.items() if name.startswith(DETECTOR_PREFIX)
    }


def with_settings(settings: Mapping[str, object], point: Mapping[str, object]) -> dict[str, object]:
    """The settings with those of a point in their place; `model_params.layers` is a setting inside `model_params`."""
    merged = dict(settings)
    for name, value in point.items():
        first, dot, rest = name.partition(".")
        inner = merged.get(first)
        merged[first] = with_settings(inner if isinstance(inner, Mapping) else {}, {rest: value}) if dot else value
    return merged


def space_problems(space: object, *, of_study: bool = False) -> list[str]:
    """What is wrong with a search space, one line each; empty if it is sound.

    Args:
        space: The search space.
        of_study: Whether it may have settings of detectors, as detector.NAME, or patch-memory.NAME for one of several;
            a plugin has hyperparameters only.
    """
    if not isinstance(space, Mapping):
        return [f"the search space is {_described(space)}; make it a mapping from hyperparameter to its values"]
    problems = [] if of_study else condition_problems(space) + _strange_conditions(space)
    for name, given in space.items():
        values = plain(given)
        if not isinstance(name, str) or not _is_parameter(name, of_study=of_study):
            also = f", and settings of the detector as {DETECTOR_PREFIX}NAME" if of_study else ""
            problems.append(
                f"the search space has the key {shown(name)}; name hyperparameters as Python names arguments{also}"
            )
        elif isinstance(values, Range):
            problems += [f"the range of {name!r} {fault}" for fault in _range_faults(values)]
        elif isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            problems.append(f"the values of {name!r} are {_described(values)}; give a list of values or a Range")
        elif _is_pair(values):
            problems.append(
                f"the values of {name!r} are the pair {shown(values)}, which can be read in two ways; give "
                f"[{values[0]}, {values[1]}] for two values, Range({values[0]}, {values[1]}) for all between them"
            )
        elif len(values) == 0:
            problems.append(f"the search space of {name!r} is empty; give it at least one value")
        elif len(set(map(repr, values))) < len(values):
            twice = next(value for value in values if [repr(each) for each in values].count(repr(value)) > 1)
            problems.append(f"the values of {name!r} include {shown(twice)} more than once; give each once")
        else:
            # Only one value is named: if one is a tensor or an object, the others usually are too.
            odd = [value for value in values if not _is_json(value)][:1]
            problems += [f"the values of {name!r} include {_described(value)}; {_PLAIN}" for value in odd]
    return problems


def condition_problems(space: Space) -> list[str]:
    """What is wrong with the order of hyperparameters that count under a condition, one line each."""
    names = list(space)
    return [
        f"{name!r} counts by the value of {values.name!r}, which does not stand before it; put it there"
        for place, (name, values) in enumerate(space.items())
        if isinstance(values, When) and values.name not in names[:place]
    ]


def _strange_conditions(space: Space) -> list[str]:
    """Which values no other hyperparameter of a plugin has, one line each; a study may leave some of them out."""
    conditions = [(name, values, space.get(values.name)) for name, values in space.items() if isinstance(values, When)]
    return [
        f"{name!r} counts when {values.name!r} is {shown(value)}, which is none of its values; give one of them"
        for name, values, known in conditions
        for value in values.accepted
        if isinstance(known, Sequence) and value not in known
    ]


def as_suggested(given: Values, suggested: Values) -> Values:
    """The given values, under the condition that the plugin suggests if they have none of their own.

    A range is one of whole numbers if the plugin suggests whole numbers and the range ends at such.
    """
    if isinstance(given, When):
        return replace(given, values=plain(as_suggested(given.values, plain(suggested))))
    if isinstance(suggested, When):
        return replace(suggested, values=plain(as_suggested(given, suggested.values)))
    if not isinstance(given, Range) or given.integer or not _is_whole(given.low) or not _is_whole(given.high):
        return given
    whole = suggested.integer if isinstance(suggested, Range) else all(type(value) is int for value in suggested)
    return Range(int(given.low), int(given.high), log=given.log, integer=True) if whole else given


def unsuitable_values(given: Values, suggested: Values) -> str:
    """Why a hyperparameter cannot have the given values, judged by those that its plugin suggests; empty if it can.

    Other numbers than the suggested ones may be tried. Where a plugin suggests words, it knows no others.
    """
    given, suggested = plain(given), plain(suggested)
    ends = (given.low, given.high) if isinstance(given, Range) else given
    if isinstance(suggested, Range) or all(map(_is_number, suggested)):
        whole = isinstance(suggested, Range) and suggested.integer
        single = [value for value in ends if not isinstance(value, (list, tuple))]  # some draw from a range of values
        odd = [value for value in single if not (_is_whole(value) if whole else _is_number(value))]
        return f"{shown(odd[0])} is no {'whole ' if whole else ''}number" if odd else ""
    if all(isinstance(value, (str, bool)) for value in suggested):
        odd = [value for value in ends if value not in suggested]
        choices = ", ".join(map(str, suggested))
        return f"{shown(odd[0])} is none of {choices}" if odd else ""
    return ""


def space_to_json(space: Space) -> dict[str, object]:
    """The space as plain JSON: a list of values, or an object with low, high and log, and integer if it is so.

    Those that count under a condition are an object with the condition, as `when`, and these as `values`.
    """
    return {name: _values_to_json(values) for name, values in space.items()}


def _values_to_json(values: Values) -> object:
    if isinstance(values, When):
        return {"when": {values.name: values.accepted}, "values": _values_to_json(values.values)}
    if not isinstance(values, Range):
        return list(values)
    found: dict[str, object] = {"low": values.low, "high": values.high, "log": values.log}
    return {**found, "integer": True} if values.integer else found


def _is_parameter(name: str, *, of_study: bool) -> bool:
    owner, dot, setting = name.partition(".")
    names = setting.split(".") if of_study and dot and owner else [name]
    return all(part.isidentifier() for part in names)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return _is_number(value) and value == int(value)


def _is_pair(values: Sequence[object]) -> bool:
    """Whether somebody may have meant a range."""
    return isinstance(values, tuple) and len(values) == 2 and all(map(_is_number, values))


def _range_faults(values: Range) -> list[str]:
    for end in (values.low, values.high):
        if isinstance(end, bool) or not isinstance(end, (int, float)):
            return [f"ends at {_described(end)}; give a number"]
        if not math.isfinite(end):
            return [f"ends at {end}; give a finite number"]
        if values.integer and not _is_whole(end):
            return [f"is one of whole numbers but ends at {end}; give a whole number"]
    if values.low > values.high:
        return [f"is empty: low {values.low} is above high {values.high}"]
    if values.log and values.low <= 0:
        return [f"is logarithmic but starts at {values.low}; a logarithmic range starts above zero"]
    return []


_PLAIN = "give finite numbers, text, booleans or lists"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _described(value: object) -> str:
    return f"{shown(value)} of type {type(value).__name__}"
