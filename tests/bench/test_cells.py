"""Changed test sets: what is changed, what the selectors see of it, and the AUCs of their choices."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from dsv_plugins import Candidate, Embeddings, Evaluation, Scores, SelectorPlugin, build_registry, hookimpl
from dsv_plugins.bench import studies
from dsv_plugins.bench.cells import DRAWS, FULL, Cell, thinned_rows, vary
from dsv_plugins.bench.output import as_json, as_markdown
from dsv_plugins.bench.protocol import BenchResult
from dsv_plugins.bench.studies import Trained, brightened
from dsv_plugins.bench.tables import tabulate

LABELS = [True, False] * 10 + [True] * 20


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
    assert len(draws) == (DRAWS if wanted <= anomalous else 0)
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
    registry, trained = build_registry([spy]), Trained(evaluations, LABELS)
    varied = vary(trained, [0.2, 0.9], ["spy"], registry, seed=3)
    assert list(varied) == ["20% anomalies"]  # there are not enough for nine tenths
    assert len(spy.seen) == DRAWS
    assert {len(evaluation.scores.test) for draw in spy.seen for evaluation in draw} == {10 + round(10 / 4)}
    aucs = [roc_auc_score(LABELS, evaluation.scores.test) for evaluation in evaluations]
    losses = [[float(evaluation.scores.test.mean()) for evaluation in draw] for draw in spy.seen]
    expected = {
        "Average": np.mean(aucs),
        "Ensemble": roc_auc_score(LABELS, combined(evaluations, [1, 1, 1])),
        "Weighted by spy": np.mean([roc_auc_score(LABELS, combined(evaluations, weights(draw))) for draw in losses]),
        "spy": np.mean([aucs[int(np.argmin(draw))] for draw in losses]),
        "best": max(aucs),
        "worst": min(aucs),
        **{f"Always cutout(patch_size={index})": auc for index, auc in enumerate(aucs)},
    }
    assert varied["20% anomalies"] == pytest.approx(expected)


def weights(losses):
    """Exp of minus the loss in units of the deviation."""
    return [math.exp(-(loss - min(losses)) / statistics.pstdev(losses)) for loss in losses]


def combined(evaluations, shares):
    """The weighted sum of how far each image is above good images."""
    total = np.zeros(len(LABELS))
    for evaluation, share in zip(evaluations, shares, strict=True):
        good = evaluation.scores.train.double().numpy()
        total += share * (evaluation.scores.test.double().numpy() - good.mean()) / good.std()
    return total


def test_brighter_normals_are_encoded_anew_and_anomalies_are_not(monkeypatch):
    spy, evaluations = Plugins(), pool()
    images = torch.arange(len(LABELS), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2) * 6
    monkeypatch.setattr(studies, "open_dataset", lambda folder: SimpleNamespace(test=images))

    class Detector:
        def encode(self, given):
            return given.float().mean(dim=(2, 3))

        def score(self, given):
            return given.float().mean(dim=(1, 2, 3)) / 100

    run = SimpleNamespace(folder=SimpleNamespace(data=None), load_detector=lambda candidate: Detector())
    changed = brightened(run, Trained(evaluations, LABELS), 1.5)
    varied = vary(
        Trained(evaluations, LABELS, brighter={"brighter": changed}), [], ["spy"], build_registry([spy]), seed=3
    )
    (seen,) = spy.seen
    anomalous = torch.tensor(LABELS)
    expected = (images[~anomalous, 0, 0, 0].float() * 1.5).round().clamp(max=255)
    for before, after in zip(evaluations, seen, strict=True):
        assert torch.equal(after.scores.test[anomalous], before.scores.test[anomalous])
        assert torch.equal(after.scores.test[~anomalous], expected / 100)
        assert torch.equal(after.embeddings.test[~anomalous][:, 0], expected)
    assert varied["brighter"]["best"] == max(roc_auc_score(LABELS, evaluation.scores.test) for evaluation in seen)


def test_nothing_to_vary_costs_nothing():
    assert vary(Trained([], []), [], [], None, seed=0) == {}


def cell(task, *, seed=0, **aucs):
    """A cell in which only the AUCs of the methods on each test set are known."""
    every = {name: {"Average": 0.5, **known, "best": 1.0, "worst": 0.0} for name, known in aucs.items()}
    candidate = {"augmentation": "cutout", "params": {}, "auc": 0.5, "pixels": {}}
    theory = dict.fromkeys(["alignment", "h_d", "h_s", "discordance", "separability", "concentration"], 0.5)
    return Cell(task, "cutout", seed, [{**candidate, **theory}], {"dsv": [0.5]}, every)


def variations_table(cells):
    return next(table for table in tabulate(BenchResult(cells)) if table.name == "variations")


def rows(table):
    """The rows of the selectors, by their names."""
    frame = table.frame.drop(index=["Average", "best"], errors="ignore")
    return {method: tuple(row) for method, row in zip(frame.index, frame.to_numpy(), strict=True)}


THIN = "5% anomalies"


def test_the_table_compares_cells_that_have_every_variation():
    table = variations_table(
        [
            cell("bolt", **{FULL: {"dsv": 0.9, "mc": 0.7, "Random": 0.5}, THIN: {"dsv": 0.8, "mc": 0.7}}),
            cell("nut", **{FULL: {"dsv": 0.7, "mc": 0.5, "Random": 0.5}, THIN: {"dsv": 0.5, "mc": 0.5}}),
            cell("washer", **{FULL: {"dsv": 0.0, "mc": 0.0}}),  # too few anomalies to be thinned
        ]
    )
    assert tuple(table.frame.columns) == (FULL, THIN)
    assert rows(table) == {"dsv": pytest.approx((0.8, 0.65)), "mc": pytest.approx((0.6, 0.6))}
    assert "2 of 3 cells" in table.note


def test_a_task_counts_once_however_many_of_its_seeds_were_varied():
    bolt = [cell("bolt", seed=seed, **{FULL: {"dsv": 0.9}, THIN: {"dsv": 0.6 + 0.1 * seed}}) for seed in range(3)]
    table = variations_table([*bolt, cell("nut", **{FULL: {"dsv": 0.5}, THIN: {"dsv": 0.3}})])
    assert rows(table) == {"dsv": pytest.approx((0.7, 0.5))}
    assert "4 of 4 cells" in table.note


def test_without_a_cell_that_has_every_variation_the_table_is_empty():
    table = variations_table(
        [
            cell("bolt", **{FULL: {"dsv": 0.9}, "10% anomalies": {"dsv": 0.8}}),
            cell("nut", **{FULL: {"dsv": 0.3}, THIN: {"dsv": 0.3}}),
        ]
    )
    assert rows(table) == {}
    assert "0 of 2 cells" in table.note
    assert as_json([table]) == {"variations": []}
    assert as_markdown([table]).splitlines()[-2] == f"| method | full | 10% anomalies | {THIN} |"


def test_each_test_set_has_its_own_quality_of_the_choices():
    cells = [
        cell("bolt", **{FULL: {"dsv": 0.9}, THIN: {"dsv": 0.4, "Always a": 0.7}}),
        cell("nut", **{FULL: {"dsv": 0.7}, THIN: {"dsv": 0.8, "Always a": 0.2}}),
        cell("washer", **{FULL: {"dsv": 0.1}}),
    ]
    (table,) = (table for table in tabulate(BenchResult(cells)) if table.name == "pools")
    full, thin, constant = (
        table.frame.loc[("cutout", *name)] for name in ((FULL, "dsv"), (THIN, "dsv"), (THIN, "Always a"))
    )
    assert (full["better"], full["worse"]) == (2, 1)
    assert (full["largest regret"], full["on task"]) == (pytest.approx(0.9), "washer")
    assert (thin["AUC"], thin["better"], thin["worse"]) == (pytest.approx(0.6), 1, 1)
    assert (thin["regret"], thin["largest regret"]) == (pytest.approx(0.4), pytest.approx(0.6))
    assert (constant["regret"], constant["on task"]) == (pytest.approx(0.55), "nut")
