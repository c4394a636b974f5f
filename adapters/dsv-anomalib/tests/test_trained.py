"""A finished selection as a fitted module: the pretrained detector, with anomaly maps."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from anomalib.data import Folder
from anomalib.deploy import ExportType
from anomalib.engine import Engine
from conftest import QUIET, SIDE, folder, images, make_task, texture
from PIL import Image
from scipy.stats import zmap
from torchvision.transforms.v2.functional import pil_to_tensor, resize, to_pil_image

import dsv_anomalib
import dsv_plugins
from dsv_anomalib.trained import TrainedDetector
from dsv_plugins import InputError
from dsv_plugins.cli import main as dsv

TINY = {"image_size": 64}


@pytest.fixture(scope="module")
def larger_task(tmp_path_factory):
    """Enough good images to keep 19 out of training."""
    return make_task(tmp_path_factory.mktemp("larger") / "parts", train=60)


@pytest.fixture(scope="module")
def selected(larger_task, tmp_path_factory):
    return dsv_anomalib.select(
        "patch-fusion",
        folder(larger_task),
        space={"patch_size": [0.02, 0.2]},
        detector_params=TINY,
        executor="serial",
        out=tmp_path_factory.mktemp("trained") / "run",
    )


def test_the_module_scores_as_the_detector_of_the_run(selected):
    assert isinstance(selected.model, TrainedDetector)
    pixels = images(4, size=64).float() / 255
    with torch.no_grad():
        found = selected.model.model(pixels)
    expected = dsv_plugins.load(selected.path).predict(pixels)
    torch.testing.assert_close(found.pred_score, expected.scores, rtol=1e-4, atol=1e-3)
    assert found.anomaly_map.shape == (4, 1, 64, 64)
    peaks = expected.heatmaps.flatten(1).max(dim=1).values
    torch.testing.assert_close(found.anomaly_map.flatten(1).max(dim=1).values, peaks, rtol=0.1, atol=0.5)


def test_a_finished_selection_is_loaded_with_its_decisions(selected):
    loaded = dsv_anomalib.load(selected.path)
    decided = dsv_plugins.load(selected.path).predict(images(8, defect=True, size=64))
    with torch.no_grad():
        predicted = loaded(images(8, defect=True, size=64).float() / 255)
    assert torch.equal(predicted.pred_label.flatten(), decided.anomalous)
    # Where an image is called unusual: the heat that good-looking test images hardly reach.
    record = dsv_plugins.load(selected.path).record
    with torch.no_grad():
        maps = loaded.model(images(8, defect=True, size=64).float() / 255).anomaly_map
    assert torch.equal(predicted.pred_mask.squeeze(1).bool(), (maps > record.heat_threshold).squeeze(1))


def test_images_that_the_engine_resizes_score_as_files_do(selected):
    larger = images(6, size=150)
    files = [to_pil_image(image).resize((64, 64), Image.Resampling.BILINEAR) for image in larger]
    expected = dsv_plugins.load(selected.path).predict(torch.stack([pil_to_tensor(file) for file in files])).scores
    module = selected.model
    with torch.no_grad():
        found = module.model(module.pre_processor.transform(larger.float() / 255)).pred_score
    # One pixel in five hundred differs by a level. Resized in floating point, scores differ by up to 4 %.
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0)
    # Somebody who resizes in floating point, before an exported model, gets nearly the same.
    floating = resize(larger.float() / 255, [64, 64], antialias=True)
    with torch.no_grad():
        rounded, exact = (module.model(pixels).pred_score for pixels in (floating, (floating * 255).round() / 255))
    assert torch.equal(rounded, exact)


def test_the_threshold_of_places_comes_from_images_without_an_alarm(selected):
    shares = [selected.shares[candidate.id] for candidate in selected.kept]
    members = [selected.evaluation(candidate).scores for candidate in selected.kept]
    assert len(members) == 2
    test, held_out = (
        shares @ np.stack([zmap(getattr(each, name).numpy().astype(float), each.train.numpy()) for each in members])
        for name in ("test", "holdout")
    )
    held_out = np.sort(held_out)
    heatmaps = np.tensordot(shares, [selected.heatmaps(each).astype(np.float32) for each in selected.kept], 1)
    rate = max(0.05, 1 / (len(held_out) + 1))
    allowed = int(rate * (len(held_out) + 1) + 1e-9)
    quiet = test <= held_out[len(held_out) - allowed]
    peaks = [float(heat.max()) for heat, is_quiet in zip(heatmaps, quiet, strict=True) if is_quiet]
    expected = float(np.quantile(peaks, 1 - rate))
    assert dsv_plugins.load(selected.path).record.heat_threshold == pytest.approx(expected, rel=1e-5)


def test_the_engine_tests_and_exports_it(selected, larger_task, tmp_path, capfd, caplog):
    engine = Engine(default_root_dir=tmp_path, **QUIET)
    (metrics,) = engine.test(selected.model, datamodule=folder(larger_task), verbose=False)
    assert metrics["image_AUROC"] > 0.9
    capfd.readouterr()
    file = engine.export(selected.model, ExportType.ONNX, export_root=tmp_path, input_size=selected.model.input_size)
    assert "Traceback" not in "".join(capfd.readouterr())
    assert not [record for record in caplog.records if record.exc_info]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert len(session.run(None, {"input": images(3, size=64).float().numpy() / 255})[0]) == 3
    pixels = images(2, size=64).float() / 255
    outputs = dict(
        zip([each.name for each in session.get_outputs()], session.run(None, {"input": pixels.numpy()}), strict=True)
    )
    with torch.no_grad():
        expected = selected.model(pixels)
    np.testing.assert_allclose(outputs["pred_score"].ravel(), expected.pred_score.ravel(), atol=1e-3)
    np.testing.assert_allclose(outputs["anomaly_map"], expected.anomaly_map, atol=5e-3)


def test_it_is_not_trained_again(selected, larger_task, tmp_path):
    with pytest.raises(InputError, match="trained already"):
        Engine(default_root_dir=tmp_path, max_epochs=1, limit_val_batches=0, **QUIET).fit(
            selected.model, datamodule=folder(larger_task)
        )


def test_a_run_without_images_kept_out_decides_by_its_train_images(task, tmp_path):
    found = dsv_anomalib.select(
        "cutpaste",
        folder(task),
        space={"patch_size": [0.2]},
        detector_params={"preset": "quick", "image_size": SIDE, "width": 4, "updates": 2},
        executor="serial",
        holdout=0,
        out=tmp_path / "run",
    )
    with pytest.warns(UserWarning, match="no good images of .* were kept out .*--recalibrate FOLDER"):
        modules = [dsv_anomalib.load(tmp_path / "run"), found.model]
    train = found.evaluation(found.choice.candidate).scores.train.numpy()
    for module in modules:
        assert float(module.post_processor.image_threshold) == pytest.approx(np.quantile(train, 0.99), rel=1e-5)


@pytest.mark.parametrize("tile", [None, 80], ids=["whole", "tiles"])
def test_the_model_of_oblong_images_and_of_tiles_scores_as_the_run(tmp_path, tile):
    for part, seeds in (("train/good", range(16)), ("test/bar", range(20, 24))):
        (tmp_path / part).mkdir(parents=True)
        for seed in seeds:
            pixels = texture(seed, defect=part == "test/bar", size=160)[:96]
            Image.fromarray(pixels).convert("RGB").save(tmp_path / part / f"{seed}.png")
    whole = {"test_split_mode": "none", "val_split_mode": "none", "num_workers": 0}
    found = dsv_anomalib.select(
        datamodule=Folder(name="oblong", root=tmp_path, normal_dir="train/good", **whole),
        unlabelled=tmp_path / "test",
        space={"patch_size": [0.1]},
        detector_params=TINY,
        executor="serial",
        out=tmp_path / "run",
        tile=tile,
    )
    model = dsv_plugins.load(found.path)
    height, width = model.record.image_size
    assert height < width
    assert found.model.input_size == (height, width)
    files = sorted((tmp_path / "test/bar").iterdir())
    images_of_run = [Image.open(file).resize((width, height), Image.Resampling.BILINEAR) for file in files]
    with torch.no_grad():
        predicted = found.model.model(torch.stack([pil_to_tensor(image) for image in images_of_run]).float() / 255)
    torch.testing.assert_close(predicted.pred_score, model.predict(files).scores, rtol=1e-3, atol=1e-3)
    assert predicted.anomaly_map.shape == (4, 1, height, width)


def test_no_detector_named_gives_what_the_command_gives(larger_task, selected, tmp_path):
    settings = ["--grid", "patch_size=0.02,0.2", "--detector-params", '{"image_size": 64}', "--executor", "serial"]
    assert dsv(["select", str(larger_task), *settings, "--out", str(tmp_path / "command")]) == 0
    whole = {"test_split_mode": "none", "val_split_mode": "none", "num_workers": 0}
    found = dsv_anomalib.select(
        datamodule=Folder(name="parts", root=larger_task, normal_dir="train/good", **whole),
        unlabelled=larger_task / "test",
        space={"patch_size": [0.02, 0.2]},
        detector_params=TINY,
        executor="serial",
        out=tmp_path / "module",
    )
    pixels = images(5, size=64)
    scores = [dsv_plugins.load(tmp_path / name).predict(pixels).scores for name in ("command", "module")]
    assert torch.equal(*scores)
    assert [each.candidate.id for each in found.candidates] == [
        each.candidate.id for each in dsv_plugins.Run(tmp_path / "command").candidates
    ]
