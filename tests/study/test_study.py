from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from brightness import SETTINGS, BrightnessPlugins, grey_images
from conftest import DETECTOR, TINY, journal, make_task, texture

from dsv_plugins import (
    AugmentationPlugin,
    InputError,
    PluginError,
    PluginSettingsError,
    Range,
    Search,
    SearchPlugin,
    SelectorPlugin,
    StoreError,
    Study,
    TrainingError,
    UnknownPluginError,
    hookimpl,
    report,
    select,
)
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.losses import dsv
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.run.model import load

GRID = {"patch_size": [0.02, 0.08, 0.32]}


def tiny(task: Path, out: Path, **settings) -> Study:
    detector = {"detector": DETECTOR, "detector_params": TINY}
    settings = {"grid": GRID, "selector": "dsv", "executor": "serial", **detector, **settings}
    return Study(task / "train", task / "test", out=out, **settings)


class Recorder(Observer):
    def __init__(self) -> None:
        self.trained: list[str] = []
        self.failures: list[str] = []
        self.notes: list[str] = []

    def finished(self, candidate, seconds):
        self.trained.append(str(candidate))

    def failed(self, candidate, reason):
        self.failures.append(reason)

    def noted(self, message):
        self.notes.append(message)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study, to look at and to copy; nobody changes it."""
    folder = tmp_path_factory.mktemp("finished")
    task = make_task(folder / "parts")
    return task, tiny(task, folder / "run", selector=["dsv", "mc", "hits"]).run()


def test_the_choice_is_the_smallest_loss_of_the_stored_embeddings(finished):
    _, result = finished
    losses = []
    for entry in result.candidates:
        embeddings = result.evaluation(entry.candidate).embeddings
        losses.append(float(dsv(embeddings.train, embeddings.augmented, embeddings.test)))
        assert len(embeddings.augmented) == len(embeddings.train) == 8
        assert len(embeddings.test) == 8
    assert [entry.losses["dsv"] for entry in result.candidates] == losses
    assert result.choice.loss == min(losses)
    assert result.choice.candidate.params == {"patch_size": GRID["patch_size"][int(np.argmin(losses))]}
    assert result.updates_spent == TINY["shared_updates"] + 3 * TINY["updates"]


def test_every_choice_has_a_confidence(finished):
    _, result = finished
    assert list(result.confidence) == ["dsv", "mc", "hits"]
    for shares in result.confidence.values():
        assert set(shares) == {entry.candidate.id for entry in result.candidates}
        assert sum(shares.values()) == pytest.approx(1)


def test_the_kept_detector_gives_the_stored_scores(finished):
    _, result = finished
    stored = result.evaluation(result.choice.candidate).scores.test
    assert torch.equal(
        result.load_detector(result.choice.candidate).score(open_dataset(result.path / "data").test), stored
    )


def test_the_table_has_every_candidate_and_marks_the_choices(finished):
    _, result = finished
    head, *rows, legend = report.table(result).splitlines()
    assert head.split()[:4] == ["candidate", "dsv", "mc", "hits"]
    for entry, row in zip(result.candidates, rows, strict=True):
        losses = " ".join(
            f"{entry.losses[name]:.4g}{' ←' if choice.candidate == entry.candidate else ''}"
            for name, choice in result.selected.items()
        )
        assert " ".join(row.split()).startswith(f"{entry.candidate} {losses} ")
        assert " ! " in row, "so short a training does not concentrate"
    assert legend.startswith("! conc. (concentration)")


def test_health_is_what_the_embeddings_say(finished):
    _, result = finished
    for entry in result.candidates:
        embeddings = result.evaluation(entry.candidate).embeddings
        within = np.linalg.norm(embeddings.train[:, None] - embeddings.train[None], axis=-1).mean()
        between = np.linalg.norm(embeddings.train[:, None] - embeddings.augmented[None], axis=-1).mean()
        assert entry.health.concentration == pytest.approx(within / between, rel=1e-4)
        assert 0 <= entry.health.training_accuracy <= 1


@pytest.mark.parametrize(("strength", "warns"), [(0.5, False), (1e-5, True)])
def test_a_choice_that_is_not_concentrated_comes_with_a_warning(tmp_path, strength, warns):
    recorder = Recorder()
    result = select(
        *(grey_images(8, seed) for seed in (0, 1)),
        grid={"strength": [strength]},
        selector="dsv",
        plugins=(BrightnessPlugins(),),
        out=tmp_path / "run",
        observer=recorder,
        **SETTINGS,
    )
    concentration = result.candidates[0].health.concentration
    assert (concentration < 0.1, concentration > 0.8) == (not warns, warns)
    warning = f"the chosen detector has a concentration of {concentration:.2f}, and DSV presumes far less than 1"
    for notes in (result.notes, recorder.notes):
        assert sum(note.startswith(warning) for note in notes) == warns


def test_running_again_trains_nothing_and_says_the_same(finished, tmp_path):
    task, result = finished
    shutil.copytree(result.path, tmp_path / "run")
    before = (tmp_path / "run" / "selection.json").read_bytes()
    recorder = Recorder()
    again = tiny(task, tmp_path / "run", selector=["dsv", "mc", "hits"]).run(recorder)
    assert recorder.trained == []
    assert (tmp_path / "run" / "selection.json").read_bytes() == before
    assert again.selected == result.selected


def test_another_selector_on_a_finished_run_trains_nothing(finished, tmp_path):
    task, result = finished
    shutil.copytree(result.path, tmp_path / "run")
    recorder = Recorder()
    again = tiny(task, tmp_path / "run", selector="mmd").run(recorder)
    assert recorder.trained == []
    assert list(again.selected) == ["mmd"]


def test_the_executor_does_not_matter(finished, tmp_path):
    task, result = finished
    tiny(task, tmp_path / "run", selector=["dsv", "mc", "hits"], executor="processes", workers=2).run()
    assert (tmp_path / "run" / "selection.json").read_bytes() == (result.path / "selection.json").read_bytes()
    for entry in result.candidates:
        name = f"candidates/{entry.candidate.id}-{TINY['updates']}/evaluation.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (result.path / name).read_bytes()


def test_labels_in_folder_names_do_not_reach_the_losses(finished, tmp_path):
    task, result = finished
    shutil.copytree(task / "train", tmp_path / "parts" / "train")
    merged = tmp_path / "parts" / "test"
    merged.mkdir()
    for index, file in enumerate(sorted((task / "test").rglob("*.png"), reverse=True)):
        shutil.copy(file, merged / f"{index}.png")
    other = tiny(tmp_path / "parts", tmp_path / "run", selector=["dsv", "mc", "hits"]).run()
    assert (other.path / "selection.json").read_bytes() == (result.path / "selection.json").read_bytes()


def test_a_damaged_artifact_is_trained_again(finished, tmp_path):
    task, result = finished
    shutil.copytree(result.path, tmp_path / "run")
    candidate = result.candidates[1].candidate
    file = tmp_path / "run" / "candidates" / f"{candidate.id}-{TINY['updates']}" / "evaluation.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    recorder = Recorder()
    tiny(task, tmp_path / "run", selector=["dsv", "mc", "hits"]).run(recorder)
    assert recorder.trained == [str(candidate)]
    assert any("evaluation.safetensors is damaged" in note and "is trained again" in note for note in recorder.notes)
    assert (tmp_path / "run" / "selection.json").read_bytes() == (result.path / "selection.json").read_bytes()


def test_a_damaged_model_is_noticed_and_restored(finished, tmp_path):
    task, result = finished
    shutil.copytree(result.path, tmp_path / "run")
    (tmp_path / "run" / "model" / "detector.json").write_text("{}")
    with pytest.raises(StoreError, match=r"detector\.json is damaged; run the same"):
        load(tmp_path / "run")
    restored = tiny(task, tmp_path / "run").run()
    images = open_dataset(tmp_path / "run" / "data").test
    assert torch.equal(
        restored.load_detector(restored.choice.candidate).score(images),
        result.load_detector(result.choice.candidate).score(images),
    )
    assert torch.equal(
        load(tmp_path / "run").detector.score(images), result.load_detector(result.choice.candidate).score(images)
    )


def test_a_folder_of_another_study_is_refused(finished, tmp_path):
    task, result = finished
    shutil.copytree(result.path, tmp_path / "run")
    with pytest.raises(InputError, match=r"belongs to a study whose seed is 0, not 5; give another --out"):
        tiny(task, tmp_path / "run", seed=5).run()


def test_a_folder_in_which_a_broken_image_was_found_is_free(task, tmp_path):
    good = sorted((task / "train/good").iterdir())
    (tmp_path / "broken.png").write_bytes(b"no image")
    study = tiny(task, tmp_path / "run", grid={"patch_size": [0.1]})
    with pytest.raises(InputError, match=r"broken\.png cannot be read as an image"):
        replace(study, train=[*good, tmp_path / "broken.png"]).run()
    replace(study, train=good).run()
    with pytest.raises(InputError, match="belongs to a study of other train images; give another --out"):
        replace(study, train=good[1:]).run()


def test_several_augmentations_are_one_pool(task, tmp_path):
    result = tiny(task, tmp_path / "run", augmentation=["cutpaste", "cutout"], grid={"patch_size": [0.1, 0.3]}).run()
    assert [(e.candidate.augmentation, e.candidate.params["patch_size"]) for e in result.candidates] == [
        ("cutpaste", 0.1),
        ("cutpaste", 0.3),
        ("cutout", 0.1),
        ("cutout", 0.3),
    ]
    assert len({entry.candidate.id for entry in result.candidates}) == 4


def test_halving_spends_less_and_ends_as_a_full_training_would(finished, tmp_path):
    task, full = finished
    result = tiny(task, tmp_path / "run", search="halving", rungs=2, rung_factor=3.0).run()
    statuses = [entry.status for entry in result.candidates]
    assert sorted(statuses) == ["finished", "stopped", "stopped"]
    assert result.updates_spent == 8 + 3 * 4 + (12 - 4)
    survivor = result.choice.candidate
    reference = next(entry for entry in full.candidates if entry.candidate.params == survivor.params)
    assert result.choice.loss == reference.losses["dsv"]


def test_a_selector_of_held_out_images_is_refused_in_a_study_without(task, tmp_path):
    with pytest.raises(InputError, match="'pu-auc' needs held-out images; remove --holdout 0"):
        tiny(task, tmp_path / "run", selector=["dsv", "pu-auc"], holdout=0).run()
    assert not (tmp_path / "run").exists()


def test_halving_needs_a_selector_that_judges_alone(task, tmp_path):
    with pytest.raises(InputError, match="'mc' judges only a whole pool; put one of .*dsv"):
        tiny(task, tmp_path / "run", search="halving", selector="mc").run()


class Bisection(Search):
    """A search that makes up its candidates: the middle of the range, and then the middle of its lower half, twice."""

    trials = 3

    def run(self, problem):
        space = problem.spaces["cutpaste"]["patch_size"]
        found = {}
        for step in (1, 2, 2):
            candidate = problem.candidate("cutpaste", {"patch_size": space.high / 2**step})
            found |= problem.evaluate([candidate, candidate], problem.budget, None)
        problem.note(f"searched from {space.low}")
        return found


class SearchPlugins:
    @hookimpl
    def search(self):
        return SearchPlugin("bisection", Bisection, proposes=True)


def test_a_search_may_propose_candidates_on_its_way(finished, tmp_path):
    task, _ = finished
    settings = {"search": "bisection", "grid": {"patch_size": Range(0.01, 0.32)}, "plugins": (SearchPlugins(),)}
    recorder = Recorder()
    result = tiny(task, tmp_path / "run", **settings).run(recorder)
    assert [entry.candidate.params["patch_size"] for entry in result.candidates] == [0.16, 0.08]
    assert recorder.trained == ["shared start", "cutpaste(patch_size=0.16)", "cutpaste(patch_size=0.08)"]
    assert result.updates_spent == TINY["shared_updates"] + 2 * TINY["updates"], (
        "what is proposed twice is trained once"
    )
    assert "searched from 0.01" in result.notes
    again = tiny(task, tmp_path / "run", **settings).run(recorder)
    assert len(recorder.trained) == 3
    assert again.selection == result.selection
    with pytest.raises(InputError, match="belongs to a study whose grid is .*0.32"):
        tiny(task, tmp_path / "run", **{**settings, "grid": {"patch_size": Range(0.01, 0.4)}}).run()


def test_holdout_comes_along(task, tmp_path):
    result = tiny(task, tmp_path / "run", holdout=0.25, grid={"patch_size": [0.1]}).run()
    evaluation = result.evaluation(result.choice.candidate)
    assert len(evaluation.embeddings.train) == 6
    assert len(evaluation.embeddings.holdout) == len(evaluation.scores.holdout) == 2


def test_tensors_in_one_call(tmp_path, monkeypatch):
    monkeypatch.setenv("DSV_RUNS", str(tmp_path / "runs"))
    images = torch.from_numpy(np.stack([texture(seed, size=32) for seed in range(12)]))[:, None]
    detector = {"detector": DETECTOR, "detector_params": TINY}
    result = select(images[:7], images[7:], grid={"patch_size": [0.1]}, executor="serial", **detector)
    assert result.path.parent == tmp_path / "runs"
    assert result.load_detector(result.choice.candidate).score(images).shape == (12,)


# ---------------------------------------------------------------------------
# What fails
# ---------------------------------------------------------------------------


class Poison:
    """An augmentation that spoils the training where its strength says so."""

    def __init__(self, strength):
        self.strength = strength

    def __call__(self, images, *, generator):
        if self.strength == "nan":
            return images * math.nan
        if self.strength == "memory":
            raise MemoryError("no memory left")
        return 1 - images


class PoisonPlugins:
    @hookimpl
    def augmentation(self):
        return AugmentationPlugin("poison", Poison, space={"strength": ["mild", "nan", "memory"]})


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_failing_candidates_are_recorded_and_left_out(task, tmp_path, executor):
    study = tiny(task, tmp_path / "run", augmentation="poison", grid={}, plugins=(PoisonPlugins(),), executor=executor)
    recorder = Recorder()
    result = study.run(recorder)
    assert [entry.status for entry in result.candidates] == ["finished", "failed", "failed"]
    assert "returned values from nan to nan" in result.candidates[1].reason
    assert "no memory left" in result.candidates[2].reason
    assert result.choice.candidate.params == {"strength": "mild"}
    assert len(recorder.failures) == 2
    assert "no memory left" in report.table(result)
    failed = {event["candidate"]: event["reason"] for event in journal(tmp_path / "run", "failed")}
    assert failed == {entry.candidate.id: entry.reason for entry in result.candidates[1:]}
    # The journal knows the line of the plugin that raised, also if that was in another process.
    *_, last = journal(tmp_path / "run", "failed")
    assert "in __call__" in last["traceback"]
    assert "no memory left" in last["traceback"]


def test_all_failing_is_an_error_that_says_why(task, tmp_path):
    study = tiny(task, tmp_path / "run", augmentation="poison", grid={"strength": ["nan"]}, plugins=(PoisonPlugins(),))
    with pytest.raises(TrainingError, match="every candidate failed; the first: .*values from nan to nan"):
        study.run()


class BadSelectors:
    @hookimpl
    def selector(self):
        return [
            SelectorPlugin("short", lambda: _Losses(lambda evaluations: [1.0])),
            SelectorPlugin("raising", lambda: _Losses(lambda evaluations: 1 / 0)),
            SelectorPlugin("all-nan", lambda: _Losses(lambda evaluations: [math.nan] * len(evaluations))),
            SelectorPlugin("one-nan", lambda: _Losses(lambda evaluations: [math.nan, 2.0, 1.0])),
        ]


class _Losses:
    def __init__(self, losses):
        self.losses = losses


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("short", "'short' .* gave 1 losses for 3 candidates"),
        ("raising", "'raising' .*ZeroDivisionError"),
        ("all-nan", "none of the 3 losses is finite"),
    ],
)
def test_a_selector_that_fails_is_named(finished, tmp_path, name, complaint):
    task, result = finished
    shutil.copytree(result.path, tmp_path / "run")
    with pytest.raises(PluginError, match=complaint):
        tiny(task, tmp_path / "run", selector=name, plugins=(BadSelectors(),)).run()
    beside = tiny(task, tmp_path / "run", selector=["dsv", name], plugins=(BadSelectors(),)).run()
    assert list(beside.selected) == ["dsv"]
    assert any(f"no choice by '{name}'" in note for note in beside.notes)


def test_a_candidate_without_a_loss_ranks_last_and_is_reported(finished, tmp_path):
    task, result = finished
    shutil.copytree(result.path, tmp_path / "run")
    again = tiny(task, tmp_path / "run", selector="one-nan", plugins=(BadSelectors(),)).run()
    assert again.choice.candidate == again.candidates[2].candidate
    assert any("no finite loss for cutpaste(patch_size=0.02)" in note for note in again.notes)
    assert again.as_json()["candidates"][0]["losses"] == {"one-nan": None}


@pytest.mark.parametrize(
    ("settings", "error", "complaint"),
    [
        ({"augmentation": "cutpast"}, UnknownPluginError, "did you mean 'cutpaste'"),
        ({"detector": "resnet"}, UnknownPluginError, "no detector_encoder is named 'resnet'"),
        ({"selector": ["dsv", "dvs"]}, UnknownPluginError, "did you mean 'dsv'"),
        ({"search_params": {"trials": 3}}, PluginSettingsError, "search 'grid' .* does not take 'trials'"),
        ({"executor_params": {"nodes": 3}}, PluginSettingsError, "executor 'serial' .* does not take 'nodes'"),
        ({"executor": "cluster"}, UnknownPluginError, "known: processes, "),
        ({"search": "random"}, UnknownPluginError, "known: grid, halving"),
        ({"grid": {"patchsize": [1]}}, PluginSettingsError, "'patchsize'"),
        ({"grid": {"patch_size": [7]}}, PluginSettingsError, "patch_size is 7"),
        ({"grid": {"patch_size": []}}, InputError, "patch_size.* empty"),
        ({"detector_params": {"depth": 3}}, PluginSettingsError, "'depth'"),
        ({"threads": 0}, InputError, "threads is 0"),
        ({"augmentation": []}, InputError, "augmentation is empty"),
        ({"selector": ["dsv", "dsv"]}, InputError, "each once"),
        ({"holdout": 1.5}, InputError, "holdout is 1.5"),
    ],
)
def test_wrong_settings_are_refused_before_any_training(task, tmp_path, settings, error, complaint):
    recorder = Recorder()
    with pytest.raises(error, match=complaint):
        tiny(task, tmp_path / "run", **settings).run(recorder)
    assert recorder.trained == []


def test_changed_images_are_other_candidates(finished, tmp_path):
    task, result = finished
    shutil.copytree(task, tmp_path / "parts")
    os.remove(next((tmp_path / "parts" / "test").rglob("*.png")))
    before = {entry.candidate.id for entry in result.candidates}
    other = tiny(tmp_path / "parts", tmp_path / "run").run()
    assert len(before) == len(other.candidates) == 3
    assert not before & {entry.candidate.id for entry in other.candidates}
