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
import openvino
import pytest
import torch
from brightness import SETTINGS, BrightnessPlugins, grey_images
from conftest import texture
from PIL import Image
from torch import nn

import dsv_plugins
from dsv_plugins import InputError, Model, PluginError, select
from dsv_plugins.calibration import Calibration
from dsv_plugins.pixels import decode
from dsv_plugins.run import export
from dsv_plugins.run.export import METADATA_FILE, SUFFIXES, Judge, export_judge, export_model

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


SIZES = [(64, 64), (40, 90), (333, 127), (150, 151), (480, 640)]
"""Smaller, larger, and of another shape than what the detectors take."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twenty files of five sizes, every second with a defect."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(20):
        height, width = SIZES[number % len(SIZES)]
        grey = texture(500 + number, defect=number % 2 > 0)
        image = Image.fromarray(np.stack([grey, grey // 2, 255 - grey], axis=2)).resize((width, height))
        image.save(folder / f"{number:02d}.png")
    return sorted(folder.iterdir())


def as_arrays(photos: list[Path]) -> list[np.ndarray]:
    """As OpenCV reads them, with blue first; each is a batch of one image."""
    return [np.asarray(Image.open(file))[None, ..., ::-1].copy() for file in photos]


def check(outputs: list[dict[str, np.ndarray]], model: Model, photos: list[Path]) -> None:
    """Compare what a file says of each photo with what `dsv score` says, which reads the photo by itself."""
    expected = model.predict(photos)
    of_scores = TOLERANCE * float(expected.scores.abs().max())
    for place, found in enumerate(outputs):
        assert found["score"].shape == (1,)
        assert found["score"].dtype == np.float32
        assert found["score"][0] == pytest.approx(float(expected.scores[place]), abs=of_scores)
        assert found["p_value"][0] == pytest.approx(float(expected.p_values[place]))
        assert found["anomalous"].dtype == bool
        assert found["anomalous"][0] == expected.anomalous[place]
        assert ("heatmap" in found) == (expected.heatmaps is not None)
        if expected.heatmaps is not None:
            with Image.open(photos[place]) as image:
                heat = Image.fromarray(expected.heatmaps[place].numpy()).resize(image.size, Image.Resampling.BILINEAR)
            of_heat = TOLERANCE * float(expected.heatmaps.abs().max())
            assert np.abs(found["heatmap"][0] - np.asarray(heat)).max() <= of_heat
    assert len({float(found["score"][0]) for found in outputs}) == len(photos)  # or nothing is told apart here


def test_an_onnx_file_says_of_a_photo_what_the_command_says(model: Model, photos: list[Path], tmp_path: Path):
    """In both runtimes, from the pixels as OpenCV reads them and nothing else."""
    file = tmp_path / "model.onnx"
    names = export_model(model, "onnx", file, colours="BGR")
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]  # all weights inside, and nothing left over
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    assert (taken.name, taken.shape, taken.type) == ("images", list(export.SHAPE), "tensor(uint8)")
    assert names == tuple(output.name for output in session.get_outputs())
    arrays = as_arrays(photos)
    by_onnxruntime = [dict(zip(names, session.run(None, {"images": each}), strict=True)) for each in arrays]
    check(by_onnxruntime, model, photos)
    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    by_openvino = [compiled({"images": each}) for each in arrays]
    check([{name: found[name] for name in names} for found in by_openvino], model, photos)
    several = session.run(["score"], {"images": np.concatenate(arrays[::5])})[0]
    assert several == pytest.approx(np.concatenate([each["score"] for each in by_onnxruntime[::5]]), abs=TOLERANCE)
    check_description(session.get_modelmeta().custom_metadata_map, model, "BGR")


def test_a_program_of_torch_says_what_the_model_says(model: Model, photos: list[Path], tmp_path: Path):
    file = tmp_path / "model.pt2"
    names = export_model(model, "torch", file, pixels="float32")
    extra = {METADATA_FILE: ""}
    program = torch.export.load(file, extra_files=extra).module()
    outputs = [program(torch.from_numpy(each[..., ::-1].copy()).float() / 255) for each in as_arrays(photos)]
    assert {tuple(each) for each in outputs} == {names}
    check([{name: values.numpy() for name, values in each.items()} for each in outputs], model, photos)
    check_description(json.loads(extra[METADATA_FILE]), model, "RGB")


def check_description(found: dict[str, str], model: Model, colours: str) -> None:
    side = model.record.image_size
    assert (found["name"], found["version"]) == ("dsv-plugins", metadata.version("dsv-plugins"))
    assert json.loads(found["made_of"]) == model.record.made_of
    (detector,) = json.loads(found["detectors"])
    assert detector["detector"] == model.record.detector
    assert detector["detector_params"] == model.record.detector_params
    assert found["chosen_by"] == model.record.selector
    assert (json.loads(found["resized_to"]), found["held_out_images"]) == ([side, side], "6")
    assert float(found["false_alarms"]) == pytest.approx(1 / 7)
    assert float(found["threshold"]) == model.calibration.threshold(model.false_alarms)
    assert found["colours"] == colours
    assert json.loads(found["levels_of_16_bits"]) == [0, 65535]


def session_of(judge: Judge) -> onnxruntime.InferenceSession:
    _, content = export_judge(judge.eval(), "onnx", {})
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


class Brightest(nn.Module):
    """A detector whose score is a pixel of what it is given, and whose heatmap is the first channel of it."""

    def forward(self, images):
        return images[:, 2, 1, 3], images[:, 0]


def test_sixteen_bits_are_scaled_and_grey_becomes_colour_as_in_files(tmp_path: Path):
    levels = (300, 4000)
    values = np.random.default_rng(0).integers(0, 5000, (75, 120), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "grey.png")
    expected = decode(tmp_path / "grey.png", (32, 48), levels=levels)
    session = session_of(Judge(Brightest(), (32, 48), pixels="uint16", levels=levels))
    score, heat = session.run(None, {"images": values[None, :, :, None]})
    assert score[0] * 255 == pytest.approx(float(expected[2, 1, 3]))
    assert heat.shape == (1, 75, 120)


def test_pixels_that_cannot_be_are_anomalous(tmp_path: Path):
    judge = Judge(Brightest(), 32, pixels="float32", calibration=Calibration(np.linspace(0, 1, 20)), false_alarms=0.1)
    images = np.full((5, 40, 50, 3), 0.5, dtype=np.float32)
    for image, wrong in zip(images[1:], (np.nan, np.inf, -1, 255), strict=True):
        image[3, 4, 1] = wrong
    content = export_judge(judge.eval(), "onnx", {})[1]
    (tmp_path / "model.onnx").write_bytes(content)
    compiled = openvino.Core().compile_model(tmp_path / "model.onnx", "CPU")({"images": images})
    of_onnxruntime = onnxruntime.InferenceSession(content).run(None, {"images": images})
    for score, p_value, anomalous, _ in (of_onnxruntime, compiled.to_tuple()):
        assert score.tolist() == pytest.approx([0.5, *[np.inf] * 4], abs=0.01)
        assert p_value[1:] == pytest.approx(1 / 21)
        assert anomalous.tolist() == [False, True, True, True, True]


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
    batch = images(range(500, 503), uncalibrated.record.image_size)
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
