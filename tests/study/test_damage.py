"""A run folder that was damaged: no command takes it for sound, each says what to do, and a selection restores it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from brightness import SETTINGS, Brightness, BrightnessPlugins, grey_images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsv_plugins
from dsv_plugins import DetectorEncoderPlugin, DSVError, Observer, Run, StoreError, hookimpl, report
from dsv_plugins.cli import main
from dsv_plugins.errors import one_line
from dsv_plugins.run.folder import MANIFEST, RunFolder, checksum
from dsv_plugins.run.records import write_checksummed
from dsv_plugins.run.run import claim

ADVICE = "run the same `dsv select` again"


class Places(Brightness):
    """Says how bright each place is, too."""

    def heatmap(self, images):
        images = images if images.is_floating_point() else images.float() / 255
        return torch.nn.functional.avg_pool2d(images.mean(1, keepdim=True), 4)[:, 0]


class Plugins(BrightnessPlugins):
    @hookimpl
    def detector_encoder(self):
        return DetectorEncoderPlugin("brightness", Places)


class Trained(Observer):
    """Counts the trainings."""

    def __init__(self) -> None:
        self.count = 0

    def finished(self, candidate, seconds):
        self.count += 1


def select(out: Path) -> tuple[Run, int]:
    """The result of the study, and how many candidates were trained for it."""
    trained = Trained()
    details = {**SETTINGS, "plugins": (Plugins(),), "out": out}
    return dsv_plugins.select(grey_images(20, 0), grey_images(8, 1), observer=trained, **details), trained.count


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with everything that the report can show."""
    result, _ = select(tmp_path_factory.mktemp("sound") / "run")
    aucs = {entry.candidate.id: 0.75 for entry in result.candidates}
    write_checksummed(result.path / "aucs.json", {"candidates": aucs, "chosen": {"cosine": 0.75}})
    return result.path


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "run")


def evaluated(run: Path) -> str:
    """The folder of a candidate, below the run."""
    return next(str(file.parent.relative_to(run)) for file in run.glob("candidates/*/evaluation.json"))


def flip(file: Path) -> None:
    """Change one bit: of the last byte, or of a leading digit in the first half of JSON, which is another value."""
    content = bytearray(file.read_bytes())
    half = content[: len(content) // 2].decode("latin-1")
    digits = [place for place in range(1, len(half)) if half[place].isdigit() and not half[place - 1].isdigit()]
    content[digits[-1] if file.suffix == ".json" else -1] ^= 1
    file.write_bytes(content)


READ_BY_REPORT = ["evaluation.json", "evaluation.safetensors", "preview.npy", "heatmaps.npy"]


@pytest.mark.parametrize("name", [*READ_BY_REPORT, "data/images.json", "data/test.npy", "selection.json"])
def test_a_flipped_bit_is_one_line_in_the_report_and_a_selection_restores_it(sound, run, name, capsys):
    file = run / (evaluated(run) if name in READ_BY_REPORT else "") / name
    flip(file)
    assert main(["report", str(run)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dsv report: {file} is damaged")
    assert ADVICE in line
    select(run)
    assert file.read_bytes() == (sound / file.relative_to(run)).read_bytes() or "evaluation" in name  # it has times
    assert main(["report", str(run)]) == 0


def test_aucs_are_checksummed_too(run):
    flip(run / "aucs.json")
    with pytest.raises(StoreError, match=r"aucs\.json is damaged .*; remove it, or run the same `dsv demo`"):
        report.build(Run(run))


def test_evaluations_are_checked_when_they_are_read_later(run):
    result, _ = select(run)
    candidate = result.choice.candidate
    folder = RunFolder(run).candidate(candidate.id, None)
    flip(folder / "heatmaps.npy")
    with pytest.raises(StoreError, match=r"heatmaps\.npy is damaged; run the same"):
        result.heatmaps(candidate)
    assert len(result.evaluation(candidate).scores.test) == 8, "only what is read is checked"
    flip(folder / "evaluation.safetensors")
    with pytest.raises(StoreError, match=r"evaluation\.safetensors is damaged; run the same"):
        result.evaluation(candidate)


def test_the_report_misses_the_choice(run):
    shutil.rmtree(run / "candidates")
    with pytest.raises(StoreError, match=f"no evaluation of the candidate that cosine chose; {ADVICE}"):
        report.build(Run(run))


def readers(run: Path) -> list[Callable[[], object]]:
    """Everything that reads a run folder."""
    return [lambda: select(run), lambda: report.build(Run(run)), lambda: dsv_plugins.load(run, plugins=(Plugins(),))]


@pytest.mark.parametrize("format_", [3, 99, None, "three"])
def test_another_format_is_one_line_everywhere(run, format_):
    study = json.loads((run / "study.json").read_text())
    (run / "study.json").write_text(json.dumps(study | {"format": format_}))
    for read in readers(run):
        with pytest.raises(StoreError, match=f"has the format {format_!r}, and this version reads 5; .*another --out"):
            read()
    for command in (["report", str(run)], ["score", str(run), str(run)], ["export", str(run)]):
        assert main(command) != 0


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"format": 5}', None])
def test_a_damaged_study_is_one_line_everywhere_and_loses_nothing(run, content):
    if content is None:
        flip(run / "study.json")
    else:
        (run / "study.json").write_bytes(content)
    for read in readers(run):
        with pytest.raises(StoreError, match=r"study\.json is damaged .*; remove it and run the same `dsv select`"):
            read()
    (run / "study.json").unlink()
    assert select(run)[1] == 0


def changed_on_purpose(run: Path, **changes: object) -> None:
    """Change the first candidate in `selection.json` as somebody would who knows of the checksum."""
    content = json.loads((run / "selection.json").read_text())
    del content["checksum"]
    content["candidates"][0].update(changes)
    write_checksummed(run / "selection.json", content)


@pytest.mark.parametrize("updates", ["2/../../../outside", "all", 2.5, [1]])
def test_updates_that_are_no_number_lead_nowhere(run, updates):
    shutil.copytree(run / evaluated(run), run.parent / "outside")
    changed_on_purpose(run, updates=updates)
    with pytest.raises(StoreError, match=r"selection\.json is damaged \(Expected `int \| null`"):
        report.build(Run(run))


@pytest.mark.parametrize("candidate", ["../../elsewhere", {"augmentation": "../../elsewhere"}, 5, None])
def test_a_candidate_that_is_none_leads_nowhere(run, candidate):
    changed_on_purpose(run, candidate=candidate)
    with pytest.raises(StoreError, match=r"selection\.json is damaged"):
        report.build(Run(run))


def test_a_choice_without_a_loss_is_no_choice(run):
    content = json.loads((run / "selection.json").read_text())
    del content["checksum"]
    for entry in content["candidates"]:
        entry["losses"] = {}
    write_checksummed(run / "selection.json", content)
    with pytest.raises(StoreError, match=r"selection\.json is damaged \(a choice has no loss\); run the same"):
        report.build(Run(run))


ODD_LINES = [b"\xff\xfe", b"5", b"{}", b"[", b"[" * 100_000, b'{"event": "finished"}', b'{"event": ["started"]}']
ODD_LINES += [b'{"event": "finished", "candidate": "x", "updates": 1, "seconds": NaN}', b'{"event": "star']


def test_an_odd_journal_locks_no_work_out(sound, run):
    with (run / "journal.jsonl").open("ab") as journal:
        journal.write(b"\n".join(ODD_LINES))
    report.build(Run(run))
    result, trained = select(run)
    assert trained == 0
    (note,) = (note for note in result.notes if "journal" in note)
    assert note == f"{run / 'journal.jsonl'} has {len(ODD_LINES)} lines that cannot be read; they are skipped"
    assert (run / "selection.json").read_bytes() == (sound / "selection.json").read_bytes()


# ---------------------------------------------------------------------------
# Anything in place of a file
# ---------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
JSON_FILES = ["study.json", "selection.json", "aucs.json", "data/images.json", "model/model.json", "evaluation.json"]
MANIFESTS = ["data/manifest.json", "model/manifest.json", "manifest.json"]
fuzzed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def copy(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for all examples: each leaves it as it was."""
    return shutil.copytree(sound, tmp_path_factory.mktemp("fuzz") / "run")


def read_everything(run: Path) -> list[object]:
    """All that the commands read, as values that can be compared."""
    found = Run(run, (Plugins(),))
    claim(found.folder, found.study.identity)
    for entry in found.stored:
        artifacts = found.artifacts(entry.candidate)
        artifacts.load(), artifacts.arrays(), artifacts.preview(), artifacts.heatmaps()
    read = [found.selection, found.trainings, found.aucs, found.files, found.test_images.tobytes()]
    return [*read, found.model.record, found.model.false_alarms]


@contextlib.contextmanager
def replaced(file: Path, content: bytes) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


def place(run: Path, name: str) -> Path:
    return run / (evaluated(run) if name in ("evaluation.json", "manifest.json") else "") / name


@fuzzed
@given(
    st.sampled_from([*JSON_FILES, *MANIFESTS]),
    st.binary(max_size=50) | values.map(lambda value: json.dumps(value).encode()),
)
def test_anything_in_place_of_a_file_is_noticed(copy, name, content):
    with replaced(place(copy, name), content), pytest.raises(DSVError) as error:
        read_everything(copy)
    assert one_line(str(error.value)).startswith(str(copy))


@fuzzed
@given(st.lists(st.binary(max_size=50) | values.map(lambda value: json.dumps(value).encode()), max_size=5))
def test_anything_in_the_journal_is_no_error(copy, lines):
    expected = read_everything(copy)
    before = (copy / "journal.jsonl").read_bytes()
    with replaced(copy / "journal.jsonl", b"\n".join([before, *lines])):
        assert read_everything(copy) == expected


def mutated(content: Any, draw: st.DataObject) -> Any:
    """The content with another value in one place."""
    if isinstance(content, dict) and content and draw.draw(st.booleans()):
        name = draw.draw(st.sampled_from(sorted(content)))
        return content | {name: mutated(content[name], draw)}
    if isinstance(content, list) and content and draw.draw(st.booleans()):
        index = draw.draw(st.integers(0, len(content) - 1))
        return [*content[:index], mutated(content[index], draw), *content[index + 1 :]]
    return draw.draw(values)


@fuzzed
@given(st.sampled_from(JSON_FILES), st.data())
def test_any_value_behind_a_right_checksum_is_read_or_refused(copy, name, data):
    file = place(copy, name)
    content = json.loads(file.read_text())
    content.pop("checksum", None)
    other = mutated(content, data)
    with replaced(file, b""), contextlib.ExitStack() as restored:
        if file.parent == copy:
            write_checksummed(file, other if isinstance(other, dict) else {"content": other})
        else:
            file.write_text(json.dumps(other))
            sums = json.loads((file.parent / MANIFEST).read_text()) | {file.name: checksum(file)}
            restored.enter_context(replaced(file.parent / MANIFEST, json.dumps(sums).encode()))
        with contextlib.suppress(DSVError):
            read_everything(copy)
