"""CutPaste as a model of anomalib."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import pytest
import torch
from anomalib.cli.cli import main as anomalib_main
from anomalib.data import ImageBatch
from anomalib.data.utils import read_image
from anomalib.deploy import TorchInferencer
from anomalib.engine import Engine
from anomalib.metrics import AUROC
from anomalib.models import get_model
from conftest import QUIET, SIDE, TINY_CUTPASTE, augmentation, folder, images, make_task
from sklearn.metrics import roc_auc_score

from dsv_anomalib import CutPaste, LabelFreePostProcessor
from dsv_plugins import DetectorEncoderPlugin, UnknownPluginError, build_registry
from dsv_plugins.calibration import Calibration


def scores(module, pixels):
    with torch.no_grad():
        return module.eval()(pixels).pred_score


@pytest.fixture(scope="module")
def trained():
    """Our own detector, trained by itself."""
    settings = {**TINY_CUTPASTE, "updates": 12, "batch_size": 8}
    found = build_registry().create(DetectorEncoderPlugin, "cutpaste-resnet18", settings)
    found.fit(images(), augmentation("cutpaste", patch_size=0.2))
    return found


def test_scores_are_those_of_our_own_detector(trained, task, tmp_path):
    module = CutPaste.from_detector(trained, post_processor=False, evaluator=False)
    datamodule = folder(task)
    predictions = Engine(default_root_dir=tmp_path, **QUIET).predict(module, datamodule=datamodule)
    seen = torch.cat([batch.image for batch in predictions])
    assert seen.shape == (8, 3, SIDE, SIDE)
    torch.testing.assert_close(
        torch.cat([batch.pred_score for batch in predictions]), trained.score(seen), rtol=1e-3, atol=1e-3
    )


def test_training_by_the_engine_learns_and_models_the_train_images(native, task):
    module, engine = native
    untrained = CutPaste(**TINY_CUTPASTE)
    assert engine.trainer.global_step == TINY_CUTPASTE["updates"]
    for name, before in untrained.model.network.state_dict().items():
        if name.endswith("running_mean"):  # still where it was, had the network been in evaluation mode
            assert not torch.equal(before, module.model.network.state_dict()[name]), name
    datamodule = folder(task)
    datamodule.setup()
    pixels = torch.stack([module.pre_processor.transform(item.image) for item in datamodule.train_data])
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(module.model.network(pixels), dim=1)
    torch.testing.assert_close(module.model.density.mean, embeddings.mean(dim=0), rtol=1e-3, atol=1e-4)
    threshold = np.quantile(module.model(pixels).pred_score.detach().numpy(), 0.99)
    assert float(module.post_processor.image_threshold) == pytest.approx(threshold, rel=1e-3)


def test_the_threshold_is_that_of_the_images_left_out_of_the_training(tmp_path):
    task = make_task(tmp_path / "parts", train=18)
    module = CutPaste(**TINY_CUTPASTE)
    seen = []
    module.network.augmentation = lambda images, *, generator: seen.append(len(images)) or 1 - images
    engine = Engine(default_root_dir=tmp_path, limit_val_batches=0, **QUIET)
    engine.fit(module, datamodule=folder(task))
    assert sum(seen) <= 2 * 12  # two epochs of the images that are not held out
    files = sorted((task / "train/good").iterdir())
    pixels = torch.stack([module.pre_processor.transform(read_image(file, as_tensor=True)) for file in files])
    with torch.no_grad():
        found = module.eval().model(pixels).pred_score.numpy()
    held_out = np.array([str(file) in module._held_out for file in files])
    assert held_out.sum() == 6
    calibration = Calibration(found[held_out])
    expected = calibration.threshold(calibration.default_rate)
    assert float(module.post_processor.image_threshold) == pytest.approx(expected, rel=1e-3)
    embeddings = torch.nn.functional.normalize(module.model.network(pixels[~held_out]), dim=1)
    torch.testing.assert_close(module.model.density.mean, embeddings.mean(dim=0).detach(), rtol=1e-3, atol=1e-4)


def test_test_reports_the_auroc_of_the_raw_scores(native, task):
    module, engine = native
    datamodule = folder(task)
    reported = engine.test(module, datamodule=datamodule, verbose=False)[0]["image_AUROC"]
    batches = list(datamodule.test_dataloader())
    raw = torch.cat([module.model(module.pre_processor.transform(batch.image)).pred_score for batch in batches])
    labels = torch.cat([batch.gt_label for batch in batches])
    assert reported == pytest.approx(roc_auc_score(labels, raw.detach()), abs=1e-6)


def test_a_checkpoint_has_everything(native):
    module, engine = native
    loaded = CutPaste.load_from_checkpoint(engine.best_model_path)
    pixels = images(4, seed=2, defect=True, size=40) / 255
    torch.testing.assert_close(scores(loaded, pixels), scores(module, pixels), rtol=1e-4, atol=1e-4)


def test_exports_score_as_the_module(native, tmp_path, monkeypatch):
    module, engine = native
    pixels = images(2, seed=2, defect=True) / 255
    expected = scores(module, pixels)
    monkeypatch.setenv("TRUST_REMOTE_CODE", "1")
    exported = engine.export(module, "torch", export_root=tmp_path)
    predicted = TorchInferencer(exported, device="cpu").predict(pixels[0])
    torch.testing.assert_close(predicted.pred_score.reshape(-1), expected[:1], rtol=1e-3, atol=1e-3)
    exported = engine.export(module, "onnx", export_root=tmp_path, input_size=(SIDE, SIDE))
    session = onnxruntime.InferenceSession(str(exported))
    outputs = dict(
        zip(
            [output.name for output in session.get_outputs()],
            session.run(None, {session.get_inputs()[0].name: pixels.numpy()}),
            strict=True,
        )
    )
    torch.testing.assert_close(torch.from_numpy(outputs["pred_score"]), expected, rtol=1e-3, atol=1e-3)


def test_anomalib_train_takes_it_by_its_class_path(task, tmp_path, monkeypatch):
    model = {**TINY_CUTPASTE, "augmentation": "cutout"}
    places = {"normal_dir": "train/good", "abnormal_dir": "test/bar", "normal_test_dir": "test/good"}
    data = {"name": "parts", "root": task, **places, "num_workers": 0, "val_split_mode": "same_as_test"}
    options = {
        "model": "dsv_anomalib.CutPaste",
        **{f"model.{name}": value for name, value in model.items()},
        "data": "anomalib.data.Folder",
        **{f"data.{name}": value for name, value in data.items()},
        "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": "false",
        "default_root_dir": tmp_path,
    }
    monkeypatch.setattr(sys, "argv", ["anomalib", "train", *(f"--{name}={value}" for name, value in options.items())])
    anomalib_main()
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    loaded = CutPaste.load_from_checkpoint(checkpoint)
    assert loaded.hparams.augmentation == "cutout"
    density = loaded.model.density
    assert torch.linalg.matrix_rank(density.whitening) == len(density.mean)
    assert not torch.equal(density.mean, torch.zeros_like(density.mean))


def test_get_model_knows_it_by_its_name():
    module = get_model("cut_paste", augmentation="cutavg", augmentation_params={"patch_size": 0.3}, **TINY_CUTPASTE)
    assert isinstance(module, CutPaste)
    assert type(module.network.augmentation).__name__.lower() == "cutavg"


def test_an_unknown_augmentation_is_named():
    with pytest.raises(UnknownPluginError, match="no augmentation is named 'cutpast'"):
        CutPaste(augmentation="cutpast", **TINY_CUTPASTE)


def test_large_scores_stay_in_order_where_anomalib_takes_them_for_equal():
    raw, labels = torch.tensor([65.0, 120.0, 500.0, 1115.0]), torch.tensor([0, 0, 1, 1])

    def auroc(values):
        metric = AUROC(fields=["pred_score", "gt_label"])
        metric.update(ImageBatch(image=torch.zeros(4, 3, 2, 2), pred_score=values, gt_label=labels))
        return float(metric.compute())

    post_processor = LabelFreePostProcessor()
    post_processor.fit(torch.tensor([60.0, 62.0, 66.0]))
    normalised = post_processor._normalize(
        raw, post_processor.image_min, post_processor.image_max, post_processor.image_threshold
    )
    assert auroc(raw) == 0.5  # the trap
    assert auroc(normalised) == 1.0
    assert ((normalised > 0) & (normalised < 1)).all()
    assert (normalised > 0.5).tolist() == [False, True, True, True]
