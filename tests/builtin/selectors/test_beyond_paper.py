"""The selectors of shifts against loops, scipy, scikit-learn and exact fractions."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import energy_distance as scipy_energy_distance
from sklearn.metrics import roc_auc_score

from dsv_plugins import Candidate, Embeddings, Evaluation, ScoreError, Scores, SelectorPlugin, build_registry
from dsv_plugins.losses import energy_distance, relative_energy, shift_cosine

REGISTRY = build_registry()


def losses_of(name, evaluations):
    return REGISTRY.create(SelectorPlugin, name).losses(evaluations)


def evaluation(index=0, *, sets=None, test=(0.0, 1.0), holdout=(0.0, 1.0)):
    some = torch.eye(2)
    test, holdout = (None if each is None else torch.tensor(each) for each in (test, holdout))
    return Evaluation(
        Candidate("cutout", {"patch_size": index}),
        Embeddings(*(sets or (some, some + 1, some + 2))),
        Scores(train=torch.zeros(2), test=test, holdout=holdout),
    )


def cloud(seed, rows, width=3, offset=0.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(offset, 1, (rows, width)))


# ---------------------------------------------------------------------------
# pu-auc
# ---------------------------------------------------------------------------

some_scores = st.lists(st.integers(-5, 5), min_size=1, max_size=12)


def counted_auroc(negatives, positives):
    """Over all pairs, in fractions."""
    wins = sum(Fraction(p > n) + Fraction(p == n, 2) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives))


@settings(deadline=None, max_examples=50)
@given(some_scores, some_scores)
def test_pu_auc_by_counting_pairs_and_by_scikit_learn(holdout, test):
    expected = float(counted_auroc(holdout, test))
    (loss,) = losses_of("pu-auc", [evaluation(test=list(map(float, test)), holdout=list(map(float, holdout)))])
    assert -loss == pytest.approx(expected, abs=1e-15)
    labels = [0] * len(holdout) + [1] * len(test)
    assert roc_auc_score(labels, holdout + test) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(some_scores, some_scores, st.integers(1, 4))
def test_pu_auc_is_half_the_normals_and_the_auc_of_the_anomalies(normals, anomalies, copies):
    """Exactly, where test normals have the distribution of the held-out ones, whatever the share of anomalies."""
    test = normals * copies + anomalies
    share = Fraction(len(anomalies), len(test))
    expected = (1 - share) / 2 + share * counted_auroc(normals, anomalies)
    assert counted_auroc(normals, test) == expected
    (loss,) = losses_of("pu-auc", [evaluation(test=list(map(float, test)), holdout=list(map(float, normals)))])
    assert -loss == pytest.approx(float(expected), abs=1e-14)


def test_pu_auc_orders_candidates_as_the_auc_does_at_any_share_of_anomalies():
    generator = np.random.default_rng(0)
    for anomalies in (5, 50, 500):
        aucs, pool = [], []
        for index, distance in enumerate((2.0, 0.2, 1.0, 0.5)):
            normal, anomalous = generator.normal(0, 1, 1000), generator.normal(distance, 1, anomalies)
            aucs.append(roc_auc_score([0] * 1000 + [1] * anomalies, [*normal, *anomalous]))
            pool.append(evaluation(index, test=[*normal, *anomalous], holdout=list(normal)))
        assert np.argsort(losses_of("pu-auc", pool)).tolist() == np.argsort(-np.array(aucs)).tolist()


def test_pu_auc_without_held_out_images_says_what_to_set():
    with pytest.raises(ScoreError, match="remove --holdout 0"):
        losses_of("pu-auc", [evaluation(), evaluation(1, holdout=None)])


@pytest.mark.parametrize("broken", [{"test": [0.0, math.nan]}, {"holdout": [math.inf, 0.0]}])
def test_pu_auc_names_a_candidate_with_broken_scores(broken):
    with pytest.warns(UserWarning, match=r"cutout\(patch_size=1\) is left out") as caught:
        losses = losses_of("pu-auc", [evaluation(), evaluation(1, **broken)])
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert losses[0] == -0.5
    assert math.isnan(losses[1])


# ---------------------------------------------------------------------------
# energy and cosine
# ---------------------------------------------------------------------------


def mean_distance(a, b):
    return math.fsum(math.dist(x, y) for x in a.tolist() for y in b.tolist()) / (len(a) * len(b))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 9))
def test_energy_distance_in_one_dimension_is_the_square_of_scipys(seed, first, second):
    a, b = cloud(seed, first, width=1), cloud(seed + 1, second, width=1, offset=1.0)
    expected = scipy_energy_distance(a[:, 0].numpy(), b[:, 0].numpy()) ** 2
    assert float(energy_distance(a, b)) == pytest.approx(expected, abs=1e-7)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_energy_and_cosine_by_loops_over_pairs(seed):
    train, augmented, test = cloud(seed, 6), cloud(seed + 1, 5, offset=1.0), cloud(seed + 2, 7, offset=0.5)

    def energy(a, b):
        return 2 * mean_distance(a, b) - mean_distance(a, a) - mean_distance(b, b)

    relative = energy(train, test) / mean_distance(train, train)
    assert float(relative_energy(train, test)) == pytest.approx(relative, rel=1e-6)
    c = (
        mean_distance(test, augmented)
        - mean_distance(test, train)
        + mean_distance(train, train)
        - mean_distance(train, augmented)
    )
    cosine = -c / math.sqrt(energy(train, augmented) * energy(train, test))
    assert float(shift_cosine(train, augmented, test)) == pytest.approx(cosine, abs=1e-6)
    pool = [evaluation(sets=(train, augmented, test))]
    assert losses_of("energy", pool) == pytest.approx([-relative], rel=1e-6)
    assert losses_of("cosine", pool) == pytest.approx([-cosine], abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(-50, 50))
def test_neither_depends_on_scale_place_or_direction(seed, scale, place):
    sets = cloud(seed, 8), cloud(seed + 1, 8, offset=1.0), cloud(seed + 2, 9, offset=0.5)
    turn = torch.linalg.qr(cloud(seed + 3, 3)).Q
    moved = [(each @ turn) * scale + place for each in sets]
    assert float(shift_cosine(*moved)) == pytest.approx(float(shift_cosine(*sets)), abs=1e-5)
    assert float(relative_energy(moved[0], moved[2])) == pytest.approx(
        float(relative_energy(sets[0], sets[2])), rel=1e-5
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=2, max_size=2), min_size=3, max_size=12))
def test_the_cosine_lies_between_minus_one_and_one_unless_there_is_no_shift(rows):
    points = torch.tensor(rows).double()
    train, augmented, test = points[::3], points[1::3], points[2::3]
    value = float(shift_cosine(train, augmented, test))

    def shares(part):  # two sets have no energy distance exactly if they are the same distribution
        return {point: Fraction(times, len(part)) for point, times in Counter(map(tuple, part.tolist())).items()}

    if shares(train) in (shares(augmented), shares(test)):
        assert math.isnan(value)
    else:
        assert -1 <= value <= 1


@pytest.mark.parametrize("share", [1, 3, 20])
def test_the_cosine_of_a_mixture_is_one_and_of_the_opposite_shift_negative(share):
    train, augmented = cloud(0, 20), cloud(1, 20, offset=2.0)
    mixture = torch.cat([train.repeat(share, 1), augmented])
    assert float(shift_cosine(train, augmented, mixture)) == pytest.approx(1, abs=1e-6)
    assert float(shift_cosine(train, augmented, cloud(2, 20, offset=-2.0))) < -0.3


def test_the_cosine_sees_no_shift_across_the_augmentation():
    """Test images elsewhere, but not where the augmentation points, are not explained by it."""
    train = cloud(0, 400)
    across = train + torch.tensor([0.0, 3.0, 0.0])
    along = train + torch.tensor([3.0, 0.0, 0.0])
    assert float(shift_cosine(train, along, across)) < 0.75 < 0.99 < float(shift_cosine(train, along, along))


def test_without_a_shift_or_a_spread_there_is_no_value():
    train, elsewhere = torch.zeros(4, 2), torch.ones(4, 2)
    assert math.isnan(float(shift_cosine(train, train, elsewhere)))
    assert math.isnan(float(shift_cosine(train, elsewhere, train)))
    assert math.isnan(float(relative_energy(train, elsewhere)))
    assert float(energy_distance(train, train)) == 0
