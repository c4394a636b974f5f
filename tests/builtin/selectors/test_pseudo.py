"""Selectors by pseudo-anomalies that are the same for all candidates, against plain loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.stats import kendalltau

from dsv_plugins import Candidate, Embeddings, Evaluation, ScoreError, Scores, SelectorPlugin, build_registry

REGISTRY = build_registry()


def evaluation(seed: int, *, pseudo: bool = True, test: int = 9) -> Evaluation:
    generator = torch.Generator().manual_seed(seed)

    def drawn(count: int, shift: float = 0.0) -> torch.Tensor:
        return (torch.rand(count, generator=generator) + shift).round(decimals=1)  # with ties

    rows = torch.zeros(4, 2)
    scores = Scores(drawn(4), drawn(test), drawn(6), drawn(4), drawn(6, 0.1 * seed) if pseudo else None)
    return Evaluation(Candidate("cutout", {"patch_size": seed}), Embeddings(rows, rows, rows, rows), scores)


def losses(name: str, pool: list[Evaluation]) -> list[float]:
    return list(REGISTRY.create(SelectorPlugin, name).losses(pool))


def auroc(scores: Scores) -> float:
    pairs = list(itertools.product(scores.holdout.tolist(), scores.pseudo.tolist()))
    return sum((bad > good) + (bad == good) / 2 for good, bad in pairs) / len(pairs)


def test_pseudo_auc_counts_pairs() -> None:
    pool = [evaluation(seed) for seed in range(5)]
    assert losses("pseudo-auc", pool) == pytest.approx([-auroc(each.scores) for each in pool])


def plausibility(scores: Scores, index: int) -> float:
    """The expected anomaly posterior of a pseudo-anomaly, in loops: density · probability against a prior of 0.1."""
    score, test = scores.pseudo[index].item(), scores.test.tolist()
    probability = sum((score > good) + (score == good) / 2 for good in scores.holdout.tolist()) / len(scores.holdout)
    nearest = min(5, len(test))
    radius = sorted(abs(score - other) for other in test)[nearest - 1]
    others = [[abs(one - other) for place, other in enumerate(test) if place != own] for own, one in enumerate(test)]
    radii = sorted(sorted(distances)[:nearest][-1] for distances in others)
    median = radii[(len(radii) - 1) // 2]
    if radius == 0:
        return probability
    density = median / radius
    return (0.1 + density * probability) / (0.1 + 0.9 + density)


@pytest.mark.parametrize("images", [4, 9, 40])
def test_weighted_pseudo_auc_by_loops(images: int) -> None:
    pool = [evaluation(seed, test=images) for seed in range(5)]
    plausibilities = [[plausibility(each.scores, index) for index in range(6)] for each in pool]
    weights = [sum(of_image) / 5 for of_image in zip(*plausibilities, strict=True)]
    assert len(set(weights)) > 1
    expected = []
    for each in pool:
        wins = 0.0
        for weight, bad in zip(weights, each.scores.pseudo.tolist(), strict=True):
            for good in each.scores.holdout.tolist():
                wins += weight * ((bad > good) + (bad == good) / 2)
        expected.append(-wins / (sum(weights) * len(each.scores.holdout)))
    assert losses("weighted-pseudo-auc", pool) == pytest.approx(expected, rel=1e-6)


def test_a_pseudo_anomaly_unlike_any_test_image_decides_little() -> None:
    """One candidate misses the plausible pseudo-anomaly and finds the absurd one; the other the reverse."""
    test = torch.cat([torch.linspace(-1, 1, 40), torch.linspace(3, 4, 10)])
    good = torch.linspace(-1, 1, 20)

    def scoring(plausible: float, absurd: float) -> Evaluation:
        rows = torch.zeros(4, 2)
        scores = Scores(good, test, good, None, torch.tensor([plausible, absurd]))
        return Evaluation(Candidate("cutout", {"patch_size": 1}), Embeddings(rows, rows, rows, rows), scores)

    finds_plausible, finds_absurd = losses("weighted-pseudo-auc", [scoring(3.5, 1e6), scoring(-0.9, 1e6)])
    assert finds_plausible == pytest.approx(-1)
    assert finds_absurd > -0.6, "the plausible one counts most of the whole"
    unweighted = losses("pseudo-auc", [scoring(-0.9, 1e6)])[0]
    assert finds_absurd > unweighted + 0.05


def test_scores_that_all_tie_tell_nothing_and_break_nothing() -> None:
    same = torch.ones(4)
    rows = torch.zeros(4, 2)
    pool = [
        Evaluation(Candidate("cutout", {}), Embeddings(rows, rows, rows, rows), Scores(same, same, same, None, same))
    ]
    assert losses("weighted-pseudo-auc", pool) == [-0.5]


def test_weighted_pseudo_auc_leaves_out_a_candidate_without_finite_scores() -> None:
    pool = [evaluation(seed) for seed in range(4)]
    expected = losses("weighted-pseudo-auc", [each for place, each in enumerate(pool) if place != 1])
    pool[1].scores.pseudo[0] = math.nan
    with pytest.warns(UserWarning, match=r"cutout\(patch_size=1\) is left out") as caught:
        found = losses("weighted-pseudo-auc", pool)
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert math.isnan(found.pop(1))
    assert found == expected
    with pytest.warns(UserWarning, match="left out"):
        assert math.isnan(losses("weighted-pseudo-auc", [pool[1]])[0])


def test_rank_aggregate_averages_two_ranks() -> None:
    pool = [evaluation(seed) for seed in range(5)]
    taus = [
        sum(kendalltau(one.scores.test, other.scores.test).statistic for other in pool if other is not one) / 4
        for one in pool
    ]
    aucs = [auroc(each.scores) for each in pool]

    def rank(values: list[float], value: float) -> float:
        return 1 + sum(other > value for other in values) + (values.count(value) - 1) / 2

    expected = [(rank(aucs, auc) + rank(taus, tau)) / 2 for auc, tau in zip(aucs, taus, strict=True)]
    assert losses("rank-aggregate", pool) == pytest.approx(expected)


def test_a_candidate_without_finite_scores_has_no_rank_and_the_others_keep_theirs() -> None:
    pool = [evaluation(seed) for seed in range(4)]
    pool[1].scores.test[0] = math.nan
    found = losses("rank-aggregate", pool)
    assert math.isnan(found[1])
    assert all(math.isfinite(loss) for place, loss in enumerate(found) if place != 1)


def test_without_held_out_images_they_say_what_to_do() -> None:
    for name in ("pseudo-auc", "weighted-pseudo-auc", "rank-aggregate"):
        with pytest.raises(ScoreError, match="remove --holdout 0"):
            losses(name, [evaluation(seed, pseudo=False) for seed in range(3)])
