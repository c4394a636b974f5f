"""A study that is finished: what is stored is taken as it is, if nothing has changed, and never otherwise."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

import pytest
from conftest import DETECTOR, TINY, journal, make_task, tiny_select
from PIL import Image

from dsv_plugins import AugmentationPlugin, Observer, Study, report
from dsv_plugins.builtin.augmentations import cut as augmentations
from dsv_plugins.run.records import SelectionRecord, read_checksummed, write_checksummed
from dsv_plugins.study import finished as finished_module
from dsv_plugins.study import workflow

HEAVY = ("torch", "torchvision", "lightning", "timm", "scipy.stats", "sklearn", "pandas")


def tiny(task: Path, out: Path, **settings) -> Study:
    usual = {"detector": DETECTOR, "detector_params": TINY, "executor": "serial", "selector": ["dsv", "mc"]}
    grid = {"patch_size": [0.02, 0.32]}
    return Study(task / "train", task / "test", out=out, **{"grid": grid, **usual, **settings})


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A task with a finished study, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    make_task(folder / "parts")
    return folder, tiny(folder / "parts", folder / "run").run()


@pytest.fixture
def copied(original, tmp_path, monkeypatch):
    """The task, a copy of its run folder, and a list that gets an entry each time that candidates are judged."""
    folder, _ = original
    shutil.copytree(folder / "run", tmp_path / "run")
    judged = []
    judge_pool = workflow.judge_pool
    monkeypatch.setattr(workflow, "judge_pool", lambda *args, **named: judged.append(1) or judge_pool(*args, **named))
    return folder / "parts", tmp_path / "run", judged


class Recorder(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def started(self, run, candidates):
        self.events.append(("started", [str(candidate) for candidate in candidates]))

    def dispatching(self, run, candidates, updates):
        self.events.append(("dispatching", len(candidates), updates))

    def noted(self, message):
        self.events.append(("noted", message))

    def selected(self, selector, candidate, loss):
        self.events.append(("selected", selector, str(candidate), loss))


def test_what_is_taken_is_what_would_be_computed(original, copied):
    _, result = original
    task, run, judged = copied
    quick, slow = Recorder(), Recorder()
    taken = tiny(task, run).run(quick)
    assert judged == []
    (run / "finished.json").unlink()
    computed = tiny(task, run).run(slow)
    assert judged == [1]
    for is_note in (True, False):  # notes of the images come before the start if the images are opened
        of_kind = [[event for event in each.events if (event[0] == "noted") == is_note] for each in (quick, slow)]
        assert of_kind[0] == of_kind[1]
    assert taken.as_json() == computed.as_json()
    assert list(taken.candidates) == list(computed.candidates)
    assert (taken.selected, taken.kept, taken.warnings) == (computed.selected, computed.kept, computed.warnings)
    assert taken.as_json() == {**result.as_json(), "run": str(run)}
    assert report.table(taken) == report.table(result)
    told = [event["event"] for event in journal(run) if event["event"] != "noted"]
    assert told[-4:] == ["resumed", "selected"] * 2


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite(path: Path) -> None:
    """Write another selection, with the checksum that it has."""
    selection = read_checksummed(path, SelectionRecord)
    write_checksummed(path, asdict(replace(selection, warnings=["another"])))


CHANGES = {
    "a candidate is damaged": lambda run: damage(next(run.glob("candidates/*/evaluation.safetensors"))),
    "a candidate is missing": lambda run: shutil.rmtree(next(run.glob("candidates/*"))),
    "the model is damaged": lambda run: damage(next(run.glob("model/*.safetensors"))),
    "the model is missing": lambda run: shutil.rmtree(run / "model"),
    "the stored images are damaged": lambda run: damage(run / "data/test.npy"),
    "the selection is damaged": lambda run: damage(run / "selection.json"),
    "the selection is of another study": lambda run: rewrite(run / "selection.json"),
    "the record is damaged": lambda run: damage(run / "finished.json"),
    "the record is no object": lambda run: (run / "finished.json").write_text("[]"),
    "the record has other fields": lambda run: write_checksummed(run / "finished.json", {"depends_on": "all"}),
    "the journal is damaged": lambda run: (run / "journal.jsonl").open("a").write("{\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_in_the_run_folder_is_computed_again(original, copied, change):
    task, run, judged = copied
    CHANGES[change](run)
    result = tiny(task, run).run()
    assert judged == [1]
    assert result.as_json()["selected"] == original[1].as_json()["selected"]
    assert (run / "selection.json").read_bytes() == (original[0] / "run/selection.json").read_bytes()
    if "journal" not in change:
        tiny(task, run).run()
        assert judged == [1], "it is whole again"


@pytest.mark.parametrize("setting", [{"selector": ["mc", "dsv"]}, {"keep": "ensemble"}, {"confidence": False}])
def test_other_settings_are_another_result(copied, setting):
    task, run, judged = copied
    tiny(task, run, **setting).run()
    assert judged == [1]
    tiny(task, run).run()
    assert judged == [1, 1], "the first settings again are not what was computed last"
    tiny(task, run, timeout=1000.0, executor="processes", workers=2).run()
    assert judged == [1, 1], "how it is executed does not matter"


def test_another_image_is_another_result(copied, tmp_path):
    task, _, judged = copied
    shutil.copytree(task, tmp_path / "parts")
    study = tiny(tmp_path / "parts", tmp_path / "other")
    study.run()
    study.run()
    assert judged == [1]
    file = next((tmp_path / "parts/test").rglob("*.png"))
    Image.open(file).rotate(180).save(file)
    study.run()
    assert judged == [1, 1]
    file.unlink()
    study.run()
    assert judged == [1, 1, 1]


def test_other_code_is_another_result(copied, monkeypatch):
    task, run, judged = copied
    monkeypatch.setattr(finished_module, "own_source", lambda: "edited")
    tiny(task, run).run()
    assert judged == [1]
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0" if name == "scipy" else version(name))
    tiny(task, run).run()
    assert judged == [1, 1]


def test_a_plugin_that_was_edited_is_another_result(copied, tmp_path):
    task, _, judged = copied
    cutpaste = next(each for each in augmentations.augmentation() if each.name == "cutpaste")

    def study(ratio: float) -> Study:
        def edited(patch_size: float):
            return cutpaste.factory(patch_size=patch_size * ratio)

        record = AugmentationPlugin("edited", edited, "", {"patch_size": [0.1]})
        return tiny(task, tmp_path / "edited", augmentation=record, grid={})

    for ratio, expected in ((1.0, 1), (1.0, 1), (0.5, 2)):
        study(ratio).run()
        assert len(judged) == expected


def test_a_candidate_that_failed_is_tried_again(copied, tmp_path):
    task, _, judged = copied

    def fails(patch_size: float):
        def augment(images, *, generator):
            if patch_size > 0.2:
                raise ValueError("too large")
            return images * (1 - patch_size)

        return augment

    record = AugmentationPlugin("fails", fails, "", {"patch_size": [0.1, 0.3]})
    for _ in range(2):
        result = tiny(task, tmp_path / "fails", augmentation=record, grid={}).run()
        assert [entry.status for entry in result.candidates] == ["finished", "failed"]
    assert judged == [1, 1]


def test_a_finished_selection_needs_no_library_that_takes_seconds(finished, tmp_path):
    task, run, output = finished
    shutil.copytree(run, tmp_path / "run")
    program = (
        "import json, sys; from dsv_plugins.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    command = [str(each) for each in tiny_select(task, tmp_path / "run")]
    completed = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stderr.splitlines()[-1]) == []
    expected = output.replace(str(run), str(tmp_path / "run"))
    table = expected[expected.index("candidate ") :]
    assert completed.stdout.endswith(table)
    assert (tmp_path / "run/selection.json").read_bytes() == (run / "selection.json").read_bytes()
