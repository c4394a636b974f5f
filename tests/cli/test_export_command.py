"""`dsv export`: what it writes, what it prints, and how it ends."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
from conftest import dsv_here

from dsv_plugins.cli import main
from dsv_plugins.run.export import METADATA_FILE
from dsv_plugins.run.model import NO_CALIBRATION

TAKES = "takes uint8 images in RGB, (batch, height, width, channels), of any size"


@pytest.fixture
def run(finished: tuple[Path, Path, str], tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return shutil.copytree(finished[1], tmp_path / "run")


@pytest.fixture
def calibrated(run: Path, finished: tuple[Path, Path, str]) -> Path:
    """A finished run in which the good test images decide."""
    assert main(["score", str(run), "--recalibrate", str(finished[0] / "test/good")]) == 0
    return run


def test_an_onnx_file_goes_into_the_run_folder_by_default(run: Path):
    completed = dsv_here("export", run)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == f"model: {run / 'model.onnx'}; {TAKES}; returns score\n"
    assert completed.stderr == f"note: no p-values and no verdicts: {NO_CALIBRATION}\n"
    session = onnxruntime.InferenceSession(run / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["pixels"] == "uint8"


def test_a_program_of_torch_at_the_rate_that_was_asked_for(calibrated: Path, tmp_path: Path, capsys):
    capsys.readouterr()
    options = ["--format", "torch", "--pixels", "float32", "--colours", "BGR", "--false-alarms", "0.4"]
    assert main(["export", str(calibrated), *options]) == 0
    printed = capsys.readouterr()
    returns = "returns score, p_value, anomalous; false-alarm rate 0.4"
    takes = TAKES.replace("uint8", "float32").replace("RGB", "BGR")
    assert printed.out == f"model: {calibrated / 'model.pt2'}; {takes}; {returns}\n"
    assert printed.err == ""
    extra = {METADATA_FILE: ""}
    torch.export.load(calibrated / "model.pt2", extra_files=extra)
    description = json.loads(extra[METADATA_FILE])
    assert (description["false_alarms"], description["held_out_images"]) == ("0.4", "4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "no-such-folder/model.onnx"], "its folder is not there; make it first"),
        (["--false-alarms", "1.5"], "--false-alarms is 1.5; give a rate between 0 and 1"),
        (["--false-alarms", "0.1"], "no false-alarm rate can be promised: no good images were held out"),
        (["--format", "caffe"], "caffe"),
    ],
)
def test_a_wrong_call_is_one_line(options: list[str], message: str, finished: tuple[Path, Path, str], capsys):
    try:
        code = main(["export", str(finished[1]), *options])
    except SystemExit as exit_:  # as argparse ends
        code = exit_.code
    printed = capsys.readouterr().err
    assert code == 2
    assert message in printed
    assert printed.count("\n") == 1


def test_missing_packages_are_one_line(run: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main(["export", str(run)]) == 2
    assert capsys.readouterr().err == (
        "dsv export: an ONNX file needs the package onnxscript; pip install 'dsv-plugins[onnx]'"
        ", or give --format torch\n"
    )
