"""A run folder at an address: what is finished gets there, and another machine resumes from it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile

import fsspec
import pytest
from conftest import DETECTOR, TINY, make_task

from dsv_plugins import InputError, Observer, StoreError, Study
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import RunFolder, finished_folder
from dsv_plugins.run.journal import Journal
from dsv_plugins.run.remote_copy import RemoteCopy

SIZES = [0.02, 0.08, 0.32]


class Trained(Observer):
    """Keeps what was trained, and is interrupted after a number of trainings."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.labels: list[str] = []
        self.ids: list[str] = []

    def finished(self, candidate, seconds):
        self.labels.append(str(candidate))
        self.ids.append(candidate.id)
        if len(self.labels) == self.stop_after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The task, and an undisturbed run on it."""
    folder = tmp_path_factory.mktemp("whole")
    task = make_task(folder / "parts")
    return task, study(task, folder / "run").run().path


def study(task, out) -> Study:
    settings = {"grid": {"patch_size": SIZES}, "detector": DETECTOR, "detector_params": TINY, "executor": "serial"}
    return Study(task / "train", task / "test", out=out, **settings)


def machine(monkeypatch, folder):
    """From here on we are another machine, with a disk of its own."""
    monkeypatch.setenv("DSV_RUNS", str(folder))


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_another_machine_resumes_from_the_address(whole, tmp_path, monkeypatch, scheme):
    task, undisturbed = whole
    address = f"memory://{tmp_path.name}/run" if scheme == "memory" else f"file://{tmp_path}/there/run"
    machine(monkeypatch, tmp_path / "one")
    first = Trained(stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        study(task, address).run(first)
    assert first.labels == ["shared start", "cutpaste(patch_size=0.02)", "cutpaste(patch_size=0.08)"]
    shutil.rmtree(tmp_path / "one")
    machine(monkeypatch, tmp_path / "two")
    second = Trained()
    result = study(task, address).run(second)
    # A training is copied before its observers are notified, so the interruption lost none.
    assert second.labels == ["cutpaste(patch_size=0.32)"]
    assert (result.path / "selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()
    files = fsspec.filesystem(scheme)
    root = files._strip_protocol(address)
    assert files.cat_file(f"{root}/selection.json") == (undisturbed / "selection.json").read_bytes()
    copied = {name[len(root) + 1 :] for name in map(files._strip_protocol, files.find(root))}
    passing = {"lock", "progress"}
    local = {file.relative_to(result.path) for file in result.path.rglob("*") if file.is_file()}
    assert copied == {str(name) for name in local if name.parts[0] not in passing}
    events = [json.loads(line)["event"] for line in files.cat_file(f"{root}/journal.jsonl").splitlines()]
    assert events.count("started") == events.count("resumed") == events.count("selected") == 1


def test_what_is_damaged_or_cut_short_at_the_address_is_computed_again(whole, tmp_path, monkeypatch):
    task, undisturbed = whole
    machine(monkeypatch, tmp_path / "one")
    study(task, f"file://{tmp_path}/there").run()
    damaged, cut_short, sound = sorted((tmp_path / "there/candidates").iterdir())
    (damaged / "evaluation.json").write_text("{}")
    (cut_short / "manifest.json").unlink()
    machine(monkeypatch, tmp_path / "two")
    trained = Trained()
    result = study(task, f"file://{tmp_path}/there").run(trained)
    assert sorted(trained.ids) == sorted(folder.name.partition("-")[0] for folder in (damaged, cut_short))
    assert sound.name.partition("-")[0] in {entry.candidate.id for entry in result.candidates}
    assert (result.path / "selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()
    assert (cut_short / "manifest.json").exists()
    assert (damaged / "evaluation.json").read_text() != "{}"


def test_an_address_that_cannot_be_used_is_one_line(whole, tmp_path, monkeypatch):
    task, _ = whole
    machine(monkeypatch, tmp_path / "runs")
    with pytest.raises(
        InputError, match="^nowhere://run cannot be used as a run folder: ValueError: Protocol not known"
    ):
        study(task, "nowhere://run").run()
    (tmp_path / "file").touch()
    with pytest.raises(
        StoreError,
        match="cannot be written .*fix that and run the same command again, which resumes from what is finished",
    ):
        study(task, f"file://{tmp_path}/file/run").run()


EVIL = ["candidates/aa-1/../../../escaped/X", "candidates/../../escaped/manifest.json", "../escaped/X"]


@pytest.mark.parametrize("name", EVIL)
def test_names_at_the_address_that_lead_out_of_the_run_are_refused(tmp_path, name):
    archive = tmp_path / "evil.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("run/candidates/aa-1/manifest.json", json.dumps({"../../../escaped/X": "0"}))
        content.writestr(f"run/{name}", "evil")
    folder = RunFolder(tmp_path / "here" / "run")
    address = f"zip://run::file://{archive}"
    with folder.locked(), pytest.raises(StoreError, match=f"^{re.escape(address)} holds .*outside the run; .*--out"):
        RemoteCopy(address, folder).pull()
    assert not list(tmp_path.rglob("escaped"))
    assert sorted(entry.name for entry in (tmp_path / "here").iterdir()) == ["run"]


@pytest.mark.parametrize("place", ["", "candidates/", "candidates/aa-1/detector/"])
def test_a_manifest_in_another_place_replaces_nothing(tmp_path, place):
    content = b"evil"
    sums = {"X": hashlib.sha256(content).hexdigest()}
    files = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}/run"
    files.pipe({f"{root}/{place}X": content, f"{root}/{place}manifest.json": json.dumps(sums).encode()})
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        with finished_folder(folder.candidate("aa", 1)) as partial:
            (partial / "detector").mkdir()
            (partial / "detector" / "file").write_text("finished")
        RemoteCopy(f"memory:/{root}", folder).pull()
        assert verify(folder.candidate("aa", 1)) is None
    assert not list(tmp_path.rglob("X"))


def test_an_odd_journal_at_the_address_is_merged(tmp_path):
    files = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}/run"
    files.pipe(f"{root}/journal.jsonl", b'\xff\xfe\n{"event": "there"}\n{"event": "cut')
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        Journal(folder.journal).append("here")
        RemoteCopy(f"memory:/{root}", folder).pull()
    assert [event["event"] for event in Journal(folder.journal).events()] == ["there", "here"]
