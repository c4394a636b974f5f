"""How clear a choice is."""

from __future__ import annotations

import pytest
import torch

from dsv_plugins import Candidate, Embeddings, Evaluation, Scores, SelectorPlugin, build_registry
from dsv_plugins.study.bootstrap import MAX_ROWS, win_shares


def evaluation(place: int, test: torch.Tensor, rows: int = 50, holdout: torch.Tensor | None = None) -> Evaluation:
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(rows, 4, generator=generator)
    return Evaluation(
        Candidate("cutout", {"patch_size": place}),
        Embeddings(train, train + 3, test, holdout),
        Scores(torch.zeros(rows), test[:, 0], None if holdout is None else holdout[:, 0]),
    )


def points(offset: float, seed: int, rows: int = 50) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed)) + offset


@pytest.fixture(scope="module")
def dsv():
    return build_registry().create(SelectorPlugin, "dsv")


def test_a_candidate_that_is_far_better_always_wins(dsv):
    shares = win_shares(dsv, [evaluation(0, points(40, 1)), evaluation(1, points(1.5, 1))], seed=0)
    assert shares == [0, 1]


def test_a_derived_selector_that_judges_in_another_way_is_resampled_by_its_own_losses(dsv):
    class Opposite(type(dsv)):
        def losses(self, evaluations):
            return [-loss for loss in super().losses(evaluations)]

    shares = win_shares(Opposite(), [evaluation(0, points(40, 1)), evaluation(1, points(1.5, 1))], seed=0)
    assert shares == [1, 0]


def test_a_toss_up_is_told_as_one_and_the_shares_sum_to_one(dsv):
    shares = win_shares(dsv, [evaluation(place, points(1.5, place + 1)) for place in range(2)], seed=0)
    assert sum(shares) == pytest.approx(1)
    assert 0 < shares[0] < 1


def test_candidates_that_tie_share_the_wins():
    class Indifferent:
        def losses(self, evaluations):
            return [1.0, 0.5, 0.5, float("nan")]

    evaluations = [evaluation(place, points(0, place)) for place in range(4)]
    assert win_shares(Indifferent(), evaluations, seed=0) == pytest.approx([0, 0.5, 0.5, 0])


def test_shares_are_the_same_again_and_differ_with_the_seed(dsv):
    pool = [evaluation(place, points(1.5, place + 1)) for place in range(3)]
    assert win_shares(dsv, pool, seed=0) == win_shares(dsv, pool, seed=0)
    assert win_shares(dsv, pool, seed=0) != win_shares(dsv, pool, seed=1)


def test_candidates_are_judged_on_the_same_images_and_never_on_many():
    seen = []

    class Spy:
        def losses(self, evaluations):
            seen.append([e.embeddings.test for e in evaluations])
            assert all(len(e.embeddings.train) == len(e.embeddings.augmented) == MAX_ROWS for e in evaluations)
            assert all(torch.equal(e.scores.test, e.embeddings.test[:, 0]) for e in evaluations)
            return [0.0] * len(evaluations)

    test = points(0, 1, rows=1000)
    win_shares(Spy(), [evaluation(0, test, rows=900), evaluation(1, test, rows=900)], seed=0)
    for first, second in seen:
        assert torch.equal(first, second)
        assert len(first) == MAX_ROWS
    assert not torch.equal(seen[0][0], seen[1][0])
    assert len(seen) == 50
    seen.clear()
    win_shares(Spy(), [evaluation(place, test, rows=900) for place in range(100)], seed=0)
    assert len(seen) == 10
    seen.clear()
    win_shares(Spy(), [evaluation(place, test, rows=900) for place in range(10)], seed=0, judges_alone=False)
    assert len(seen) == 1000 // 45, "ten candidates are 45 pairs"


def test_held_out_images_are_drawn_anew_and_alike_for_all_candidates():
    seen = []

    class Spy:
        def losses(self, evaluations):
            seen.append([e.embeddings.holdout for e in evaluations])
            assert all(torch.equal(e.scores.holdout, e.embeddings.holdout[:, 0]) for e in evaluations)
            return [0.0] * len(evaluations)

    test, holdout = points(0, 1), points(0, 2, rows=30)
    win_shares(Spy(), [evaluation(place, test, holdout=holdout) for place in range(2)], seed=0)
    assert all(torch.equal(*pair) for pair in seen)
    assert all(len(first) == len(holdout) for first, _ in seen)
    assert not torch.equal(seen[0][0], seen[1][0])


def test_few_held_out_images_make_a_choice_by_them_less_clear():
    """The better of two candidates by a little wins less often where what it is compared with is drawn anew."""
    pu_auc = build_registry().create(SelectorPlugin, "pu-auc")
    tests = points(0.8, 1, rows=400), points(1.0, 2, rows=400)
    clear, unclear = (
        win_shares(
            pu_auc,
            [evaluation(place, test, holdout=points(0, 7 + place, rows)) for place, test in enumerate(tests)],
            seed=0,
        )
        for rows in (120, 4)
    )
    assert max(unclear) < max(clear)


@pytest.mark.parametrize("rows", [40, 300])
@pytest.mark.parametrize(
    "name", ["dsv", "discordance", "separability", "base", "mmd", "std", "energy", "cosine", "pu-auc", "hits"]
)
def test_resamples_at_once_have_the_wins_of_one_after_the_other(name, rows):
    """A selector behind another object has `losses` only, as those of third parties have."""
    selector = build_registry().create(SelectorPlugin, name)

    class OnlyLosses:
        def losses(self, evaluations):
            return selector.losses(evaluations)

    pool = [evaluation(place, points(1.5, place + 1, rows), holdout=points(0, place, 20)) for place in range(4)]
    assert win_shares(selector, pool, seed=0) == win_shares(OnlyLosses(), pool, seed=0)
