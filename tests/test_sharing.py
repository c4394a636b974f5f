"""Sums that are shared: computed once for all copies of a set, never taken for those of another, and forgotten."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

from dsv_plugins import Candidate, Embeddings, Evaluation, Scores, SelectorPlugin, build_registry
from dsv_plugins.losses import dsv, set_distance
from dsv_plugins.sharing import shared, shared_sums
from dsv_plugins.study.judging import judge_pool

SHARING = ("dsv", "discordance", "separability", "base", "energy", "cosine")


class Counted:
    """The sum of all values, and how often it was computed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.stack([tensor.double().sum() for tensor in tensors])


@pytest.fixture
def counted(monkeypatch):
    """Counts the visits to all pairs of two sets."""
    from dsv_plugins import distances

    visits = []
    visit = distances.distance_blocks

    def noted(a, b):
        visits.append((len(a), len(b)))
        return visit(a, b)

    monkeypatch.setattr("dsv_plugins.distances.distance_blocks", noted)
    return visits


def evaluation(seed: int = 0) -> Evaluation:
    generator = torch.Generator().manual_seed(seed)
    train, augmented, test = (torch.randn(rows, 6, generator=generator) + rows for rows in (20, 21, 22))
    return Evaluation(
        Candidate("cutout", {"place": seed}), Embeddings(train, augmented, test), Scores(train, test[:, 0])
    )


def test_copies_are_known_by_their_content():
    function = Counted()
    points = torch.randn(5, 3)
    once = shared(lambda *tensors: function(*tensors))
    with shared_sums():
        results = [once(points, other) for other in (points.clone(), copy.deepcopy(points), points.T.clone().T)]
    assert function.calls == 1
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([[1.0, 2.0], [3.0, 5.0]]),
        torch.tensor([[1.0, 3.0], [2.0, 4.0]]),
        torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64),
    ],
    ids=["value", "order", "shape", "dtype"],
)
def test_other_sets_are_not_mistaken(other):
    function = Counted()
    once = shared(lambda *tensors: function(*tensors))
    with shared_sums():
        once(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        once(other)
    assert function.calls == 2


def test_a_set_that_was_changed_is_another():
    points = evaluation().embeddings.train
    with shared_sums():
        before = float(set_distance(points, points + 1))
        points[0] += 100
        after = float(set_distance(points, points + 1))
    assert after == float(set_distance(points, points + 1)) != before


def test_nothing_is_shared_outside(counted):
    sets = evaluation().embeddings
    dsv(sets.train, sets.augmented, sets.test)
    visits = len(counted)
    dsv(sets.train, sets.augmented, sets.test)
    assert len(counted) == 2 * visits


def test_nothing_is_kept_afterwards():
    points = torch.randn(40, 3)
    results = []

    @shared
    def total(tensor):
        result = tensor.sum()
        results.append(weakref.ref(result))
        return result

    with shared_sums():
        total(points)
        gc.collect()
        assert results[0]() is not None
    gc.collect()
    assert results[0]() is None


def test_selectors_of_a_pool_visit_the_pairs_of_two_sets_once(counted):
    """Train, augmented and test have 20, 21 and 22 rows; six sums of distances are all that these selectors need."""
    judge_pool(build_registry(), SHARING, [evaluation()], seed=0, confidence=False, note=pytest.fail)
    assert sorted(counted) == [(20, 20), (20, 21), (20, 22), (21, 21), (21, 22), (22, 22)]


def test_shared_sums_change_no_loss():
    registry, pool = build_registry(), [evaluation(seed) for seed in range(3)]
    verdicts = judge_pool(registry, SHARING, pool, seed=0, confidence=False, note=pytest.fail)
    for name, verdict in verdicts.items():
        assert verdict.losses == registry.create(SelectorPlugin, name).losses(pool)
