"""Changed test sets: what is changed, what the selectors see of it, and the AUCs of their choices."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dsv_plugins.bench.table import as_json, as_markdown
from dsv_plugins.bench.variations import FULL, Variations, VariedAUCs, thinned_rows, variations_table, vary
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from dsv_plugins import Candidate, Embeddings, Evaluation, Scores, SelectorPlugin, build_registry, hookimpl
from dsv_plugins.bench import variations as module
from dsv_plugins.bench.cells import measure
from dsv_plugins.bench.methods import Method
from dsv_plugins.errors import InputError

LABELS = [True, False] * 10 + [True] * 20
NAME = ("bolt", "cutout", 3)


class Plugins:
    """A selector that records what it sees."""

    def __init__(self):
        self.seen = []

    def losses(self, evaluations):
        self.seen.append(evaluations)
        return [float(evaluation.scores.test.mean()) for evaluation in evaluations]

    @hookimpl
    def selector(self):
        return SelectorPlugin("spy", lambda: self)


def pool() -> list[Evaluation]:
    generator = torch.Generator().manual_seed(0)
    evaluations = []
    for index in range(3):
        train, test = (torch.randn(rows, 3, generator=generator) for rows in (12, len(LABELS)))
        test += index * torch.tensor(LABELS)[:, None] / 3
        embeddings = Embeddings(train, train + 1, test)
        evaluations.append(
            Evaluation(Candidate("cutout", {"patch_size": index}), embeddings, Scores(train[:, 0], test[:, 0]))
        )
    return evaluations


@settings(deadline=None, max_examples=30)
@given(st.lists(st.booleans(), min_size=2, max_size=60), st.sampled_from([0.5, 0.3, 0.1, 0.05]), st.integers(0, 5))
def test_thinning_keeps_every_normal_image_and_a_share_of_anomalies(labels, share, seed):
    normal, anomalous = labels.count(False), labels.count(True)
    draws = [rows.tolist() for rows in thinned_rows(labels, share, seed)]
    assert draws == [rows.tolist() for rows in thinned_rows(labels, share, seed)]
    wanted = max(1, round(share / (1 - share) * normal))
    assert len(draws) == (module.DRAWS if wanted <= anomalous else 0)
    for rows in draws:
        kept = [labels[row] for row in rows]
        assert rows == sorted(set(rows))
        assert kept.count(False) == normal
        assert kept.count(True) == wanted


def test_draws_differ_from_each_other_and_with_the_seed():
    first, other = ([tuple(rows.tolist()) for rows in thinned_rows(LABELS, 0.3, seed)] for seed in (0, 1))
    assert len(set(first)) > 1
    assert first != other


def test_selectors_see_the_thinned_set_and_choices_count_with_the_full_auc():
    spy, evaluations = Plugins(), pool()
    registry, methods = build_registry([spy]), [Method("spy", "spy"), Method("discordance", "discordance")]
    cell = measure(NAME, evaluations, LABELS, methods=methods, registry=registry)
    aucs = [roc_auc_score(LABELS, evaluation.scores.test) for evaluation in evaluations]
    spy.seen.clear()
    full, thinned = vary(
        cell, evaluations, LABELS, None, variations=Variations([0.2, 0.9]), methods=methods, registry=registry
    )
    assert (full.variation, thinned.variation) == (FULL, "20% anomalies")  # there are not enough for nine tenths
    assert len(spy.seen) == module.DRAWS
    assert {len(evaluation.scores.test) for draw in spy.seen for evaluation in draw} == {10 + round(10 / 4)}
    chosen = [aucs[int(np.argmin([float(e.scores.test.mean()) for e in draw]))] for draw in spy.seen]
    assert thinned.aucs == pytest.approx({"Average": np.mean(aucs), "spy": np.mean(chosen), "best": max(aucs)})
    assert full.aucs["spy"] == cell.aucs["spy"]


def test_brighter_normals_are_encoded_anew_and_anomalies_are_not(monkeypatch):
    spy, evaluations = Plugins(), pool()
    registry, methods = build_registry([spy]), [Method("spy", "spy")]
    cell = measure(NAME, evaluations, LABELS, methods=methods, registry=registry)
    images = torch.arange(len(LABELS), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2) * 6
    monkeypatch.setattr(module, "open_dataset", lambda folder: SimpleNamespace(test=images))

    class Detector:
        def encode(self, given):
            return given.float().mean(dim=(2, 3))

        def score(self, given):
            return given.float().mean(dim=(1, 2, 3)) / 100

    result = SimpleNamespace(run=Path("run"), load_detector=lambda candidate: Detector())
    spy.seen.clear()
    _, brighter = vary(
        cell, evaluations, LABELS, result, variations=Variations(brighten=1.5), methods=methods, registry=registry
    )
    assert brighter.variation == "normals × 1.5"
    (seen,) = spy.seen
    anomalous = torch.tensor(LABELS)
    expected = (images[~anomalous, 0, 0, 0].float() * 1.5).round().clamp(max=255)
    for before, after in zip(evaluations, seen, strict=True):
        assert torch.equal(after.scores.test[anomalous], before.scores.test[anomalous])
        assert torch.equal(after.scores.test[~anomalous], expected / 100)
        assert torch.equal(after.embeddings.test[~anomalous][:, 0], expected)
    assert brighter.aucs["best"] == max(roc_auc_score(LABELS, evaluation.scores.test) for evaluation in seen)


def test_nothing_to_vary_costs_nothing():
    assert vary(None, [], [], None, variations=Variations(), methods=[], registry=None) == []


def varied(task, variation, *, seed=0, **aucs):
    return VariedAUCs(task, "cutout", seed, variation, aucs)


def rows(table):
    return {method: tuple(row) for method, row in zip(table.frame.index, table.frame.to_numpy(), strict=True)}


def test_the_table_compares_cells_that_have_every_variation():
    table = variations_table(
        [
            varied("bolt", FULL, dsv=0.9, mc=0.7, Random=0.5),
            varied("bolt", "5% anomalies", dsv=0.8, mc=0.7),
            varied("nut", FULL, dsv=0.7, mc=0.5, Random=0.5),
            varied("nut", "5% anomalies", dsv=0.5, mc=0.5),
            varied("washer", FULL, dsv=0.0, mc=0.0),  # too few anomalies to be thinned
        ]
    )
    assert tuple(table.frame.columns) == (FULL, "5% anomalies")
    assert rows(table) == {"dsv": pytest.approx((0.8, 0.65)), "mc": pytest.approx((0.6, 0.6))}
    assert "2 of 3 cells" in table.note


def test_a_task_counts_once_however_many_of_its_seeds_were_varied():
    table = variations_table(
        [
            *(varied("bolt", FULL, seed=seed, dsv=0.9) for seed in range(3)),
            *(varied("bolt", "5% anomalies", seed=seed, dsv=0.6 + 0.1 * seed) for seed in range(3)),
            varied("nut", FULL, dsv=0.5),
            varied("nut", "5% anomalies", dsv=0.3),
        ]
    )
    assert rows(table) == {"dsv": pytest.approx((0.7, 0.5))}
    assert "4 of 4 cells" in table.note


def test_without_a_cell_that_has_every_variation_the_table_is_empty():
    table = variations_table([varied("bolt", FULL, dsv=0.9), varied("nut", "5% anomalies", dsv=0.3)])
    assert rows(table) == {}
    assert "0 of 2 cells" in table.note
    assert as_json([table]) == {"variations": []}
    assert as_markdown([table]).splitlines()[-2] == "| method | full | 5% anomalies |"


def test_shares_below_one_percent_have_names_of_their_own():
    Variations([0.3, 0.005, 0.001]).check()
    with pytest.raises(InputError, match="thin has a share twice: 0.3, 0.1, 0.3"):
        Variations([0.3, 0.1, 0.3]).check()
