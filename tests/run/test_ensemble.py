"""The best candidates as one detector."""

from __future__ import annotations

import json
import math
import shutil
import statistics

import numpy as np
import pytest
import torch
from conftest import DETECTOR, TINY, dsv_here, make_task
from scipy.stats import rankdata, zmap

from dsv_plugins import InputError, SelectorPlugin, StoreError, Study, load, report, select
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.run.ensemble import Ensemble, Member, shares_by_loss
from dsv_plugins.study import keep


class Scorer:
    """Scores images by a function of their first pixel."""

    def __init__(self, function):
        self.function = function

    def score(self, images):
        return self.function(images[:, 0, 0, 0].float())


def pixels(values):
    return torch.tensor(values)[:, None, None, None]


def member(function, good, share=0.5):
    scores = function(torch.tensor(good))
    return Member("scorer", "", Scorer(function), (float(scores.mean()), float(scores.std(correction=0))), share)


def test_scores_are_means_of_standardised_scores_whatever_the_scale_of_a_member():
    ensemble = Ensemble([member(lambda x: x, [1.0, 3.0]), member(lambda x: 1000 * x + 7, [1.0, 3.0])])
    assert ensemble.score(pixels([0.0, 2.0, 9.0])).tolist() == [-2.0, 0.0, 7.0]
    against = Ensemble([member(lambda x: x, [1.0, 3.0]), member(lambda x: -x, [1.0, 3.0])])
    assert against.score(pixels([0.0, 2.0, 9.0])).tolist() == [0.0, 0.0, 0.0]


def test_members_count_by_their_shares():
    ensemble = Ensemble([member(lambda x: x, [1.0, 3.0], 0.75), member(lambda x: -x, [1.0, 3.0], 0.25)])
    assert ensemble.score(pixels([0.0, 2.0, 9.0])).tolist() == [-1.0, 0.0, 3.5]


def test_shares_fall_with_the_loss_whatever_its_unit():
    losses = [3.0, 1.0, 2.0, math.nan, 2.0]
    shares = shares_by_loss(losses)
    spread = statistics.pstdev([3.0, 1.0, 2.0, 2.0])
    weights = [0.0 if math.isnan(loss) else math.exp(-loss / spread) for loss in losses]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights])
    assert shares_by_loss([loss * 1e6 - 5 for loss in losses]) == pytest.approx(shares)
    assert shares_by_loss([7.0, 7.0]) == [0.5, 0.5]
    assert shares_by_loss([math.inf, math.nan]) == [0.5, 0.5]


def test_a_single_image_has_the_score_that_it_has_among_others():
    ensemble = Ensemble([member(lambda x: x, [3.0, 1.0, 2.0]), member(lambda x: (x - 2).abs(), [3.0, 1.0, 2.5])])
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
    entries = {entry.candidate.id: entry.candidate for entry in result.candidates}
    assert [each.name for each in ensemble.members] == [str(entries[each]) for each in best]
    scores = [result.evaluation(entries[each]).scores for each in best]
    expected = np.mean(
        [zmap(each.test.numpy(), each.train.numpy()) for each in scores],
        axis=0,
    )
    images = open_dataset(result.path / "data").test
    assert ensemble.score(images).numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_an_ensemble_of_one_ranks_as_the_choice_does(result):
    images = open_dataset(result.path / "data").test
    ranked = rankdata(result.ensemble(1).score(images).numpy())
    assert ranked.tolist() == rankdata(result.load_detector(result.choice.candidate).score(images).numpy()).tolist()


def test_what_cannot_be_had_is_refused(result):
    for count in (0, 4):
        with pytest.raises(InputError, match=f"count is {count}; give a number from 1 to 3"):
            result.ensemble(count)
    with pytest.raises(InputError, match="'hits' did not judge this study; give one of dsv, mc"):
        result.ensemble(2, "hits")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One study that keeps its choice, then all candidates alike, then all by their losses; and the three models."""
    folder = tmp_path_factory.mktemp("kept")
    task = make_task(folder / "parts", train=60)
    settings = {
        "grid": {"patch_size": [0.02, 0.1, 0.3]},
        "detector_params": {"image_size": 64},
        "executor": "serial",
        "out": folder / "run",
    }
    results = {}
    for kind in ("choice", "ensemble", None):
        result = select(task / "train/good", task / "test", keep=kind, **settings)
        results[kind] = result, load(folder / "run")
    return task, results


def standardised(result, name):
    """The scores of each candidate in units of its train images: (candidates, images)."""
    scores = [result.evaluation(entry.candidate).scores for entry in result.candidates]
    return np.stack([zmap(getattr(each, name).numpy().astype(float), each.train.numpy()) for each in scores])


@pytest.mark.parametrize("kind", ["ensemble", None])
def test_the_model_is_all_candidates_merged_into_one_detector(kept, kind):
    result, model = kept[1][kind]
    losses = np.array([entry.losses["cosine"] for entry in result.candidates])
    weights = np.ones(3) if kind else np.exp(-losses / losses.std())
    weights = weights / weights.sum()
    assert list(result.shares.values()) == pytest.approx(weights)
    assert model.record.members == []  # it scores as fast as one
    images = open_dataset(result.path / "data")
    for name in ("test", "holdout"):
        expected = weights @ standardised(result, name)
        found = model.predict(getattr(images, name)).scores.numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        if name == "holdout":
            np.testing.assert_allclose(model.calibration.held_out, np.sort(expected), rtol=1e-6)
    predicted = model.predict(images.test)
    assert int(predicted.anomalous.sum()) == result.findings.flagged
    heatmaps = np.stack([result.heatmaps(each).astype(float) for each in result.kept])
    np.testing.assert_allclose(predicted.heatmaps.numpy(), np.tensordot(weights, heatmaps, 1), rtol=0.02, atol=0.05)
    parts = model.record.parts
    assert sum(parts.values()) == pytest.approx(1)
    assert {"whole", "raw-3", "standardised-all"} <= parts.keys()


def test_the_choice_alone_is_kept_if_asked(kept):
    result, model = kept[1]["choice"]
    assert result.shares == {result.choice.candidate.id: 1.0}
    assert list(model.record.made_of) == [str(result.choice.candidate)]


def test_an_image_passes_the_frozen_part_once_for_all_members(kept, monkeypatch):
    result, _ = kept[1]["ensemble"]
    ensemble, images = result.ensemble(3), open_dataset(result.path / "data").test[:4]
    passes = []
    for member in ensemble.members:
        frozen = member.detector.frozen_features
        monkeypatch.setattr(member.detector, "frozen_features", lambda pixels, f=frozen: passes.append(1) or f(pixels))
    ensemble.prepare(images)
    ensemble.score(images)
    assert len(passes) == 1


def test_the_exported_ensemble_scores_as_the_ensemble(kept):
    result, _ = kept[1]["ensemble"]
    ensemble, pixels = result.ensemble(3), open_dataset(result.path / "data").test.float() / 255
    module = ensemble.as_module()
    with torch.no_grad():
        scores, heatmaps = module(pixels)
    # What is frozen is there once: the whole is far smaller than three of its members.
    whole, member = (sum(each.numel() for each in part.parameters()) for part in (module, module.members[0]))
    assert whole < 2 * member
    torch.testing.assert_close(scores.float(), ensemble.score(pixels), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(heatmaps.float(), ensemble.heatmap(pixels).float(), rtol=1e-2, atol=1e-2)


def test_the_page_and_the_command_say_what_is_kept_before_what_is_ranked_first(kept):
    task, results = kept
    run = results[None][0].path
    page = report.build(results[None][0], run / "page.html").read_text()
    assert "<h1>3 candidates as one</h1>" in page
    assert "By the model, the most anomalous first" in page
    assert page.count("<meter") >= 3 + 11  # a bar for each candidate and each part
    options = ["--grid", "patch_size=0.02,0.1,0.3", "--image-size", 64, "--executor", "serial", "--out", run]
    told = dsv_here("select", task, *options).stdout.splitlines()
    (model,) = [line for line in told if line.startswith("the model is all 3 candidates as one, weighted by cosine")]
    (decides,) = [line for line in told if line.startswith("what decides: ")]
    (first,) = [line for line in told if line.startswith("cosine ranks first cutpaste(patch_size=")]
    assert told.index(model) < told.index(decides) < told.index(first)
    assert model.endswith("; --keep choice keeps one")
    scored = dsv_here("score", run, task / "test")
    assert (scored.returncode, scored.stdout.count("\n")) == (0, 1 + len(list((task / "test").rglob("*.png"))))


def test_what_to_keep_is_checked_at_once():
    with pytest.raises(InputError, match="keep is 'all'; give one of choice, weighted, ensemble"):
        Study("train", "test", keep="all")


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Detectors that cannot be merged, as an ensemble of at most two."""
    folder = tmp_path_factory.mktemp("members")
    task = make_task(folder / "parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keep, "MOST_MEMBERS", 2)
        return select(
            task / "train/good",
            task / "test",
            grid={"patch_size": [0.02, 0.1, 0.3]},
            detector=DETECTOR,
            detector_params=TINY,
            keep="ensemble",
            executor="serial",
            out=folder / "run",
        )


def test_of_very_many_candidates_the_best_are_kept(members):
    losses = {entry.candidate.id: entry.losses["cosine"] for entry in members.candidates}
    assert {each.id for each in members.kept} == set(sorted(losses, key=losses.get)[:2])
    assert len(load(members.path).record.members) == 2


@pytest.mark.parametrize(("name", "value"), [("scale", "much"), ("share", None), ("detector", 3)])
def test_a_damaged_member_is_told(members, tmp_path, name, value):
    shutil.copytree(members.path, tmp_path / "run")
    record = tmp_path / "run/model/model.json"
    content = json.loads(record.read_text())
    content["members"][1][name] = value
    record.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="model.json"):
        load(tmp_path / "run")


class Picky:
    """Has no loss for the first candidate."""

    def losses(self, evaluations):
        return [math.nan, *range(len(evaluations) - 1)]


def test_a_candidate_without_a_loss_is_no_member(tmp_path):
    task = make_task(tmp_path / "parts")
    found = select(
        task / "train/good",
        task / "test",
        grid={"patch_size": [0.02, 0.1, 0.3]},
        detector=DETECTOR,
        detector_params=TINY,
        selector=SelectorPlugin("picky", Picky),
        keep="weighted",
        executor="serial",
        out=tmp_path / "run",
    )
    assert list(found.shares) == [entry.candidate.id for entry in found.candidates[1:]]
    assert len(load(found.path).record.members) == 2
