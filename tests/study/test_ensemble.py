"""The best candidates as one detector."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import DETECTOR, TINY, dsv_here, make_task
from scipy.stats import rankdata, zmap

from dsv_plugins import Candidate, InputError, StoreError, Study, load, select
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.study import run
from dsv_plugins.study.ensemble import Ensemble, Member


class Scorer:
    """Scores images by a function of their first pixel."""

    def __init__(self, function):
        self.function = function

    def score(self, images):
        return self.function(images[:, 0, 0, 0].float())


def pixels(values):
    return torch.tensor(values)[:, None, None, None]


def member(function, good):
    scores = function(torch.tensor(good))
    return Member(Candidate("cutout", {}), Scorer(function), float(scores.mean()), float(scores.std(correction=0)))


def test_scores_are_means_of_standardised_scores_whatever_the_scale_of_a_member():
    ensemble = Ensemble([member(lambda x: x, [1.0, 3.0]), member(lambda x: 1000 * x + 7, [1.0, 3.0])])
    assert ensemble.score(pixels([0.0, 2.0, 9.0])).tolist() == [-2.0, 0.0, 7.0]
    against = Ensemble([member(lambda x: x, [1.0, 3.0]), member(lambda x: -x, [1.0, 3.0])])
    assert against.score(pixels([0.0, 2.0, 9.0])).tolist() == [0.0, 0.0, 0.0]


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
    assert [each.candidate.id for each in ensemble.members] == best
    entries = {entry.candidate.id: entry.candidate for entry in result.candidates}
    scores = [result.evaluation(entries[each]).scores for each in best]
    expected = np.mean(
        [zmap(each.test.numpy(), each.train.numpy()) for each in scores],
        axis=0,
    )
    images = open_dataset(result.run / "data").test
    assert ensemble.score(images).numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)


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


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A study that keeps all candidates, and one that keeps its choice."""
    folder = tmp_path_factory.mktemp("kept")
    task = make_task(folder / "parts", train=60)
    settings = {
        "grid": {"patch_size": [0.02, 0.1, 0.3]},
        "detector_params": {"image_size": 64},
        "executor": "serial",
        "out": folder / "run",
    }
    first = select(task / "train/good", task / "test", keep="choice", **settings)
    choice = load(folder / "run").record
    second = select(task / "train/good", task / "test", keep="ensemble", **settings)
    return task, first, choice, second


def test_the_model_is_all_candidates_as_one(kept):
    _, first, choice, second = kept
    assert (len(first.kept), choice.members) == (1, [])
    assert [each.id for each in second.kept] == [entry.candidate.id for entry in second.candidates]
    model, images = load(second.run), open_dataset(second.run / "data")
    members = [second.evaluation(each).scores for each in second.kept]
    for name in ("test", "holdout"):
        expected = np.mean([zmap(getattr(each, name).numpy(), each.train.numpy()) for each in members], axis=0)
        pixels = getattr(images, name)
        model.detector.prepare(pixels)
        np.testing.assert_allclose(model.detector.score(pixels).numpy(), expected, rtol=1e-3, atol=1e-3)
        if name == "holdout":
            np.testing.assert_allclose(model.calibration.held_out, np.sort(expected), rtol=1e-3, atol=1e-3)
    predicted = model.predict(images.test)
    assert int(predicted.anomalous.sum()) == second.findings.flagged
    heatmaps = [second.heatmaps(each).astype(float) for each in second.kept]
    np.testing.assert_allclose(predicted.heatmaps.numpy(), np.mean(heatmaps, axis=0), rtol=0.02, atol=0.05)


def test_an_image_passes_the_frozen_part_once_for_all_members(kept, monkeypatch):
    model, images = load(kept[3].run), open_dataset(kept[3].run / "data").test[:4]
    passes = []
    for member in model.detector.members:
        frozen = member.detector.frozen_features
        monkeypatch.setattr(member.detector, "frozen_features", lambda pixels, f=frozen: passes.append(1) or f(pixels))
    model.predict(images)
    assert len(passes) == 1


def test_the_exported_ensemble_scores_as_the_ensemble(kept):
    model = load(kept[3].run)
    pixels = open_dataset(kept[3].run / "data").test.float() / 255
    module = model.detector.as_module()
    with torch.no_grad():
        scores, heatmaps = module(pixels)
    # What is frozen is there once: the whole is far smaller than three of its members.
    whole, member = (sum(each.numel() for each in part.parameters()) for part in (module, module.members[0]))
    assert whole < 2 * member
    expected = model.predict(pixels)
    torch.testing.assert_close(scores.float(), expected.scores, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(heatmaps.float(), expected.heatmaps.float(), rtol=1e-2, atol=1e-2)


def test_the_page_and_the_command_say_that_it_is_an_ensemble(kept):
    task, _, _, second = kept
    page = second.report(second.run / "page.html").read_text()
    assert "The model is the ensemble of 3 candidates" in page
    assert "By the ensemble, the most anomalous first" in page
    grid = ["--grid", "patch_size=0.02,0.1,0.3", "--image-size", 64, "--keep", "ensemble", "--executor", "serial"]
    told = dsv_here("select", task, *grid, "--keep", "ensemble", "--out", second.run).stdout
    assert "the model is the ensemble of 3 candidates; --keep choice keeps one" in told
    scored = dsv_here("score", second.run, task / "test")
    assert (scored.returncode, scored.stdout.count("\n")) == (0, 1 + len(list((task / "test").rglob("*.png"))))


def test_what_to_keep_is_checked_at_once():
    with pytest.raises(InputError, match="keep is 'all'; give one of choice, ensemble"):
        Study("train", "test", keep="all")


def test_a_damaged_member_is_told(kept, tmp_path):
    shutil.copytree(kept[3].run, tmp_path / "run")
    record = tmp_path / "run/model/model.json"
    content = json.loads(record.read_text())
    content["members"][1]["mean"] = "much"
    record.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="model.json"):
        load(tmp_path / "run")


def test_of_very_many_candidates_the_best_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "MOST_MEMBERS", 2)
    task = make_task(tmp_path / "parts")
    found = select(
        task / "train/good",
        task / "test",
        grid={"patch_size": [0.02, 0.1, 0.3]},
        detector=DETECTOR,
        detector_params=TINY,
        keep="ensemble",
        executor="serial",
        out=tmp_path / "run",
    )
    losses = {entry.candidate.id: entry.losses["cosine"] for entry in found.candidates}
    assert {each.id for each in found.kept} == set(sorted(losses, key=losses.get)[:2])
