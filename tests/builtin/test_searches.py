from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv_plugins import Candidate, InputError, SearchPlugin, build_registry
from dsv_plugins.plugins.search import Rungs, SearchProblem


def searched(name, sizes, *, budget, rungs=None, failing=()):
    """What a search finds where the smallest size wins, and the calls it made; sizes stand for evaluations."""
    calls = []

    def evaluate(pool, updates, resumes_from):
        calls.append(([candidate.params["patch_size"] for candidate in pool], updates, resumes_from))
        return {c.id: c.params["patch_size"] for c in pool if c.params["patch_size"] not in failing}

    problem = SearchProblem(
        spaces={"cutpaste": {"patch_size": sizes}},
        candidate=Candidate,
        evaluate=evaluate,
        losses=lambda evaluations: [math.nan if size < 0 else size for size in evaluations],
        budget=budget,
        rungs=rungs or Rungs(),
        seed=0,
        run=None,
        note=None,
    )
    return build_registry().create(SearchPlugin, name).run(problem), calls


def test_grid_search_gives_all_the_whole_budget():
    found, calls = searched("grid", [3, 1, 2], budget=30)
    assert calls == [([3, 1, 2], 30, None)]
    assert len(found) == 3


def test_halving_keeps_the_best_and_resumes_them():
    found, calls = searched("halving", [5, 9, 1, 7, 3, 8, 2, 6, 4], budget=90, rungs=Rungs(3, 3))
    assert calls == [([5, 9, 1, 7, 3, 8, 2, 6, 4], 10, None), ([1, 3, 2], 30, 10), ([1], 90, 30)]
    assert list(found.values()) == [1]


def test_halving_leaves_out_those_that_fail_or_have_no_loss():
    _, calls = searched("halving", [4, -1, 2, 3], failing=[2], budget=8, rungs=Rungs(2, 2))
    assert calls == [([4, -1, 2, 3], 4, None), ([4, 3], 8, 4)]


def test_halving_ends_when_all_have_failed():
    found, calls = searched("halving", [1, 2], failing=[1, 2], budget=8, rungs=Rungs(2, 2))
    assert not found
    assert len(calls) == 1


@given(budget=st.integers(1, 10_000), count=st.integers(1, 6), factor=st.floats(1.1, 5))
@settings(deadline=None)
def test_rungs_grow_to_the_budget(budget, count, factor):
    rungs = Rungs(count, factor).updates(budget)
    assert rungs[-1] == budget
    assert rungs[0] >= 1
    assert all(low < high for low, high in itertools.pairwise(rungs))
    assert len(rungs) <= count


@pytest.mark.parametrize(("count", "factor"), [(0, 3), (3, 1), (3, 0.5)])
def test_senseless_rungs_are_refused(count, factor):
    with pytest.raises(InputError, match="a search with"):
        Rungs(count, factor)
