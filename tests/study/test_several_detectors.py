"""Candidates of several detectors in one pool."""

from __future__ import annotations

import numpy as np
import pytest
from brightness import Brighten
from conftest import DETECTOR, TINY, dsv_here, make_task
from scipy.stats import zmap
from sklearn.metrics import roc_auc_score

from dsv_plugins import AugmentationPlugin, InputError, Observer, PluginError, load, report, select
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.study.study import Study

SETTINGS = {
    "detector": ["patch-memory", "patch-fusion"],
    "detector_params": {"image_size": 64, "patch-fusion": {"window": 0}},
    "grid": {"patch_size": [0.02, 0.3], "patch-memory.score": ["raw", "both"]},
    "executor": "serial",
}
LABELS = [
    "patch-memory(detector.score=raw)",
    "patch-memory(detector.score=both)",
    "patch-fusion cutpaste(patch_size=0.02)",
    "patch-fusion cutpaste(patch_size=0.3)",
]


class Trained(Observer):
    """Remembers what was trained."""

    def __init__(self):
        self.labels = []

    def finished(self, candidate, seconds):
        self.labels.append(str(candidate))


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task") / "parts", train=60)


def study(task, out, **settings):
    return {"train": task / "train/good", "test": task / "test", "out": out, **SETTINGS, **settings}


@pytest.fixture(scope="module")
def result(task, tmp_path_factory):
    selectors = ["cosine", "mc", "pseudo-auc", "rank-aggregate"]
    return select(**study(task, tmp_path_factory.mktemp("pool") / "run", selector=selectors))


def test_each_detector_has_its_own_space_and_one_without_augmentation_a_candidate_per_setting(result):
    assert [str(entry.candidate) for entry in result.candidates] == LABELS
    settings = [dict(entry.candidate.detector_params) for entry in result.candidates]
    assert settings == [
        {"image_size": 64, "score": "raw"},
        {"image_size": 64, "score": "both"},
        {"image_size": 64, "window": 0},
        {"image_size": 64, "window": 0},
    ]


def test_each_candidate_is_the_one_that_a_study_of_its_detector_alone_trains(task, result, tmp_path):
    alone = [
        {
            "detector": "patch-memory",
            "detector_params": {"image_size": 64},
            "grid": {"detector.score": ["raw", "both"]},
        },
        {
            "detector": "patch-fusion",
            "detector_params": {"image_size": 64, "window": 0},
            "grid": {"patch_size": [0.02, 0.3]},
        },
    ]
    found = [
        (other, entry.candidate)
        for place, settings in enumerate(alone)
        for other in [select(**study(task, tmp_path / str(place), **settings))]
        for entry in other.candidates
    ]
    for entry, (other, candidate) in zip(result.candidates, found, strict=True):
        ours, theirs = result.evaluation(entry.candidate).scores, other.evaluation(candidate).scores
        for name in ("train", "test", "holdout", "augmented", "pseudo"):
            assert getattr(ours, name).equal(getattr(theirs, name)), (str(entry.candidate), name)


def test_candidates_that_differ_after_the_frozen_part_share_its_features(result):
    parts = [folder.name for folder in RunFolder(result.path).frozen.iterdir()]
    assert len(parts) == 2  # one for each detector, though patch-memory has two settings


def test_the_choice_is_kept_and_the_same_study_trains_nothing(task, result):
    trained = Trained()
    again = select(**study(task, result.path, selector=["mc", "cosine"]), observer=trained)
    assert trained.labels == []
    model = load(again.path)
    assert model.record.detector == again.choice.candidate.detector
    images = open_dataset(again.path / "data").test
    expected = again.evaluation(again.choice.candidate).scores.test
    np.testing.assert_allclose(model.predict(images).scores, expected, rtol=1e-3, atol=1e-3)
    assert again.choice.candidate.detector in report.build(again).read_text()


def test_all_as_one_are_weighted_and_those_that_can_be_are_merged(task, result):
    kept = select(**study(task, result.path, keep="weighted"))
    losses = np.array([entry.losses["cosine"] for entry in kept.candidates])
    weights = np.exp(-losses / losses.std())
    weights /= weights.sum()
    model, images = load(kept.path), open_dataset(kept.path / "data").test
    assert [member.detector for member in model.record.members] == ["patch-memory", "patch-memory", "patch-fusion"]
    scores = [kept.evaluation(entry.candidate).scores for entry in kept.candidates]
    expected = weights @ np.stack([zmap(each.test.numpy().astype(float), each.train.numpy()) for each in scores])
    found = model.predict(images)
    np.testing.assert_allclose(found.scores, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.heatmaps, kept.heatmaps(), rtol=0.05, atol=0.05)
    module = model.detector.as_module()
    exported, heatmaps = module(images.float() / 255)
    np.testing.assert_allclose(exported, found.scores, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(heatmaps, found.heatmaps, rtol=0.02, atol=0.05)


def test_every_candidate_is_scored_on_the_same_pseudo_anomalies(result):
    data = open_dataset(result.path / "data")
    changed = (data.pseudo != data.holdout).flatten(1).any(dim=1)
    assert changed.float().mean() > 0.9  # a pasted patch may be equal to what it covers
    aucs, losses = {}, {}
    for entry in result.candidates:
        detector = result.load_detector(entry.candidate)
        scores = result.evaluation(entry.candidate).scores
        np.testing.assert_allclose(detector.score(data.pseudo), scores.pseudo, rtol=1e-3, atol=1e-3)
        labels = [0] * len(scores.holdout) + [1] * len(scores.pseudo)
        aucs[str(entry.candidate)] = roc_auc_score(labels, np.concatenate([scores.holdout, scores.pseudo]))
        losses[str(entry.candidate)] = -entry.losses["pseudo-auc"]
    assert losses == pytest.approx(aucs)


def test_the_command_takes_several(task, tmp_path):
    options = ["--detector", "patch-memory,patch-fusion", "--image-size", 64, "--grid", "patch_size=0.1"]
    told = dsv_here("select", task, *options, "--executor", "serial", "--out", tmp_path / "run")
    assert told.returncode == 0, told.stderr
    assert "patch-fusion cutpaste(patch_size=0.1)" in told.stdout
    assert "cosine chooses patch-" in told.stdout


@pytest.mark.parametrize(
    ("settings", "error", "complaint"),
    [
        ({"detector": ["patch-memory", "patch-memory"]}, InputError, "each once"),
        ({"detector": "patch-memory,patch-fushion"}, PluginError, "did you mean 'patch-fusion'"),
        (
            {"grid": {"patch-memry.score": ["raw"]}},
            InputError,
            r"patch-memry.score is .*\(did you mean 'patch-memory'\?\)",
        ),
        (
            {
                "plugins": AugmentationPlugin("deep", Brighten, space={"strength": [0.1]}, changes="features"),
                "augmentation": "deep",
            },
            InputError,
            "patch-fusion learns from changed images, and 'deep' changes features; give one of .*cutpaste",
        ),
        ({"selector": "base"}, InputError, "'base' cannot compare different detectors.* put one of dsv,"),
        ({"detector_params": {"patch-memory": 3}}, InputError, "detector_params of 'patch-memory' is 3; give"),
        (
            {"detector": ["patch-memory", DETECTOR], "detector_params": {DETECTOR: TINY}, "grid": {}},
            InputError,
            "take images of different sizes .*; give one --image-size for all",
        ),
        ({"search": "halving"}, InputError, "halving spends the budget in parts"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_training(task, tmp_path, settings, error, complaint):
    with pytest.raises(error, match=complaint):
        Study(**study(task, tmp_path / "run", **settings)).run()
    assert not (tmp_path / "run/candidates").exists()
