"""Selectors by pseudo-anomalies that are the same for all candidates, against plain loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.stats import kendalltau

from dsv_plugins import Candidate, Embeddings, Evaluation, ScoreError, Scores, SelectorPlugin, build_registry

REGISTRY = build_registry()


def evaluation(seed: int, *, pseudo: bool = True) -> Evaluation:
    generator = torch.Generator().manual_seed(seed)

    def drawn(count: int, shift: float = 0.0) -> torch.Tensor:
        return (torch.rand(count, generator=generator) + shift).round(decimals=1)  # with ties

    rows = torch.zeros(4, 2)
    scores = Scores(drawn(4), drawn(9), drawn(6), drawn(4), drawn(6, 0.1 * seed) if pseudo else None)
    return Evaluation(Candidate("cutout", {"patch_size": seed}), Embeddings(rows, rows, rows, rows), scores)


def losses(name: str, pool: list[Evaluation]) -> list[float]:
    return list(REGISTRY.create(SelectorPlugin, name).losses(pool))


def auroc(scores: Scores) -> float:
    pairs = list(itertools.product(scores.holdout.tolist(), scores.pseudo.tolist()))
    return sum((bad > good) + (bad == good) / 2 for good, bad in pairs) / len(pairs)


def test_pseudo_auc_counts_pairs() -> None:
    pool = [evaluation(seed) for seed in range(5)]
    assert losses("pseudo-auc", pool) == pytest.approx([-auroc(each.scores) for each in pool])


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
    for name in ("pseudo-auc", "rank-aggregate"):
        with pytest.raises(ScoreError, match="leave --holdout 0 out"):
            losses(name, [evaluation(seed, pseudo=False) for seed in range(3)])
