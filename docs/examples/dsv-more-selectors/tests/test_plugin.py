import math

import pytest
import torch
from dsv_more_selectors import STSSAD, Bimodality, RankAverage, ScoreSpread, SlicedWasserstein, selector

from dsv_plugins import Candidate, Embeddings, Evaluation, Scores, build_registry
from dsv_plugins.testing import parametrize_with_checks


@parametrize_with_checks(selector())
def test_conformance(check):
    check()


def evaluation(train, augmented, test):
    sets = [torch.tensor(each, dtype=torch.float64).reshape(len(each), -1) for each in (train, augmented, test)]
    scores = Scores(train=sets[0][:, 0], test=sets[2][:, 0])
    return Evaluation(Candidate("cutout", {"patch_size": 1}), Embeddings(*sets), scores)


def loss(chosen, *sets):
    return chosen.losses([evaluation(*sets)])[0]


def test_values_by_hand():
    # All points: 0, 2, 4, 6 and 3, 5, with mean 10/3; means of train and augmented 1 and 5; test 3 and 5.
    points = [0.0, 2.0, 4.0, 6.0, 3.0, 5.0]
    spread = math.sqrt(sum((point - 10 / 3) ** 2 for point in points) / 6)
    assert loss(STSSAD(), [0.0, 2.0], [4.0, 6.0], [3.0, 5.0]) == pytest.approx((3.0 + 1.0) / spread)
    # In one dimension every direction is the axis: {0, 2, 4, 6} against {3, 3, 5, 5} moves 3 + 1 + 1 + 1; d is 4.
    assert loss(SlicedWasserstein(), [0.0, 2.0], [4.0, 6.0], [3.0, 5.0]) == pytest.approx(6 / 4 / 4)
    assert loss(ScoreSpread(), [0.0, 2.0], [0.0, 2.0], [0.0, 6.0]) == pytest.approx(-3)
    assert loss(Bimodality(), [0.0, 1.0], [0.0, 1.0], [0.0, 0.0, 7.0, 7.0]) == pytest.approx(-1)
    # Even spacing over five points: no skewness, kurtosis 1.7.
    assert loss(Bimodality(), [0.0, 1.0], [0.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(-1 / 1.7)


def test_a_rank_average_leaves_out_who_cannot_be_judged():
    scores = ([0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 3.0, 2.0])  # mc cannot judge constant scores
    pool = [evaluation([0.0, 1.0], [4.0, 5.0], each) for each in scores]
    losses = RankAverage("energy", "mc", build_registry()).losses(pool)
    assert math.isnan(losses[1])
    # By energy the first and the third are alike, and so they are by mc: both share the ranks 1 and 2.
    assert [losses[0], losses[2]] == [1.5, 1.5]


def test_more_directions_change_a_sliced_distance_little():
    generator = torch.Generator().manual_seed(0)
    sets = [torch.randn(60, 16, generator=generator) + offset for offset in (0.0, 2.0, 1.0)]
    few, many = (loss(SlicedWasserstein(directions=count), *(each.tolist() for each in sets)) for count in (64, 512))
    assert few == pytest.approx(many, rel=0.1)
