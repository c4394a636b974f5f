"""Candidates whose detectors differ: settings of the detector in the grid of a study."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DETECTOR, TINY, make_task
from scipy.stats import zmap

from dsv_plugins import InputError, Observer, PluginSettingsError, Range, load, select
from dsv_plugins.bench.studies import random_study
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.plugins.spaces import space_problems, with_settings
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.study import Study


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task") / "parts", train=60)


def study(task, out, **settings):
    settings = {"detector": DETECTOR, "detector_params": TINY, "executor": "serial", "selector": "dsv", **settings}
    return {"train": task / "train/good", "test": task / "test", "out": out, **settings}


@pytest.fixture(scope="module")
def result(task, tmp_path_factory):
    """Two patch sizes for detectors of two widths."""
    grid = {"patch_size": [0.02, 0.32], "detector.width": [2, 4]}
    return select(**study(task, tmp_path_factory.mktemp("both") / "run", grid=grid, selector=["dsv", "mc"]))


def test_each_candidate_is_the_one_that_a_study_of_its_detector_trains(task, result, tmp_path):
    found = {(e.candidate.params["patch_size"], e.candidate.params["detector.width"]): e for e in result.candidates}
    assert list(found) == [(0.02, 2), (0.02, 4), (0.32, 2), (0.32, 4)]
    for width in (2, 4):
        settings = {"grid": {"patch_size": [0.02, 0.32]}, "detector_params": {**TINY, "width": width}}
        alone = select(**study(task, tmp_path / str(width), **settings))
        for entry in alone.candidates:
            same = found[entry.candidate.params["patch_size"], width]
            for part in ("train", "augmented", "test"):
                one, other = (
                    getattr(each.evaluation(candidate).embeddings, part)
                    for each, candidate in ((alone, entry.candidate), (result, same.candidate))
                )
                assert one.shape[1] == 8 * width
                np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_what_the_trainings_of_each_detector_share_is_trained_once_for_each(result):
    assert result.updates_spent == 2 * TINY["shared_updates"] + 4 * TINY["updates"]


def test_labels_and_the_model_know_the_detector(result):
    chosen = result.choice.candidate
    assert f"detector.width={chosen.params['detector.width']}" in str(chosen)
    model = load(result.path)
    assert model.record.detector_params["width"] == chosen.params["detector.width"]
    assert "detector.width" not in model.record.params
    images = open_dataset(result.path / "data").test
    np.testing.assert_allclose(model.detector.score(images), result.evaluation(chosen).scores.test, rtol=1e-5)


@pytest.fixture(scope="module")
def ensemble(task, tmp_path_factory):
    settings = {
        "grid": {"patch_size": [0.02, 0.3], "detector.window": [0, 1]},
        "detector": "patch-fusion",
        "detector_params": {"image_size": 64},
        "keep": "ensemble",
        "selector": ["cosine", "mmd"],
    }
    notes = []

    class Notes(Observer):
        def noted(self, message):
            notes.append(message)

    return select(**study(task, tmp_path_factory.mktemp("ensemble") / "run", **settings), observer=Notes()), notes


def test_an_ensemble_takes_detectors_that_differ(ensemble, monkeypatch):
    result, _ = ensemble
    model, images = load(result.path), open_dataset(result.path / "data").test
    members = [result.evaluation(each).scores for each in result.kept]
    expected = np.mean([zmap(each.test.numpy(), each.train.numpy()) for each in members], axis=0)
    passes = []
    for member in model.detector.members:
        frozen = member.detector.frozen_features
        monkeypatch.setattr(member.detector, "frozen_features", lambda pixels, f=frozen: passes.append(1) or f(pixels))
    np.testing.assert_allclose(model.predict(images).scores.numpy(), expected, rtol=1e-3, atol=1e-3)
    assert len(passes) == 2, "one for each window"


def test_a_selector_that_depends_on_the_scale_of_embeddings_is_told(ensemble):
    _, notes = ensemble
    assert [note for note in notes if "scale" in note] == [
        "'mmd' depends on the scale of the embeddings, so that it cannot compare these detectors"
    ]


def test_a_detector_without_augmentation_is_selected_by_its_settings(task, tmp_path):
    settings = {"detector": "patch-memory", "detector_params": {"image_size": 64}, "selector": "mc"}
    grid = {"patch_size": [0.02, 0.3], "detector.score": ["raw", "whole"]}
    result = select(**study(task, tmp_path / "run", grid=grid, **settings))
    assert [dict(entry.candidate.params) for entry in result.candidates] == [
        {"detector": "patch-memory", "detector.score": "raw"},
        {"detector": "patch-memory", "detector.score": "whole"},
    ]


@pytest.mark.parametrize(
    ("grid", "selector", "error", "complaint"),
    [
        (
            {"detector.updates": [1, 2]},
            "dsv",
            InputError,
            r"differ in updates \(1 and 2\).* give it in detector_params",
        ),
        ({"detector.image_size": [16, 32]}, "dsv", InputError, "differ in image_size"),
        ({"detector.depth": [3]}, "dsv", PluginSettingsError, "does not take 'depth'; it takes 'preset'"),
        ({"detector.width": ["wide"]}, "dsv", InputError, "detector.width of cutpaste-resnet18 .* 'wide' is no"),
        (
            {"detecter.width": [2]},
            "dsv",
            InputError,
            "detecter.width is a setting of no detector in this study; give detector.NAME, or",
        ),
        (
            {"detector.width": [2, 4]},
            "base",
            InputError,
            "'base' cannot compare different detectors.*; put one of dsv, .*cosine first",
        ),
    ],
)
def test_what_cannot_be_varied_is_refused_before_any_training(task, tmp_path, grid, selector, error, complaint):
    with pytest.raises(error, match=complaint):
        select(**study(task, tmp_path / "run", grid=grid, selector=selector))
    assert not (tmp_path / "run/candidates").exists()


def test_a_range_of_a_whole_number_has_whole_numbers(task, tmp_path):
    grid = {"patch_size": [0.02], "detector.width": Range(2.0, 4.0)}
    candidates = plan_study(Study(**study(task, tmp_path / "run", grid=grid)), build_registry()).candidates()
    assert [repr(candidate.detector_params["width"]) for candidate in candidates] == ["2", "3", "4"]


def test_a_plugin_cannot_suggest_settings_of_a_detector():
    assert space_problems({"detector.width": [2]}, of_study=True) == []
    assert "Python names arguments" in space_problems({"detector.width": [2]})[0]


def test_dots_lead_into_settings_of_settings():
    given = {"updates": 3, "model_params": {"backbone": "resnet18", "layers": ["layer1"]}}
    found = with_settings(given, {"model_params.layers": ["layer2"], "head.width": 4, "updates": 5})
    assert found == {
        "updates": 5,
        "model_params": {"backbone": "resnet18", "layers": ["layer2"]},
        "head": {"width": 4},
    }
    assert given == {"updates": 3, "model_params": {"backbone": "resnet18", "layers": ["layer1"]}}


def test_there_is_no_random_run_of_detectors(task, tmp_path):
    settings = study(task, tmp_path / "run", grid={"patch_size": [0.02, 0.3], "detector.width": [2, 4]})
    with pytest.raises(InputError, match=r"detector.width .* cannot be another for every image"):
        random_study(Study(**settings), build_registry())
