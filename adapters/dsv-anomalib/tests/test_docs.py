"""The page of the documentation, run as a reader would."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import NARROW, make_task

from dsv_anomalib.cli import main

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-with-anomalib.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_task(tmp_path / "parts", train=24)


@pytest.mark.usefixtures("parts")
def test_the_python_of_the_page_runs(capsys):
    scripts = [body for kind, body in BLOCKS if kind == "python"]
    assert len(scripts[0].splitlines()) < 25  # one screen, from good images to an exported model
    names = {}
    for script in scripts:
        exec(compile(script, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert "cutpaste(patch_size=" in printed
    assert "anomalib-perlin(blend_factor=" in str(names["draem"].choice.candidate)
    assert printed.count("image_AUROC") == 2
    assert Path("exported/weights/onnx/model.onnx").is_file()
    maps = [image.anomaly_map.shape for batch in names["predictions"] for image in batch]
    assert maps == [(64, 64)] * 8


def test_the_configs_of_the_page_end_in_an_exported_model(parts, capsys):
    for kind, body in BLOCKS:
        if kind == "yaml":
            name = re.match(r"# (\S+)\n", body)[1]
            Path(name).write_text(body)
    (command,) = (body for kind, body in BLOCKS if kind == "bash")
    program, *arguments = shlex.split(command)
    assert program == "dsv-anomalib"
    # As the page says it, but for a narrow model in this process.
    Path("small.yaml").write_text(json.dumps({"model": {"class_path": "anomalib.models.Draem", "init_args": NARROW}}))
    arguments += ["--config", "small.yaml", "--image_size", "32", "--executor", "serial"]
    assert main(arguments) == 0
    printed, progress = capsys.readouterr()
    assert "anomalib-perlin(blend_factor=0.8) done in" in progress
    assert "cosine chooses anomalib-perlin(blend_factor=" in printed
    exported = Path(re.search(r"exported: (\S+)", printed)[1])
    assert exported.is_file()
    assert exported.is_relative_to(parts.parent / "selection")


FOG = """
from dsv_plugins import AugmentationPlugin, hookimpl

def fog(density):
    return lambda images, *, generator: images * (1 - density) + density

@hookimpl
def augmentation():
    return AugmentationPlugin("fog", fog, space={"density": [0.2, 0.6]})
"""


def test_a_plugin_in_a_file_serves_a_selection(parts, capsys):
    Path("fog.py").write_text(FOG)
    data = ["--data", "anomalib.data.Folder", "--data.name=parts", f"--data.root={parts}", "--data.num_workers=0"]
    data += ["--data.normal_dir=train/good", "--data.normal_test_dir=test/good", "--data.abnormal_dir=test/bar"]
    model = ["--model", json.dumps({"class_path": "anomalib.models.Draem", "init_args": NARROW}), "--image_size=32"]
    options = ["--augmentation=fog", "--plugins=fog.py", "--updates=2", "--executor=serial", "--out=fogged"]
    assert main([*model, *data, *options, "--export=[]"]) == 0
    assert "cosine chooses fog(density=" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("Patchcore", "dsv-anomalib: Patchcore has no augmentation to select"),
        ('{"init_args": {}}', "dsv-anomalib: model is {'init_args': {}}; give a name such as Draem, or a mapping"),
    ],
)
def test_errors_take_one_line(model, reason, parts, capsys):
    data = ["--data", "anomalib.data.Folder", "--data.name=parts", f"--data.root={parts}"]
    data += ["--data.normal_dir=train/good", "--data.abnormal_dir=test/bar"]
    assert main(["--model", model, *data]) == 2
    assert capsys.readouterr().err.startswith(reason)
