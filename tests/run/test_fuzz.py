"""Random files in place of ours: what reads a file of a run finds what was written, or names the file in one line."""

from __future__ import annotations

import json
import shutil

import pytest
from conftest import dsv_here
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv_plugins import load
from dsv_plugins.errors import DSVError
from dsv_plugins.run import artifacts
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import MANIFEST, RunFolder, checksum
from dsv_plugins.run.journal import Journal
from dsv_plugins.run.records import read_model, read_selection, read_study, write_checksummed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
MANY = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def evaluation_of(run: RunFolder) -> artifacts.EvaluationFolder:
    return artifacts.EvaluationFolder(sorted((run.path / "candidates").iterdir())[0])


READERS = {
    "study.json": read_study,
    "selection.json": read_selection,
    "model/model.json": read_model,
    "data/images.json": lambda run: artifacts.read_image_index(run.path / "data"),
    "data/test.npy": lambda run: artifacts.open_images(run.path / "data", "test").tobytes(),
    "candidates/*/evaluation.json": lambda run: evaluation_of(run).load().candidate,
    "candidates/*/evaluation.safetensors": lambda run: evaluation_of(run).load().scores.test.tolist(),
    "candidates/*/preview.npy": lambda run: evaluation_of(run).preview().tobytes(),
}
"""What reads each file of a run folder."""


@pytest.fixture
def run(finished, tmp_path):
    return RunFolder(shutil.copytree(finished[1], tmp_path / "run"))


def found(run: RunFolder, name: str):
    (file, *_) = sorted(run.path.glob(name))
    return file


def mutated(data: st.DataObject, content: bytes) -> bytes:
    """The content with some bytes replaced, left out or added."""
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    return content[:start] + data.draw(st.binary(max_size=12)) + content[end:]


def altered(data: st.DataObject, content):
    """The content with one value, at a random place, replaced by another."""
    if isinstance(content, dict) and content and data.draw(st.integers(0, 9)):
        key = data.draw(st.sampled_from(sorted(content)))
        return {**content, key: altered(data, content[key])}
    if isinstance(content, list) and content and data.draw(st.integers(0, 9)):
        place = data.draw(st.integers(0, len(content) - 1))
        return [*content[:place], altered(data, content[place]), *content[place + 1 :]]
    return data.draw(JSON)


@pytest.mark.parametrize("name", READERS)
@MANY
@given(data=st.data())
def test_damaged_files_are_refused_or_unchanged(run, name, data):
    file = found(run, name)
    content, expected = file.read_bytes(), READERS[name](run)
    file.write_bytes(mutated(data, content))
    value, error = expected, None
    try:
        value = READERS[name](run)
    except DSVError as raised:
        error = str(raised)
    finally:
        file.write_bytes(content)
    assert value == expected
    assert error is None or (str(run.path) in error and "\n" not in error)


@MANY
@given(data=st.data())
def test_damaged_manifests_are_noticed(run, data):
    file = run.model / MANIFEST
    content = file.read_bytes()
    changed = mutated(data, content)
    file.write_bytes(changed)
    problem = verify(run.model)
    file.write_bytes(content)
    if problem is None:  # as after a change of white space
        assert json.loads(changed) == json.loads(content)
    else:
        assert str(run.model) in problem


@MANY
@given(content=st.binary() | st.lists(JSON).map(lambda lines: "\n".join(map(json.dumps, lines)).encode()))
def test_any_journal_is_read(tmp_path, content):
    file = tmp_path / "journal.jsonl"
    file.write_bytes(content)
    journal = Journal(file)
    assert all(isinstance(event, dict) for event in journal.events())
    assert len(journal.events()) + journal.unreadable_lines() <= len(content.splitlines())
    journal.seconds()


def replace_with_right_checksums(run: RunFolder, name: str, content: object) -> None:
    """Write a file as somebody would who wants to be believed."""
    file = found(run, name)
    if not isinstance(content, dict):
        content = {"content": content}
    if name in ("study.json", "selection.json"):
        write_checksummed(file, content)
        return
    file.write_text(json.dumps(content))
    manifest = file.parent / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), file.name: checksum(file)}))


@pytest.mark.storm
@pytest.mark.parametrize("name", [name for name in READERS if name.endswith("json")])
@settings(MANY, max_examples=40)
@given(data=st.data())
def test_commands_survive_files_that_only_look_right(run, finished, name, data):
    file = found(run, name)
    before = {path: path.read_bytes() for path in (file, file.parent / MANIFEST) if path.exists()}
    content = {key: value for key, value in json.loads(before[file]).items() if key != "checksum"}
    replace_with_right_checksums(run, name, altered(data, content))
    try:
        for arguments in (["report", run.path], ["score", run.path, finished[0] / "test"]):
            ended = dsv_here(*arguments)
            assert "Traceback" not in ended.stderr
            told = [line for line in ended.stderr.splitlines() if line.startswith("dsv")]
            assert ended.returncode == 0 or len(told) == 1, ended.stderr
    finally:
        for path, old in before.items():
            path.write_bytes(old)


def test_the_undisturbed_run_is_read(run):
    assert all(reader(run) is not None for reader in READERS.values())
    assert load(run.path).record.image_size
