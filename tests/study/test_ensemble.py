"""The best candidates as one detector."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import DETECTOR, TINY
from scipy.stats import rankdata

from dsv_plugins import Candidate, InputError, select
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.study.ensemble import Ensemble, Member


class Scorer:
    """Scores images by a function of their first pixel."""

    def __init__(self, function):
        self.function = function

    def score(self, images):
        return self.function(images[:, 0, 0, 0].float())


def pixels(values):
    return torch.tensor(values)[:, None, None, None]


def member(function, reference):
    return Member(Candidate("cutout", {}), Scorer(function), Scorer(function).score(pixels(reference)))


def test_scores_are_mean_ranks_among_the_reference_whatever_the_scale_of_a_member():
    reference = [1.0, 2.0, 3.0, 4.0]
    ensemble = Ensemble([member(lambda x: x, reference), member(lambda x: 1000 * x**2, reference)])
    assert ensemble.score(pixels([0.0, 2.0, 2.5, 9.0])).tolist() == [0.0, 0.375, 0.5, 1.0]
    against = Ensemble([member(lambda x: x, reference), member(lambda x: -x, reference)])
    assert against.score(pixels([0.0, 2.0, 9.0])).tolist() == [0.5, 0.5, 0.5]


def test_a_single_image_has_the_score_that_it_has_among_others():
    ensemble = Ensemble([member(lambda x: x, [3.0, 1.0, 2.0]), member(lambda x: (x - 2).abs(), [3.0, 1.0, 2.0])])
    together = ensemble.score(pixels([0.5, 2.5, 7.0]))
    alone = [float(ensemble.score(pixels([value]))) for value in (0.5, 2.5, 7.0)]
    assert together.tolist() == alone


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randint(256, (size, 3, 16, 16), generator=generator, dtype=torch.uint8) for size in (8, 10))
    return select(
        train,
        test,
        grid={"patch_size": [0.02, 0.1, 0.3]},
        selector=["dsv", "mc"],
        detector=DETECTOR,
        detector_params={**TINY, "image_size": 16, "updates": 3},
        executor="serial",
        out=tmp_path_factory.mktemp("ensemble") / "run",
    )


@pytest.mark.parametrize("selector", [None, "mc"])
def test_the_best_candidates_of_a_study_as_one(result, selector):
    ensemble = result.ensemble(2, selector)
    losses = {entry.candidate.id: entry.losses[selector or "dsv"] for entry in result.candidates}
    best = sorted(losses, key=losses.get)[:2]
    assert [each.candidate.id for each in ensemble.members] == best
    entries = {entry.candidate.id: entry.candidate for entry in result.candidates}
    scores = [result.evaluation(entries[each]).scores.test.numpy() for each in best]
    expected = np.mean([(rankdata(each) - 0.5) / len(each) for each in scores], axis=0)
    images = open_dataset(result.run / "data").test
    assert ensemble.score(images).numpy() == pytest.approx(expected)


def test_an_ensemble_of_one_ranks_as_the_choice_does(result):
    images = open_dataset(result.run / "data").test
    ranked = rankdata(result.ensemble(1).score(images).numpy())
    assert ranked.tolist() == rankdata(result.detector.score(images).numpy()).tolist()


def test_what_cannot_be_had_is_refused(result):
    for count in (0, 4):
        with pytest.raises(InputError, match=f"count is {count}; give a number from 1 to 3"):
            result.ensemble(count)
    with pytest.raises(InputError, match="'hits' did not judge this study; give one of dsv, mc"):
        result.ensemble(2, "hits")
