"""`dsv watch`: every image once, whole ones only, whatever happens in between."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import dsv_here, texture
from PIL import Image

from dsv_plugins import InputError, Model
from dsv_plugins.serving.watch import COLUMNS, Watch


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    return tmp_path / "inbox"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "scores.csv"


def rows(out: Path) -> list[dict[str, str]]:
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def names(out: Path) -> list[str]:
    return [row["file"] for row in rows(out)]


def test_every_image_once_with_the_numbers_of_predict(
    calibrated_model: Model, photos: list[Path], inbox: Path, out: Path
):
    notes: list[str] = []
    watch = Watch(calibrated_model, inbox, out, notes.append)
    assert out.read_text() == f"{','.join(COLUMNS)}\n"
    for place, photo in enumerate(photos):
        shutil.copy(photo, inbox)
        os.utime(inbox / photo.name, (place, place))  # rows are in the order in which images were made
    assert [watch.judge_new() for _ in range(3)] == [0, 6, 0]
    expected = calibrated_model.predict(photos)
    assert names(out) == [photo.name for photo in photos]
    assert [float(row["score"]) for row in rows(out)] == pytest.approx(expected.scores.tolist(), abs=1e-4)
    assert [float(row["p_value"]) for row in rows(out)] == expected.p_values.tolist()
    assert [row["verdict"] == "anomalous" for row in rows(out)] == expected.anomalous.tolist()
    assert rows(out)[1]["modified"] == "1970-01-01T00:00:01.000000+00:00"
    assert notes == []
    again = Watch(calibrated_model, inbox, out, notes.append)  # as after a stop
    (inbox / "deep").mkdir()
    shutil.copy(photos[0], inbox / "deep")
    os.utime(inbox / photos[0].name, (9, 9))  # another image under an old name
    assert [again.judge_new() for _ in range(3)] == [0, 2, 0]
    assert names(out)[6:] == [photos[0].name, f"deep/{photos[0].name}"]


def test_it_says_once_that_the_images_have_changed(calibrated_model: Model, inbox: Path, out: Path):
    for number in range(60):
        Image.fromarray(texture(300 + number, size=70) // 2).save(inbox / f"{number:02d}.png")
    notes: list[str] = []
    watch = Watch(calibrated_model, inbox, out, notes.append)
    assert [watch.judge_new() for _ in range(2)] == [0, 60]
    (note,) = notes
    assert note.startswith("the images have changed, or more than 30% of them are anomalous: their brightness")


def test_a_name_is_no_formula_and_no_other_row(calibrated_model: Model, photos: list[Path], inbox: Path, out: Path):
    for name in ("=1+1.png", "a\nb,c.png"):
        shutil.copy(photos[0], inbox / name)
    for _ in range(2):
        watch = Watch(calibrated_model, inbox, out, print)
        watch.judge_new()
        watch.judge_new()
        assert sorted(names(out)) == ["./=1+1.png", "a\\nb,c.png"]


def test_a_file_is_left_until_it_is_whole(calibrated_model: Model, photos: list[Path], inbox: Path, out: Path):
    notes: list[str] = []
    watch = Watch(calibrated_model, inbox, out, notes.append)
    content, target = photos[0].read_bytes(), inbox / "slow.png"
    for end in (0, 300, 600, 900):
        target.write_bytes(content[:end])
        assert watch.judge_new() == 0
    target.write_bytes(content)
    assert [watch.judge_new() for _ in range(3)] == [0, 1, 0]
    assert (names(out), notes) == (["slow.png"], [])


def test_a_bad_file_is_named_once_and_the_others_are_judged(
    calibrated_model: Model, photos: list[Path], inbox: Path, out: Path
):
    notes: list[str] = []
    shutil.copy(photos[0], inbox / "a.png")
    (inbox / "b.png").write_bytes(b"no image")
    (inbox / "notes.txt").write_text("no image either")
    (inbox / "c.png").symlink_to(inbox / "nowhere.png")
    shutil.copy(photos[1], inbox / "d.png")
    watch = Watch(calibrated_model, inbox, out, notes.append)
    assert [watch.judge_new() for _ in range(3)] == [0, 3, 0]
    assert {row["file"]: row["verdict"] for row in rows(out)} == {
        "a.png": "normal",
        "b.png": "unreadable",
        "d.png": "anomalous",
    }
    assert len(notes) == 1
    assert notes[0].startswith(f"{inbox / 'b.png'} cannot be read as an image")
    Watch(calibrated_model, inbox, out, notes.append).judge_new()
    assert len(rows(out)) == 3


def test_a_row_that_a_kill_cut_off_is_written_again(
    calibrated_model: Model, photos: list[Path], inbox: Path, out: Path
):
    for photo in photos:
        shutil.copy(photo, inbox)
    for watch in [Watch(calibrated_model, inbox, out, print)] * 2:
        watch.judge_new()
    whole = out.read_bytes()
    for length in (len(whole) - 1, whole.rindex(b"\n", 0, -1) + 3):
        out.write_bytes(whole[:length])
        watch = Watch(calibrated_model, inbox, out, print)
        assert [watch.judge_new() for _ in range(2)] == [0, 1]
        assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_another_file_is_not_written_to(calibrated_model: Model, inbox: Path, out: Path):
    out.write_text("file,score\nx.png,1\n")
    with pytest.raises(InputError, match="has other columns than file,modified,score,p_value,verdict"):
        Watch(calibrated_model, inbox, out, print)
    assert out.read_text() == "file,score\nx.png,1\n"


def test_the_command_until_it_is_interrupted(calibrated_run: Path, photos: list[Path], inbox: Path, out: Path):
    command = [sys.executable, "-m", "dsv_plugins", "watch", calibrated_run, inbox, "--out", out, "--every", 0.1]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline() == f"dsv watch: waits for images in {inbox}; Ctrl-C ends it\n"
        shutil.copy(photos[1], inbox)
        end = time.monotonic() + 60
        while not rows(out) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors == "dsv watch: interrupted; run the same command again\n"
    assert [row["verdict"] for row in rows(out)] == ["anomalous"]


def test_a_wrong_call_is_one_line(calibrated_run: Path, tmp_path: Path):
    for arguments, reason in (
        ((tmp_path / "none", "--out", tmp_path / "scores.csv"), "is not a folder"),
        ((tmp_path, "--out", tmp_path / "none" / "scores.csv"), "its folder is not there"),
    ):
        completed = dsv_here("watch", calibrated_run, *arguments)
        assert completed.returncode == 2
        assert reason in completed.stderr
        assert completed.stderr.count("\n") == 1
