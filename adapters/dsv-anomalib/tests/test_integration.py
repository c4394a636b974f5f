"""What anomalib's integration tests ask of each of its models, asked of ours."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from anomalib.cli.cli import main as anomalib_main
from anomalib.deploy import ExportType, OpenVINOInferencer, TorchInferencer
from anomalib.engine import Engine
from anomalib.models import get_model
from conftest import QUIET, TINY_CUTPASTE, folder, make_task
from PIL import Image

from dsv_anomalib import CutPaste, PatchFusion, PatchMemory
from dsv_plugins import InputError

SIZE = 64
MODELS: dict[type[Any], dict[str, Any]] = {
    CutPaste: {**TINY_CUTPASTE, "image_size": SIZE},
    PatchMemory: {"image_size": SIZE},
    PatchFusion: {"image_size": SIZE, "augmentation": "cutout", "augmentation_params": {"patch_size": 0.1}},
}


@pytest.fixture(scope="module", params=MODELS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Enough good images to hold some out; with masks of the defects."""
    task = make_task(tmp_path_factory.mktemp("integration") / "parts", train=18)
    (task / "ground_truth/bar").mkdir(parents=True)
    for file in (task / "test/bar").iterdir():
        mask = np.array(Image.open(file).convert("L")) == 255
        Image.fromarray(np.uint8(mask) * 255).save(task / "ground_truth/bar" / file.name)
    return task


def data(parts, **settings):
    return folder(parts, mask_dir="ground_truth/bar", val_split_mode="same_as_test", **settings)


def engine(root, **settings):
    return Engine(default_root_dir=root, logger=False, devices=1, **QUIET, **settings)


@pytest.fixture(scope="module")
def checkpoint(kind, parts, tmp_path_factory):
    """Fit; what is written serves the other tests, each with a new model and a new engine."""
    root = tmp_path_factory.mktemp(kind.__name__)
    fitting = engine(root, max_epochs=1)
    fitting.fit(kind(**MODELS[kind]), datamodule=data(parts))
    return fitting.best_model_path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """OpenVINO caches in the current folder, across models."""
    monkeypatch.chdir(tmp_path)


def test_test(kind, parts, checkpoint, tmp_path):
    (metrics,) = engine(tmp_path).test(
        kind(**MODELS[kind]), datamodule=data(parts), ckpt_path=checkpoint, verbose=False
    )
    assert metrics["image_AUROC"] > 0.9 or kind is CutPaste
    assert ("pixel_AUROC" in metrics and metrics["pixel_AUROC"] > 0.8) or kind is CutPaste


def test_train(kind, parts, checkpoint, tmp_path):
    found = engine(tmp_path, max_epochs=1).train(kind(**MODELS[kind]), datamodule=data(parts), ckpt_path=checkpoint)
    assert "image_AUROC" in found[0]


def test_validate(kind, parts, checkpoint, tmp_path):
    engine(tmp_path).validate(kind(**MODELS[kind]), datamodule=data(parts), ckpt_path=checkpoint, verbose=False)


def test_predict(kind, parts, checkpoint, tmp_path):
    by_data = engine(tmp_path).predict(kind(**MODELS[kind]), datamodule=data(parts), ckpt_path=checkpoint)
    by_path = engine(tmp_path).predict(
        kind.load_from_checkpoint(checkpoint), data_path=parts / "test", return_predictions=True
    )
    scores = [dict(_scores(batches)) for batches in (by_data, by_path)]
    assert len(scores[0]) == 8
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    if kind is not CutPaste:
        assert by_data[0].anomaly_map.shape[-2:] == (SIZE, SIZE)
        assert by_data[0].pred_mask.any()


def _scores(batches):
    for batch in batches:
        yield from zip(map(str, batch.image_path), batch.pred_score.flatten().tolist(), strict=True)


@pytest.mark.parametrize(
    "export_type",
    [
        ExportType.TORCH,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (ExportType.ONNX, ExportType.OPENVINO)),
    ],
)
def test_export_and_inferencers(kind, parts, checkpoint, tmp_path, monkeypatch, export_type):
    monkeypatch.setenv("TRUST_REMOTE_CODE", "1")
    exported = engine(tmp_path).export(
        kind(**MODELS[kind]), export_type, export_root=tmp_path, ckpt_path=checkpoint, input_size=(SIZE, SIZE)
    )
    assert exported.is_file()
    file = tmp_path / "image.png"
    Image.open(next((parts / "test/bar").iterdir())).resize((SIZE, SIZE), Image.Resampling.BILINEAR).save(file)
    (expected,) = engine(tmp_path).predict(kind.load_from_checkpoint(checkpoint), data_path=file)
    if export_type is ExportType.ONNX:
        session = onnxruntime.InferenceSession(str(exported), providers=["CPUExecutionProvider"])
        for count in (1, 3):
            assert len(session.run(None, {"input": np.zeros((count, 3, SIZE, SIZE), np.float32)})[0]) == count
        return
    inferencer = {ExportType.TORCH: TorchInferencer, ExportType.OPENVINO: OpenVINOInferencer}[export_type]
    predicted = inferencer(exported, device="CPU" if export_type is ExportType.OPENVINO else "cpu").predict(file)
    assert predicted.pred_score.item() == pytest.approx(expected.pred_score.item(), abs=2e-3)
    if kind is not CutPaste:
        np.testing.assert_allclose(np.squeeze(predicted.anomaly_map), np.squeeze(expected.anomaly_map), atol=5e-3)


@pytest.mark.slow
def test_export_without_a_size(kind, checkpoint, tmp_path):
    assert engine(tmp_path).export(kind(**MODELS[kind]), "onnx", export_root=tmp_path, ckpt_path=checkpoint).is_file()


def test_get_model_knows_it_by_its_name(kind):
    assert type(get_model(kind.__name__, **MODELS[kind])) is kind


@pytest.mark.parametrize("kind", [PatchFusion])
def test_anomalib_train_takes_a_config(kind, parts, tmp_path, monkeypatch):
    config = {
        "model": {"class_path": f"dsv_anomalib.{kind.__name__}", "init_args": MODELS[kind]},
        "data": {
            "class_path": "anomalib.data.Folder",
            "init_args": {
                "name": "parts",
                "root": str(parts),
                "normal_dir": "train/good",
                "normal_test_dir": "test/good",
                "abnormal_dir": "test/bar",
                "num_workers": 0,
            },
        },
        "trainer": {"accelerator": "cpu", "enable_progress_bar": False},
        "default_root_dir": str(tmp_path),
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(sys, "argv", ["anomalib", "train", "--config", str(tmp_path / "train.yaml")])
    anomalib_main()
    (file,) = tmp_path.rglob("*.ckpt")
    assert kind.load_from_checkpoint(file).hparams.augmentation == "cutout"


def test_an_untrained_model_says_so(parts, tmp_path):
    with pytest.raises(InputError, match="not trained yet"):
        engine(tmp_path).predict(PatchMemory(image_size=SIZE), datamodule=data(parts))


def test_half_of_the_good_images_are_held_out_on_request(parts, tmp_path):
    module = PatchMemory(image_size=SIZE, holdout=0.5)
    engine(tmp_path, limit_val_batches=0).fit(module, datamodule=folder(parts))
    assert len(module._held_out) == 9
    assert len(module.model.network.components.train_rows) == 9
