"""Selection in a workflow, without labels."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from anomalib.data import Folder
from anomalib.engine import Engine
from anomalib.models import Draem, Patchcore
from conftest import NARROW, QUIET, SIDE, TINY_CUTPASTE, folder, images, make_task
from lightning.pytorch import Trainer
from scipy.stats import zmap
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KernelDensity

import dsv_anomalib
from dsv_anomalib import detector
from dsv_anomalib.table import ENTRIES
from dsv_plugins import AugmentationPlugin, InputError, PluginSettingsError, When, build_registry, load
from dsv_plugins.cli import main as dsv

TINY_DRAEM = {"image_size": SIDE, "updates": 2, "batch_size": 4, "model_params": NARROW}


class UnlabelledFolder(Folder):
    """Splits its data as ever, and then has no labels and no masks: who asks for one gets an error."""

    def setup(self, stage=None):
        super().setup(stage)
        for dataset in (self.train_data, self.test_data):
            dataset.samples = dataset.samples[["image_path", "split"]]


@pytest.fixture(scope="module")
def selected(task, tmp_path_factory):
    """Perlin noise chosen for Draem."""
    return dsv_anomalib.select(
        Draem,
        folder(task, UnlabelledFolder),
        augmentation="anomalib-perlin",
        space={"blend_factor": [0.2, 1.0]},
        selector=["dsv", "mc"],
        detector_params=TINY_DRAEM,
        executor="serial",
        out=tmp_path_factory.mktemp("selection") / "run",
    )


def test_no_label_is_needed_and_every_candidate_is_trained(selected):
    assert [entry.status for entry in selected.candidates] == ["finished"] * 2
    assert selected.choice.candidate.params["blend_factor"] in (0.2, 1.0)
    losses = [entry.losses["dsv"] for entry in selected.candidates]
    assert selected.choice.loss == min(losses)
    assert losses[0] != losses[1]
    assert set(selected.selected) == {"dsv", "mc"}


def test_the_model_is_ready_for_the_engine(selected, task, tmp_path):
    datamodule = folder(task)
    (metrics,) = Engine(default_root_dir=tmp_path, **QUIET).test(selected.model, datamodule=datamodule, verbose=False)
    items = [datamodule.test_data[index] for index in range(len(datamodule.test_data))]
    raw = torch.cat([selected.load_detector(selected.choice.candidate).score(item.image[None]) for item in items])
    labels = [int(item.gt_label) for item in items]
    assert metrics["image_AUROC"] == pytest.approx(roc_auc_score(labels, raw), abs=1e-6)
    assert type(selected.model) is Draem


def test_any_argument_of_a_model_can_be_selected(task, tmp_path):
    found = dsv_anomalib.select(
        "draem",
        folder(task, UnlabelledFolder),
        space={"blend_factor": [0.5], "model.reconstructive_width": [4, 8]},
        selector="mc",
        detector_params={**TINY_DRAEM, "model_params": {"discriminative_width": 8}},
        executor="serial",
        out=tmp_path / "run",
    )
    widths = [entry.candidate.detector_params["model_params"] for entry in found.candidates]
    assert widths == [{"discriminative_width": 8, "reconstructive_width": width} for width in (4, 8)]
    # The module itself has the width that was chosen.
    chosen = found.choice.candidate.detector_params["model_params"]["reconstructive_width"]
    assert next(found.model.model.reconstructive_subnetwork.parameters()).shape[0] == chosen
    pixels = torch.rand(2, 3, SIDE, SIDE)
    torch.testing.assert_close(
        found.model.model(pixels).pred_score, found.load_detector(found.choice.candidate).score(pixels)
    )


def test_all_settings_of_a_model_serve_as_one_module(task, tmp_path):
    found = dsv_anomalib.select(
        "draem",
        folder(task),
        space={"blend_factor": [0.2, 1.0]},
        detector_params=TINY_DRAEM,
        keep="ensemble",
        executor="serial",
        out=tmp_path / "run",
    )
    pixels = images(3, size=SIDE).float() / 255
    members = [(found.load_detector(each), found.evaluation(each).scores.train) for each in found.kept]
    expected = np.mean([zmap(member.score(pixels), train) for member, train in members], axis=0)
    with torch.no_grad():
        predicted = found.model.model(pixels)
    np.testing.assert_allclose(predicted.pred_score, expected, atol=1e-3)
    maps = torch.stack([member.module.model(pixels).anomaly_map.detach() for member, _ in members]).mean(dim=0)
    torch.testing.assert_close(predicted.anomaly_map.squeeze(1), maps, rtol=1e-4, atol=1e-5)
    by_engine = Engine().export(found.model, "onnx", export_root=tmp_path, input_size=found.model.input_size)
    by_dsv = tmp_path / "detector.onnx"
    assert dsv(["export", str(found.path), "--out", str(by_dsv), "--pixels", "float32"]) == 0
    for file, taken in ((by_engine, pixels), (by_dsv, pixels.permute(0, 2, 3, 1))):
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        for count in (1, 3):
            assert len(session.run(None, {given.name: taken[:count].numpy()})[0]) == count


def test_an_argument_that_a_model_does_not_have_is_refused_before_any_training(task, tmp_path):
    with pytest.raises(
        PluginSettingsError, match=r"draem takes no widht in model_params; it takes .*reconstructive_width"
    ):
        dsv_anomalib.select(
            "draem", folder(task), space={"model.widht": [1]}, detector_params=TINY_DRAEM, out=tmp_path / "run"
        )
    assert not (tmp_path / "run/candidates").exists()


def test_settings_of_our_own_detector_are_arguments_of_the_model_too(task, tmp_path):
    found = dsv_anomalib.select(
        "cutpaste",
        folder(task, UnlabelledFolder),
        space={
            "patch_size": [0.1],
            "model.width": [2, 4],
            "model.density": When("model.width", 4, ["gaussian", "kde"]),
        },
        detector_params={**TINY_CUTPASTE, "batch_size": 4},
        executor="serial",
        out=tmp_path / "run",
    )
    tried = [entry.candidate.detector_params for entry in found.candidates]
    assert [(params["width"], params.get("density")) for params in tried] == [(2, None), (4, "gaussian"), (4, "kde")]
    assert found.model.hparams.width == found.choice.candidate.detector_params["width"]


def test_a_finished_selection_trains_nothing_again(selected, task, monkeypatch):
    monkeypatch.setattr(detector, "train", None)
    again = dsv_anomalib.select(
        "draem",
        folder(task),
        augmentation="anomalib-perlin",
        space={"blend_factor": [0.2, 1.0]},
        detector_params=TINY_DRAEM,
        executor="serial",
        out=selected.path,
    )
    assert again.choice.candidate.id == selected.choice.candidate.id


def test_a_run_folder_keeps_no_checkpoints(selected):
    assert not list(selected.path.rglob("*.ckpt"))
    assert list(selected.path.rglob("*.safetensors"))


def test_cutpaste_is_selected_by_our_own_detector(task, tmp_path):
    found = dsv_anomalib.select(
        "cutpaste",
        folder(task, UnlabelledFolder),
        space={"patch_size": [0.05, 0.3]},
        detector_params={**TINY_CUTPASTE, "batch_size": 4},
        executor="serial",
        out=tmp_path / "run",
    )
    assert isinstance(found.model, dsv_anomalib.CutPaste)
    assert found.model.hparams.augmentation_params == dict(found.choice.candidate.params)
    pixels = torch.rand(3, 3, SIDE, SIDE)
    torch.testing.assert_close(
        found.model.model(pixels).pred_score,
        found.load_detector(found.choice.candidate).score(pixels),
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.fixture(scope="module")
def with_kernels(task, tmp_path_factory):
    """CutPaste with kernels as the model of normal embeddings."""
    return dsv_anomalib.select(
        "cutpaste",
        folder(task, UnlabelledFolder),
        space={"patch_size": [0.1]},
        detector_params={**TINY_CUTPASTE, "batch_size": 4, "density": "kde"},
        executor="serial",
        out=tmp_path_factory.mktemp("kde") / "run",
    )


def test_cutpaste_keeps_the_scores_of_another_density(with_kernels):
    pixels = images(5, seed=3, defect=True) / 255
    expected = with_kernels.load_detector(with_kernels.choice.candidate).score(pixels)
    assert with_kernels.model.hparams.density == "kde"
    torch.testing.assert_close(with_kernels.model.model(pixels).pred_score, expected, rtol=1e-5, atol=1e-4)
    # By scikit-learn, from the stored embeddings of the train images.
    evaluation = with_kernels.evaluation(with_kernels.choice.candidate)
    kernels = KernelDensity(bandwidth=1.0).fit(evaluation.embeddings.train.double().numpy())
    by_sklearn = -kernels.score_samples(
        with_kernels.load_detector(with_kernels.choice.candidate).encode(pixels).double().numpy()
    )
    assert expected.tolist() == pytest.approx(by_sklearn.tolist(), rel=1e-5)


def test_a_checkpoint_of_another_density_has_everything(with_kernels, tmp_path):
    trainer = Trainer(logger=False, default_root_dir=tmp_path, **QUIET)
    trainer.strategy.connect(with_kernels.model)
    trainer.save_checkpoint(tmp_path / "kde.ckpt")
    loaded = dsv_anomalib.CutPaste.load_from_checkpoint(tmp_path / "kde.ckpt").eval()
    pixels = images(4, seed=4) / 255
    assert torch.equal(loaded.model(pixels).pred_score, with_kernels.model.model(pixels).pred_score)


def test_an_export_of_another_density_scores_as_the_module(with_kernels, tmp_path):
    exported = Engine(default_root_dir=tmp_path, **QUIET).export(
        with_kernels.model, "onnx", export_root=tmp_path, input_size=(SIDE, SIDE)
    )
    pixels = images(2, seed=5, defect=True) / 255
    session = onnxruntime.InferenceSession(str(exported))
    (given,) = session.get_inputs()
    place = [output.name for output in session.get_outputs()].index("pred_score")
    scores = torch.from_numpy(session.run(None, {given.name: pixels.numpy()})[place])
    torch.testing.assert_close(scores, with_kernels.model(pixels).pred_score, rtol=1e-3, atol=1e-3)


def test_processes_choose_as_one_process_does(task, tmp_path):
    (entry,) = (entry for entry in ENTRIES if entry.name == "generalad")
    runs = [
        dsv_anomalib.select(
            "generalad",
            folder(task),
            augmentation="anomalib-feature-noise",
            space={"noise_std": [0.1, 0.5]},
            engine_args={"accelerator": "cpu"},
            detector_params={**entry.check_params, "updates": 2},
            selector="dsv",
            executor=executor,
            out=tmp_path / executor,
        )
        for executor in ("serial", "processes")
    ]
    losses = [[entry.losses["dsv"] for entry in run.candidates] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("model", ["glass", "generalad"])
def test_the_commands_of_dsv_take_the_detectors(task, tmp_path, capsys, model):
    (entry,) = (entry for entry in ENTRIES if entry.name == model)
    params = json.dumps({**entry.check_params, "updates": 2})
    study = ["--detector", f"anomalib-{model}", "--detector-params", params, "--executor", "serial"]
    synthesis = ["--augmentation", "anomalib-feature-noise", "--grid", "noise_std=0.1"]
    assert dsv(["select", str(task), *study, *synthesis, "--out", str(tmp_path / "run"), "--json"]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    assert candidate["status"] == "finished"
    assert candidate["params"] == {"noise_std": 0.1}
    assert dsv(["export", str(tmp_path / "run"), "--out", str(tmp_path / "detector.onnx")]) == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "detector.onnx"), providers=["CPUExecutionProvider"])
    pixels = images(3, size=entry.check_params["image_size"])
    (scores, *_) = session.run(None, {"images": pixels.permute(0, 2, 3, 1).numpy()})
    expected = load(tmp_path / "run").detector.score(pixels.float() / 255)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-5)


def test_a_model_without_augmentation_or_values_to_try_is_refused(task):
    with pytest.raises(InputError, match="patchcore has no augmentation to select; give values of its arguments"):
        dsv_anomalib.select("patchcore", folder(task))
    with pytest.raises(InputError, match="Cfa has no augmentation to select"):
        dsv_anomalib.select(["cfa", "patchcore"], folder(task))


def test_several_models_are_one_pool(task, tmp_path):
    found = dsv_anomalib.select(
        ["padim", Patchcore, "patch-fusion"],
        folder(task, UnlabelledFolder),
        space={"patch_size": [0.1], "padim.n_features": [8, 16], "patch-fusion.window": [0]},
        detector_params={"image_size": 64},
        executor="serial",
        keep="choice",
        out=tmp_path / "run",
    )
    labels = [str(entry.candidate) for entry in found.candidates]
    assert labels == [
        "anomalib-padim(detector.model_params.n_features=8)",
        "anomalib-padim(detector.model_params.n_features=16)",
        "anomalib-patchcore",
        "patch-fusion cutpaste(patch_size=0.1, detector.window=0)",
    ]
    pixels = images(3, size=64).float() / 255
    with torch.no_grad():
        predicted = found.model.model(pixels).pred_score
    expected = found.load_detector(found.choice.candidate).score(pixels)
    torch.testing.assert_close(predicted.flatten(), expected.flatten(), rtol=1e-3, atol=1e-3)


def test_models_with_different_augmentations_of_their_own_need_one_to_be_named(task):
    with pytest.raises(InputError, match="different augmentations of their own .*; give augmentation="):
        dsv_anomalib.select(["draem", "cutpaste"], folder(task))


@pytest.fixture(scope="module")
def selected_with_holdout(tmp_path_factory):
    """A task with enough good images to keep some out of training."""
    task = make_task(tmp_path_factory.mktemp("larger") / "parts", train=30)

    def run(**settings):
        return dsv_anomalib.select(
            "cutpaste",
            folder(task),
            space={"patch_size": [0.1]},
            detector_params=TINY_CUTPASTE,
            executor="serial",
            out=task.parent / "run",
            **settings,
        )

    return run


@pytest.mark.parametrize(("rate", "exceeding"), [(None, 0), (0.2, 1), (0.5, 4)])
def test_the_threshold_comes_from_good_images_kept_out_of_training(selected_with_holdout, rate, exceeding):
    selected = selected_with_holdout(false_alarms=rate)
    held_out = selected.evaluation(selected.choice.candidate).scores.holdout
    assert len(held_out) == 10
    threshold = float(selected.model.post_processor.image_threshold)
    assert int((held_out > threshold).sum()) == exceeding  # of 10 + 1, the promise counts the new one
    assert threshold in held_out.tolist()


def test_a_rate_that_cannot_be_promised_is_told(selected_with_holdout):
    with pytest.raises(InputError, match="10 of the 30 good images are kept out .* can promise 0.0909 or more"):
        selected_with_holdout(false_alarms=0.01)
    selected = selected_with_holdout()
    with pytest.raises(InputError, match="10 held-out images cannot promise a false-alarm rate of 0.01"):
        dsv_anomalib.load(selected.path, false_alarms=0.01)
    with pytest.raises(InputError, match="give a rate between 0 and 1"):
        selected_with_holdout(false_alarms=2)


def test_the_augmentation_of_a_model_is_its_own_unless_another_is_named(task, tmp_path):
    selected = dsv_anomalib.select(
        "draem",
        folder(task),
        space={"blend_factor": [0.5]},
        detector_params=TINY_DRAEM,
        executor="serial",
        out=tmp_path / "run",
    )
    assert selected.choice.candidate.augmentation == "anomalib-perlin"
    augmentations = {record.name for record in build_registry().of_kind(AugmentationPlugin)}
    own = {entry.name: entry.default_augmentation for entry in ENTRIES}
    assert set(own.values()) <= augmentations
    assert "cutpaste" not in own.values()  # the patches of another method


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("dream", {}, r"nothing is known of the model dream \(did you mean 'draem'\?\); known are patch-.*, draem"),
        ("patch-fusio", {}, r"\(did you mean 'patch-fusion'\?\)"),
        ("draem", {"selecter": "dsv"}, r"select takes no selecter \(did you mean 'selector'\?\)"),
        ("draem", {"model_params": NARROW}, r"arguments of the model are detector_params=\{'model_params': …\}"),
        ("draem", {"engine_args": {"max_epochs": 1}}, "engine_args has max_epochs, which the study sets itself"),
        ("cutpaste", {"engine_args": {"accelerator": "cpu"}}, "cutpaste is trained without it"),
        ("draem", {"engine_args": {"acelerator": "cpu"}}, "Trainer does not take; did you mean 'accelerator'"),
        ("draem", {"unlabeled": "parts"}, r"select takes no unlabeled \(did you mean 'unlabelled'\?\)"),
        ("draem", {"false_alarms": "few"}, "false_alarms is 'few'; give a rate between 0 and 1"),
        ("draem", {"false_alarms": 0.05}, "0 of the 8 good images are kept out .*, so no rate is promised"),
        ("draem", {"false_alarms": 0.05, "holdout": 0.5}, "4 of the 8 good images .* can promise 0.2 or more"),
    ],
)
def test_wrong_calls_are_one_line(task, tmp_path, model, settings, message):
    with pytest.raises(InputError, match=message):
        dsv_anomalib.select(model, folder(task), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_good_images_that_nobody_would_use_are_told(task, tmp_path):
    settings = {
        "unlabelled": task / "test",
        "space": {"patch_size": [0.2]},
        "detector_params": TINY_CUTPASTE,
        "executor": "serial",
    }
    places = {"normal_dir": "train/good", "val_split_mode": "none", "num_workers": 0}
    whole = Folder(name="parts", root=task, test_split_mode="none", **places)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = dsv_anomalib.select("cutpaste", whole, out=tmp_path / "whole", **settings)
    assert len(found.evaluation(found.choice.candidate).embeddings.train) == 8
    with pytest.warns(UserWarning, match='parts sets 1 of the good images aside.*test_split_mode="none"'):
        dsv_anomalib.select("cutpaste", Folder(name="parts", root=task, **places), out=tmp_path / "part", **settings)


def test_validation_images_that_were_test_images_count_as_unlabelled(task, tmp_path):
    halved = folder(task, val_split_mode="from_test")
    dsv_anomalib.select("cutpaste", halved, out=tmp_path / "run", **NATIVE_SETTINGS)
    index = json.loads((tmp_path / "run/data/images.json").read_text())
    assert len(index["files"]["test"]) == len(list((task / "test").rglob("*.png")))


def test_without_test_images_the_way_out_is_told(task):
    with pytest.raises(InputError, match="parts has no test images; .*unlabelled=FOLDER"):
        dsv_anomalib.select("cutpaste", good_images_only(task, test_split_mode="none"), **NATIVE_SETTINGS)


def test_a_path_is_no_datamodule(task):
    with pytest.raises(InputError, match=r"the datamodule is a PosixPath; give one of anomalib\.data, such as Folder"):
        dsv_anomalib.select("cutpaste", task)


def test_what_is_public_is_listed():
    assert {*dsv_anomalib.__all__} <= {*dir(dsv_anomalib)}


NATIVE_SETTINGS = {"detector_params": TINY_CUTPASTE, "space": {"patch_size": [0.1, 0.4]}, "executor": "serial"}


def good_images_only(task: Path, **settings) -> Folder:
    settings = {"num_workers": 0, "val_split_mode": "none", "test_split_ratio": 0.5, **settings}
    return Folder(name="parts", root=task, normal_dir="train/good", **settings)


def test_unlabelled_images_need_no_folder_of_anomalies_and_the_same_call_resumes(task, tmp_path):
    results = [
        dsv_anomalib.select(
            "cutpaste", good_images_only(task), unlabelled=task / "test", out=tmp_path / "run", **NATIVE_SETTINGS
        )
        for _ in range(2)  # each time with a datamodule of its own, which splits its images
    ]
    assert results[0].choice == results[1].choice
    assert len(list((tmp_path / "run/candidates").iterdir())) == 2
    index = json.loads((tmp_path / "run/data/images.json").read_text())
    assert {Path(file).parent.name for file in index["files"]["test"]} == {"good", "bar"}
    assert {Path(file).parent.parent.name for file in index["files"]["train"]} == {"train"}


@pytest.mark.parametrize(
    ("settings", "reason"), [({}, "are good images only"), ({"test_split_mode": "synthetic"}, "synthetic anomalies")]
)
def test_test_images_without_anomalies_of_their_own_are_warned_of(task, tmp_path, settings, reason):
    with pytest.warns(UserWarning, match=reason):
        dsv_anomalib.select("cutpaste", good_images_only(task, **settings), out=tmp_path / "run", **NATIVE_SETTINGS)
