"""The chosen detector as one file: ONNX and torch.export say what the model itself says."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from brightness import SETTINGS, BrightnessPlugins, grey_images
from conftest import texture
from torch import nn

import dsv_plugins
from dsv_plugins import InputError, Model, PluginError, select
from dsv_plugins.run import export
from dsv_plugins.run.export import METADATA_FILE, SUFFIXES, export_model
from dsv_plugins.run.model import Prediction

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
"""Of scores and heatmaps, relative to the largest: features are rounded to half precision on both ways, and a sum in
another order may round one of them to its neighbour."""

PATCHES = ("patch-fusion", {"image_size": 64})
RESNET = ("cutpaste-resnet18", {"image_size": 32, "width": 2, "updates": 12, "shared_updates": 8, "batch_size": 4})
VARIANTS = [(*PATCHES, {}), *((*RESNET, {"density": density}) for density in ("gaussian", "kde"))]


def images(seeds: range, size: int = 64, *, defect: bool = False) -> torch.Tensor:
    pixels = np.stack([texture(seed, defect=defect, size=size) for seed in seeds])
    return torch.from_numpy(pixels)[:, None].expand(-1, 3, -1, -1).contiguous()


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: "-".join([variant[0], *variant[2].values()]))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    detector, params, others = request.param
    size = params["image_size"]
    result = select(
        images(range(24), size),
        images(range(100, 108), size, defect=True),
        grid={"patch_size": [0.05]},
        detector=detector,
        detector_params={**params, **others},
        holdout=0.25,
        executor="serial",
        out=tmp_path_factory.mktemp("run") / "run",
    )
    return dsv_plugins.load(result.path)


@pytest.fixture(scope="module")
def uncalibrated(tmp_path_factory: pytest.TempPathFactory) -> Model:
    detector, params, *_ = RESNET
    size = params["image_size"]
    result = select(
        images(range(8), size),
        images(range(100, 104), size),
        grid={"patch_size": [0.05]},
        detector=detector,
        detector_params=params,
        holdout=0,
        executor="serial",
        out=tmp_path_factory.mktemp("run") / "run",
    )
    return dsv_plugins.load(result.path)


def new_images(model: Model, count: int) -> torch.Tensor:
    """Good and defective ones, in floating point as the files take them."""
    size = model.record.image_size
    both = torch.cat([images(range(500, 500 + count), size), images(range(600, 600 + count), size, defect=True)])
    return both[torch.arange(2 * count).view(2, count).T.flatten()][-count:].float() / 255


def check(outputs: dict[str, np.ndarray], expected: Prediction) -> None:
    wanted = {"score": expected.scores, "heatmap": expected.heatmaps, "p_value": expected.p_values}
    for name, values in wanted.items():
        assert (values is None) == (name not in outputs), name
        if values is not None:
            assert outputs[name].dtype == np.float32
            assert outputs[name].shape == values.shape
            assert np.abs(outputs[name] - values.numpy()).max() <= TOLERANCE * float(values.abs().max()), name
    assert (expected.anomalous is None) == ("anomalous" not in outputs)
    if expected.anomalous is not None:
        assert outputs["anomalous"].dtype == bool
        assert outputs["anomalous"].tolist() == expected.anomalous.tolist()


def test_an_onnx_file_says_what_the_model_says(model: Model, tmp_path: Path):
    file = tmp_path / "model.onnx"
    names = export_model(model, "onnx", file)
    assert [each.name for each in tmp_path.iterdir()] == [
        "model.onnx"
    ]  # with all weights inside, and nothing left over
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    side = model.record.image_size
    (taken,) = session.get_inputs()
    assert (taken.name, taken.shape, taken.type) == ("images", ["batch", 3, side, side], "tensor(float)")
    assert names == tuple(output.name for output in session.get_outputs())
    for count in (1, 5):
        batch = new_images(model, count)
        outputs = dict(zip(names, session.run(None, {"images": batch.numpy()}), strict=True))
        check(outputs, model.predict(batch))
    check_description(session.get_modelmeta().custom_metadata_map, model)


def test_a_program_of_torch_says_what_the_model_says(model: Model, tmp_path: Path):
    file = tmp_path / "model.pt2"
    names = export_model(model, "torch", file)
    extra = {METADATA_FILE: ""}
    program = torch.export.load(file, extra_files=extra).module()
    for count in (1, 5):
        batch = new_images(model, count)
        outputs = program(batch)
        assert tuple(outputs) == names
        check({name: values.numpy() for name, values in outputs.items()}, model.predict(batch))
    check_description(json.loads(extra[METADATA_FILE]), model)


def check_description(found: dict[str, str], model: Model) -> None:
    side = model.record.image_size
    assert found["name"] == "dsv-plugins"
    assert found["version"] == metadata.version("dsv-plugins")
    assert found["detector"] == model.record.detector
    assert (found["augmentation"], json.loads(found["params"])) == ("cutpaste", {"patch_size": 0.05})
    assert json.loads(found["detector_params"]) == model.record.detector_params
    assert found["selector"] == model.record.selector
    assert (found["image_size"], found["held_out_images"]) == (str(side), "6")
    assert float(found["false_alarms"]) == pytest.approx(1 / 7)
    assert float(found["threshold"]) == model.calibration.threshold(model.false_alarms)
    assert "from 0 to 1" in found["input"]


@pytest.mark.parametrize("file_format", SUFFIXES)
def test_without_held_out_images_there_is_no_verdict(uncalibrated: Model, file_format: str, tmp_path: Path):
    assert export_model(uncalibrated, file_format, tmp_path / "model") == ("score",)


def test_exporting_is_silent_and_leaves_the_process_as_it_was(uncalibrated: Model, tmp_path: Path, capfd, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_model(uncalibrated, "onnx", tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert logging.root.manager.disable == logging.NOTSET
    assert torch.is_grad_enabled()


def test_the_module_is_a_copy(uncalibrated: Model):
    batch = new_images(uncalibrated, 3)
    before = uncalibrated.detector.score(batch)
    module = uncalibrated.detector.as_module()
    for parameter in module.parameters():
        parameter.zero_()
    assert torch.equal(uncalibrated.detector.score(batch), before)


@pytest.mark.parametrize("package", export.ONNX_PACKAGES)
def test_a_missing_package_is_one_line(uncalibrated: Model, package: str, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(InputError, match=rf"needs the package {package}; pip install 'dsv-plugins\[onnx\]'"):
        export_model(uncalibrated, "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose detector comes from another plugin."""
    train, test = (grey_images(8, seed) for seed in (0, 1))
    plugins = (BrightnessPlugins(),)
    result = select(train, test, out=tmp_path_factory.mktemp("run") / "run", plugins=plugins, **SETTINGS)
    return dsv_plugins.load(result.path, plugins=plugins)


def test_a_detector_without_a_module_is_named(foreign: Model, tmp_path: Path):
    with pytest.raises(InputError, match="the detector 'brightness' cannot be exported; its plugin has no as_module"):
        export_model(foreign, "torch", tmp_path / "model.pt2")


def test_a_module_that_cannot_be_traced_is_named(foreign: Model, tmp_path: Path, monkeypatch):
    class Whimsical(nn.Module):
        def forward(self, images):
            return (torch.ones(len(images)) if images.mean().item() > 0.5 else torch.zeros(len(images)),)

    monkeypatch.setattr(foreign.detector, "as_module", Whimsical, raising=False)
    (tmp_path / "model.pt2").write_text("older")
    cause = "cannot be exported: the number of images cannot vary because of .* the line 'return .*item"
    with pytest.raises(PluginError, match=f"the detector 'brightness' {cause}"):
        export_model(foreign, "torch", tmp_path / "model.pt2")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("model.pt2", "older")]
