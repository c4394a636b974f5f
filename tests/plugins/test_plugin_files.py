"""Plugins in one file, in a module, or as a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DETECTOR, TINY, dsv, dsv_here, make_task

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    InputError,
    SelectorPlugin,
    UnknownPluginError,
    build_registry,
    load,
    select,
)

FOG = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from dsv_plugins import AugmentationPlugin, hookimpl

@dataclass
class Fog:
    density: float = 0.5

    def __call__(self, images: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
        return images + (1 - images) * self.density * torch.rand(images.shape, generator=generator)

@hookimpl
def augmentation():
    return AugmentationPlugin("fog", Fog, "White noise", {"density": [0.2, 0.6]})
"""
DETECTORS = """
from dsv_plugins import DetectorEncoderPlugin, hookimpl
from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet18_settings import cutpaste_resnet18

def make(**settings):
    return cutpaste_resnet18(**settings)

@hookimpl
def detector_encoder():
    return DetectorEncoderPlugin("mine", make)
"""


@pytest.fixture
def fog(tmp_path) -> Path:
    file = tmp_path / "fog.py"
    file.write_text(FOG)
    return file


def selection(task: Path, run: Path, *more: object) -> list[object]:
    options = ["--detector-params", json.dumps(TINY), "--augmentation", "fog", "--out", run]
    return (
        ["select", task, *options, *more]
        if "--detector" in more
        else ["select", task, "--detector", DETECTOR, *options, *more]
    )


def losses(result) -> list[object]:
    return [entry.losses for entry in result.candidates]


def test_a_file_serves_a_selection_in_worker_processes(fog, tmp_path):
    task = make_task(tmp_path / "parts")
    ended = dsv(*selection(task, tmp_path / "run", "--plugins", fog.name, "--workers", 2, "--json"), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {entry["augmentation"] for entry in json.loads(ended.stdout)["candidates"]} == {"fog"}
    assert json.loads((tmp_path / "run/model/model.json").read_text())["plugins"] == [str(fog)]


def test_an_edited_file_is_trained_again_with_the_reason(fog, tmp_path):
    task = make_task(tmp_path / "parts")
    arguments = selection(task, tmp_path / "run", "--plugins", fog, "--executor", "serial")
    assert dsv_here(*arguments).returncode == 0
    again = dsv_here(*arguments)
    assert "every candidate is trained already" in again.stdout + again.stderr
    assert "trained again" not in again.stdout + again.stderr
    fog.write_text(FOG.replace("self.density *", "self.density * 0.5 *"))
    edited = dsv_here(*arguments)
    told = edited.stdout + edited.stderr
    assert "2 of 2 trained before, trained again: the code of the augmentation fog (fog.py) has changed" in told
    assert len(list((tmp_path / "run/candidates").glob("[!.]*"))) == 4


@pytest.mark.parametrize("given", ["file", "path", "module", "variable"])
def test_ways_to_give_a_file(fog, given, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    if given == "variable":
        monkeypatch.setenv("DSV_PLUGINS", str(fog))
    plugins = {"file": str(fog), "path": fog, "module": "fog", "variable": ()}[given]
    registry = build_registry(plugins)
    assert registry.create(AugmentationPlugin, "fog", {"density": 0.3}).density == 0.3
    assert build_registry((plugins, plugins) if plugins else str(fog)).failures == ()  # given twice, it is one


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def (", "SyntaxError"),
        ("x = 1", "implements no hook"),
        ("raise SystemExit(3)", "3"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named(tmp_path, content, reason):
    (tmp_path / "bad.py").write_text(content)
    (failure,) = build_registry(tmp_path / "bad.py").failures
    assert str(failure).startswith("bad.py: ")
    assert reason in str(failure)
    ended = dsv_here("check", "fog", "--plugins", tmp_path / "bad.py")
    assert ended.returncode == 2
    assert reason in ended.stderr


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"/dev/zero cannot be read \(it is a device\)"):
        build_registry("/dev/zero")
    with pytest.raises(InputError, match="gone.py cannot be read"):
        build_registry(tmp_path / "gone.py")
    for command in (["plugins"], ["check", "fog"], ["score", tmp_path, tmp_path]):
        ended = dsv_here(*command, "--plugins", tmp_path / "gone.py")
        assert ended.returncode == 2 or "run folder" in ended.stderr or "no chosen model" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_an_unknown_name_says_both_ways(task, tmp_path):
    ended = dsv_here(*selection(task, tmp_path / "run"))
    assert "install its package, or give its file with --plugins or DSV_PLUGINS" in ended.stderr


def test_records_and_objects_stand_where_names_do(fog, tmp_path):
    task = make_task(tmp_path / "parts")
    module = build_registry(fog)
    record = module.get(AugmentationPlugin, "fog")
    settings = {"detector": DETECTOR, "detector_params": TINY, "executor": "serial", "confidence": False}
    by_file = select(task / "train", task / "test", augmentation="fog", plugins=fog, out=tmp_path / "a", **settings)
    by_record = select(task / "train", task / "test", augmentation=record, out=tmp_path / "b", **settings)
    others = AugmentationPlugin("fog-two", record.factory, space={"density": [0.2, 0.6]})
    by_list = select(task / "train", task / "test", augmentation=[record, others], out=tmp_path / "c", **settings)
    assert losses(by_file) == losses(by_record) == losses(by_list)[:2] == losses(by_list)[2:]

    class Selector:
        def losses(self, evaluations):
            return [float(index) for index, _ in enumerate(evaluations)]

    settings["detector"] = DetectorEncoderPlugin(
        "copied", build_registry().get(DetectorEncoderPlugin, DETECTOR).factory
    )
    chosen = select(
        task / "train",
        task / "test",
        augmentation=record,
        selector=SelectorPlugin("first", Selector),
        out=tmp_path / "d",
        **settings,
    )
    assert chosen.choice.candidate.params == {"density": 0.2}
    assert chosen.choice.candidate.detector == "copied"


def test_a_model_knows_the_plugin_that_it_needs(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(DETECTORS)
    task, run = make_task(tmp_path / "parts"), tmp_path / "run"
    arguments = ["select", task, "--detector", "mine", "--detector-params", json.dumps(TINY), "--executor", "serial"]
    grid = ["--grid", "patch_size=0.1", "--out", run, "--plugins", file]
    assert dsv_here(*arguments, *grid).returncode == 0
    assert dsv_here("report", run).returncode == 0  # which needs no plugin

    missing = dsv_here("score", run, task / "test")
    assert missing.returncode != 0
    assert "needs the detector 'mine' of mine.py" in missing.stderr
    assert f"give --plugins {file}" in missing.stderr
    with pytest.raises(UnknownPluginError, match="needs the detector 'mine'"):
        load(run)

    same = dsv_here("score", run, task / "test", "--plugins", file)
    assert same.returncode == 0
    assert "was trained with" not in same.stderr
    file.write_text(DETECTORS.replace("def make", "# edited\ndef make"))
    edited = dsv_here("score", run, task / "test", "--plugins", file)
    assert edited.returncode == 0
    assert "the detector 'mine' was trained with mine.py [" in edited.stderr
    assert edited.stdout == same.stdout
    file.write_text(DETECTORS.replace("cutpaste_resnet18(**settings)", "cutpaste_resnet18(**{**settings, 'width': 3})"))
    broken = dsv_here("score", run, task / "test", "--plugins", file)
    assert broken.returncode != 0
    assert len(broken.stderr.splitlines()) == 1
    assert "was trained with mine.py [" in broken.stderr


WITH_HELPER = FOG.replace("import torch", "import torch\nfrom fog_helper import FACTOR").replace(
    "self.density *", "FACTOR *"
)
IDENTITY = """
import sys
from dsv_plugins import AugmentationPlugin, build_registry
registry = build_registry(sys.argv[1])
print(registry.failures, registry.identity(AugmentationPlugin, "fog"))
"""


def test_a_file_may_import_files_beside_it_and_their_code_counts_too(tmp_path):
    (tmp_path / "fog.py").write_text(WITH_HELPER)
    (tmp_path / "elsewhere").mkdir()
    identities = []
    for factor in (0.5, 0.5, 0.6):
        (tmp_path / "fog_helper.py").write_text(f"FACTOR = {factor}")
        command = [sys.executable, "-P", "-c", IDENTITY, str(tmp_path / "fog.py")]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "elsewhere")
        assert ended.stdout.startswith("() "), ended.stdout + ended.stderr
        identities.append(ended.stdout)
    first, same, edited = identities
    assert first == same != edited


def test_who_gives_a_file_that_fails_reads_why_and_nothing_else(tmp_path):
    (tmp_path / "tup.py").write_text(FOG.replace("[0.2, 0.6]", "(0.2, 0.6)").replace("fog", "tup"))
    ended = dsv_here("check", "tup", "--plugins", tmp_path / "tup.py")
    assert ended.stderr.startswith(
        "dsv check: no plugin is named 'tup', since one failed to load: tup.py: augmentation 'tup'"
    )
    assert "known:" not in ended.stderr


def test_hooks_in_a_class_of_a_file_are_told_to_move(tmp_path):
    (tmp_path / "inside.py").write_text(
        "from dsv_plugins import hookimpl\nclass Inside:\n    @hookimpl\n    def search(self): ..."
    )
    (failure,) = build_registry(tmp_path / "inside.py").failures
    assert "(those of the class Inside are not reached: move them out of it)" in str(failure)


@pytest.mark.parametrize(
    ("name", "suggested"), [("cutpast", "cutpaste"), ("scal", None), ("noise-patch", None), ("listsp", None)]
)
def test_only_similar_names_are_suggested(name, suggested):
    with pytest.raises(UnknownPluginError) as error:
        build_registry().get(AugmentationPlugin, name)
    assert ("did you mean" in str(error.value)) == (suggested is not None)
    assert ("give its file with --plugins" in str(error.value)) == (suggested is None)
