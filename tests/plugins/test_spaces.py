"""Search spaces: grids against numpy and plain loops, and a line for every mistake in a space."""

from __future__ import annotations

import itertools
import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv_plugins import AugmentationPlugin
from dsv_plugins.plugins.checking import record_problems
from dsv_plugins.plugins.spaces import (
    DEFAULT_RANGE_POINTS,
    Range,
    Values,
    When,
    as_suggested,
    draw,
    grid,
    space_problems,
    space_to_json,
    unsuitable_values,
)

quick = settings(deadline=None)
counts = st.integers(2, 40)
anything = st.floats(allow_nan=False, allow_infinity=False)
ordinary = st.floats(-1e6, 1e6)
positive = st.floats(5e-324, sys.float_info.max)


def check_shape(values: tuple[float, ...], low: float, high: float, points: int) -> None:
    assert (values[0], values[-1]) == (low, high), "the ends are exact"
    assert len(values) == (points if low < high else 1)
    assert all(left <= right for left, right in itertools.pairwise(values)), "never decreasing"
    assert all(math.isfinite(value) for value in values)


@quick
@given(st.tuples(anything, anything).map(sorted), counts)
def test_a_grid_keeps_its_ends_and_its_order_over_all_floats(ends, points):
    check_shape(Range(*ends).grid(points), *ends, points)


@quick
@given(st.tuples(positive, positive).map(sorted), counts)
def test_a_logarithmic_grid_keeps_its_ends_and_its_order_over_all_positive_floats(ends, points):
    check_shape(Range(*ends, log=True).grid(points), *ends, points)


@quick
@given(st.tuples(ordinary, ordinary).map(sorted).filter(lambda ends: ends[0] < ends[1]), counts)
def test_a_linear_grid_is_numpys_linspace(ends, points):
    low, high = ends
    tolerance = 1e-14 * max(abs(low), abs(high)) + 1e-300  # numpy loses digits among the subnormal numbers
    np.testing.assert_allclose(Range(low, high).grid(points), np.linspace(low, high, points), rtol=0, atol=tolerance)


@quick
@given(st.tuples(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9)).map(sorted).filter(lambda ends: ends[0] < ends[1]), counts)
def test_a_logarithmic_grid_is_numpys_geomspace(ends, points):
    np.testing.assert_allclose(Range(*ends, log=True).grid(points), np.geomspace(*ends, points), rtol=1e-12)


def test_the_numbers_of_a_grid_are_the_nearest_to_the_true_ones():
    # Floats would give 0.30000000000000004 here, and a last bit that depends on the machine's logarithm there.
    assert Range(0, 1).grid(11) == tuple(tenth / 10 for tenth in range(11))
    assert Range(1e-3, 1e3, log=True).grid(7) == (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
    assert Range(1, 2, log=True).grid(3) == (1, math.sqrt(2), 2)


def test_small_grids():
    assert Range(2, 5).grid(1) == (2,)
    assert Range(2, 5).grid(2) == (2, 5)
    assert Range(3, 3).grid(5) == (3,)
    assert len(Range(2, 5).grid()) == DEFAULT_RANGE_POINTS
    with pytest.raises(ValueError, match="at least one point, not 0"):
        Range(2, 5).grid(0)


@quick
@given(
    st.lists(st.integers(), min_size=1, max_size=4),
    st.lists(st.text(), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_grid_is_nested_loops(sizes, modes, points):
    strength = Range(0.5, 2.0, log=True)
    expected = []
    for size in sizes:
        for value in strength.grid(points):
            for mode in modes:
                expected.append({"size": size, "strength": value, "mode": mode})
    assert grid({"size": sizes, "strength": strength, "mode": modes}, range_points=points) == expected


def test_grid_without_hyperparameters_has_one_point():
    assert grid({}) == [{}]


NAMES = "; name hyperparameters as Python names arguments"
LIST = "; give a list of values or a Range"


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (None, "the search space is None of type NoneType; make it a mapping from hyperparameter to its values"),
        ([1, 2], "the search space is [1, 2] of type list; make it a mapping from hyperparameter to its values"),
        ({"patch-size": [1]}, "the search space has the key 'patch-size'" + NAMES),
        ({3: [1]}, "the search space has the key 3" + NAMES),
        ({"size": []}, "the search space of 'size' is empty; give it at least one value"),
        ({"size": "small"}, "the values of 'size' are 'small' of type str" + LIST),
        ({"size": 3}, "the values of 'size' are 3 of type int" + LIST),
        ({"size": {1}}, "the values of 'size' are {1} of type set" + LIST),
        ({"size": np.arange(2)}, "the values of 'size' are array([0, 1]) of type ndarray" + LIST),
        (
            {"size": [1, b"x", b"y"]},
            "the values of 'size' include b'x' of type bytes; give finite numbers, text, booleans or lists",
        ),
        (
            {"size": [math.nan]},
            "the values of 'size' include nan of type float; give finite numbers, text, booleans or lists",
        ),
        ({"size": Range(2, 1)}, "the range of 'size' is empty: low 2 is above high 1"),
        ({"size": Range(0, math.inf)}, "the range of 'size' ends at inf; give a finite number"),
        ({"size": Range(math.nan, 1)}, "the range of 'size' ends at nan; give a finite number"),
        ({"size": Range("1", 2)}, "the range of 'size' ends at '1' of type str; give a number"),
        ({"size": Range(0, None)}, "the range of 'size' ends at None of type NoneType; give a number"),
        (
            {"size": Range(0, 1, log=True)},
            "the range of 'size' is logarithmic but starts at 0; a logarithmic range starts above zero",
        ),
    ],
    ids=str,
)
def test_a_problem_is_one_line(space, problem):
    assert space_problems(space) == [problem]


def test_every_problem_is_named():
    assert len(space_problems({"size": [], "strength": Range(2, 1), "sound": [1]})) == 2


SOUND = {
    "size": (1, 2.5, 4),
    "count": range(3),
    "mode": ["fast", None, True],
    "aspect": [(0.3, 1.0), [1, 2]],
    "strength": Range(1e-3, 1, log=True),
    "fixed": Range(1, 1),
}


def test_a_sound_space_has_no_problem_and_goes_through_json():
    assert space_problems(SOUND) == []
    assert space_problems({}) == []
    assert json.loads(json.dumps(space_to_json(SOUND))) == {
        "size": [1, 2.5, 4],
        "count": [0, 1, 2],
        "mode": ["fast", None, True],
        "aspect": [[0.3, 1.0], [1, 2]],
        "strength": {"low": 1e-3, "high": 1, "log": True},
        "fixed": {"low": 1, "high": 1, "log": False},
    }


def test_a_range_of_whole_numbers_has_each_of_them_at_most_once() -> None:
    assert Range(1, 4, integer=True).grid() == (1, 2, 3, 4)
    assert Range(1, 100, log=True, integer=True).grid(5) == (1, 3, 10, 32, 100)
    assert all(type(value) is int for value in Range(0, 1000, integer=True).grid())
    assert space_problems({"size": Range(1, 2.5, integer=True)}) == [
        "the range of 'size' is one of whole numbers but ends at 2.5; give a whole number"
    ]


def test_a_whole_range_is_told_from_others_in_a_stored_study() -> None:
    assert space_to_json({"size": Range(1, 4, integer=True)}) == {
        "size": {"low": 1, "high": 4, "log": False, "integer": True}
    }


def test_a_pair_of_numbers_may_have_been_meant_as_a_range() -> None:
    (problem,) = space_problems({"size": (0.1, 0.5)})
    assert problem.endswith("give [0.1, 0.5] for two values, Range(0.1, 0.5) for all between them")
    assert space_problems({"size": (0.1, 0.5, 0.7), "name": ("a", "b")}) == []


@pytest.mark.parametrize(
    ("given", "suggested", "problem"),
    [
        (["purple"], ["thin", "thick"], "'purple' is none of thin, thick"),
        (["thick"], ["thin", "thick"], ""),
        ([0], [True, False], ""),  # equal to False, and taken as such by every factory
        (["yes"], [True, False], "'yes' is none of True, False"),
        (Range(0, 2), ["thin", "thick"], "0 is none of thin, thick"),
        (["fast"], [0.1, 0.2], "'fast' is no number"),
        ([True], Range(0, 1), "True is no number"),
        ([0.7], [0.1, 0.2], ""),
        ([[0.1, 0.7]], [0.1, 0.2], ""),
        ([7], Range(0, 1), ""),
        ([2.5], Range(1, 9, integer=True), "2.5 is no whole number"),
        ([2.5], [1, 2], ""),
        (["anything"], [1, "auto"], ""),
    ],
)  # fmt: skip
def test_given_values_are_judged_by_the_suggested_ones(given: Values, suggested: Values, problem: str) -> None:
    assert unsuitable_values(given, suggested) == problem


def test_a_range_on_whole_numbers_stays_on_them() -> None:
    assert as_suggested(Range(1.0, 9.0), [1, 2]).grid(3) == (1, 5, 9)
    assert as_suggested(Range(1.0, 8.0), Range(1, 99, integer=True)).grid(3) == (1, 4, 8)
    assert as_suggested(Range(1.0, 8.0), [1.0, 2.0]) == Range(1.0, 8.0)
    assert as_suggested(Range(0.5, 8.0), [1, 2]) == Range(0.5, 8.0)
    assert as_suggested([0.5], [1, 2]) == [0.5]


def test_a_value_that_is_given_twice_is_told() -> None:
    assert space_problems({"size": [1, 2, 1]}) == ["the values of 'size' include 1 more than once; give each once"]
    assert space_problems({"size": [1, 1.0, True]}) == []  # written differently, they are different candidates


# ---------------------------------------------------------------------------
# Hyperparameters that count under a condition
# ---------------------------------------------------------------------------

CONDITIONAL = {
    "mode": ["drop", "posterize", "blur"],
    "size": When("mode", "drop", Range(1, 3)),
    "edge": When("size", 2, ["soft", "hard"]),
    "bits": When("mode", ["posterize", "drop"], [4, 5]),
}


def test_candidates_that_cannot_differ_are_one():
    """Against plain loops over every combination, with what does not count taken out."""
    every = itertools.product(["drop", "posterize", "blur"], [1.0, 2.0, 3.0], ["soft", "hard"], [4, 5])
    expected = []
    for mode, size, edge, bits in every:
        point = {"mode": mode}
        if mode == "drop":
            point["size"] = size
            if size == 2:
                point["edge"] = edge
        if mode != "blur":
            point["bits"] = bits
        if point not in expected:
            expected.append(point)
    assert grid(CONDITIONAL, range_points=3) == expected
    assert len(expected) == 4 * 2 + 2 + 1


def test_a_drawn_point_has_what_counts():
    asked = []

    def last(name, values):
        asked.append(name)
        return values.high if isinstance(values, Range) else values[-1]

    assert draw(CONDITIONAL, last) == {"mode": "blur"}
    assert draw({**CONDITIONAL, "mode": ["drop"]}, last) == {"mode": "drop", "size": 3, "bits": 5}
    assert asked == ["mode", "mode", "size", "bits"]


def test_conditions_are_plain_json():
    assert json.loads(json.dumps(space_to_json(CONDITIONAL))) == {
        "mode": ["drop", "posterize", "blur"],
        "size": {"when": {"mode": ["drop"]}, "values": {"low": 1, "high": 3, "log": False}},
        "edge": {"when": {"size": [2]}, "values": ["soft", "hard"]},
        "bits": {"when": {"mode": ["posterize", "drop"]}, "values": [4, 5]},
    }


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (
            {"size": When("mode", "a", [1]), "mode": ["a"]},
            "which does not stand before it; put it there",
        ),
        ({"size": When("mood", "a", [1])}, "'size' counts by the value of 'mood', which"),
        (
            {"mode": ["a", "b"], "size": When("mode", "c", [1])},
            "is 'c', which is none of its values",
        ),
        ({"mode": ["a"], "size": When("mode", "a", [])}, "the search space of 'size' is empty"),
        ({"mode": ["a"], "size": When("mode", "a", Range(2, 1))}, "the range of 'size' is empty"),
        ({"mode": ["a"], "size": When("mode", "a", When("mode", "a", [1]))}, "give a list of values or a Range"),
    ],
)
def test_a_condition_that_cannot_be_is_one_line(space, problem):
    (found,) = space_problems(space)
    assert problem in found


def test_values_of_a_study_keep_the_condition_of_the_plugin():
    suggested = When("mode", "drop", Range(1, 9, integer=True))
    assert as_suggested([2, 4], suggested) == When("mode", "drop", [2, 4])
    assert as_suggested(Range(2.0, 4.0), suggested) == When("mode", "drop", Range(2, 4, integer=True))
    assert as_suggested(When("kind", "a", Range(2.0, 4.0)), suggested) == When("kind", "a", Range(2, 4, integer=True))
    assert unsuitable_values(When("kind", "a", ["x"]), suggested) == "'x' is no whole number"


def test_a_factory_must_do_without_what_does_not_count():
    def needs(mode, size):
        pass

    def does_without(mode, size=0.1):
        pass

    space = {"mode": ["drop", "blur"], "size": When("mode", "drop", [0.1])}
    assert record_problems(AugmentationPlugin("fog", does_without, space=space)) == []
    assert record_problems(AugmentationPlugin("fog", needs, space=space)) == [
        "the factory needs 'size'; give it a default, since it does not always count"
    ]
    (unknown,) = record_problems(AugmentationPlugin("fog", lambda mode: None, space=space))
    assert unknown.startswith("the factory does not take 'size'")
