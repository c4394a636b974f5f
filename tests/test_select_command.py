"""The commands that do the work, as a user runs them: in processes that are killed, interrupted, called wrongly."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TINY, dsv, make_task, tiny_select


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A task, and the run folder and output of an undisturbed selection on it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    task = make_task(folder / "parts")
    completed = dsv(*tiny_select(task, folder / "run"))
    assert completed.returncode == 0, completed.stderr
    return task, folder / "run", completed.stdout


def journal(run: Path) -> list[dict]:
    path = run / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def finished_candidates(run: Path) -> list[str]:
    return [event["candidate"] for event in journal(run) if event["event"] == "finished"]


def test_the_end_shows_the_table_the_choice_and_what_to_do_next(finished):
    _, run, output = finished
    assert len(re.findall(r"patch_size=0\.\d+", output.split("candidate ")[1])) >= 3
    assert re.search(r"^dsv chooses cutpaste\(patch_size=0\.\d+\), loss ", output, re.MULTILINE)
    assert f"score new images with: dsv score {run}" in output


def test_json_is_one_object_and_progress_goes_elsewhere(finished, tmp_path):
    task, run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    completed = dsv(*tiny_select(task, tmp_path / "run", "--json", "--selector", "dsv,mc"))
    result = json.loads(completed.stdout)
    assert set(result["selected"]) == {"dsv", "mc"}
    assert {"augmentation", "params", "loss"} <= set(result["selected"]["dsv"])
    assert len(result["candidates"]) == 3
    assert {"id", "augmentation", "params", "losses", "status", "seconds"} <= set(result["candidates"][0])
    assert result["run"] == str(tmp_path / "run")


def test_train_and_test_folders_and_a_config_file(finished, tmp_path):
    task, run, _ = finished
    config = tmp_path / "config.yaml"
    config.write_text(
        f"grid: {{patch_size: [0.02, 0.08, 0.32]}}\ndetector_params: {json.dumps(TINY)}\n"
        f"selector: dsv\nout: {tmp_path / 'run'}\n"
    )
    completed = dsv("select", "--train", task / "train/good", "--test", task / "test", "--config", config)
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "run/selection.json").read_bytes() == (run / "selection.json").read_bytes()


def test_dry_run_plans_and_keeps_nothing(finished, tmp_path):
    task, _, _ = finished
    completed = dsv(*tiny_select(task, tmp_path / "run", "--dry-run"))
    assert completed.returncode == 0, completed.stderr
    assert "3 candidates of 12 updates" in completed.stdout
    assert re.search(r"about \d+ s for each", completed.stdout) or "in all" not in completed.stdout
    assert not (tmp_path / "run").exists()
    plan = json.loads(dsv(*tiny_select(task, tmp_path / "run", "--dry-run", "--json")).stdout)
    assert [candidate["params"]["patch_size"] for candidate in plan["candidates"]] == [0.02, 0.08, 0.32]


def test_scores_of_new_images_are_those_of_the_run(finished, tmp_path):
    task, run, _ = finished
    rows = list(csv.DictReader(io.StringIO(dsv("score", run, task / "test").stdout)))
    assert len(rows) == 8
    some = json.loads(dsv("score", run, task / "test/bar/200.png", task / "test/good", "--json").stdout)
    by_file = {row["file"]: float(row["score"]) for row in rows}
    assert len(some) == 5
    for entry in some:
        assert entry["score"] == pytest.approx(by_file[entry["file"]], rel=1e-5)
    completed = dsv("score", run, task / "test", "--out", tmp_path / "scores.csv")
    assert completed.stdout == ""
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 9


def test_a_bad_image_to_score_is_named_or_skipped(finished, tmp_path):
    task, run, _ = finished
    shutil.copytree(task / "test/good", tmp_path / "new")
    (tmp_path / "new/broken.png").write_bytes(b"no image")
    completed = dsv("score", run, tmp_path / "new")
    assert completed.returncode == 2
    assert re.fullmatch(r"dsv score: .*broken\.png cannot be read as an image .*--skip-bad\n", completed.stderr)
    completed = dsv("score", run, tmp_path / "new", "--skip-bad")
    assert completed.returncode == 0
    assert "left out" in completed.stderr
    assert len(completed.stdout.splitlines()) == 5


def bad_call(*arguments: object) -> str:
    completed = dsv(*arguments)
    assert completed.returncode == 2, (completed.stdout, completed.stderr)
    assert len(completed.stderr.splitlines()) == 1
    assert "Traceback" not in completed.stderr
    return completed.stderr


def test_wrong_calls_are_one_line(task, tmp_path):
    run = tmp_path / "run"
    assert "--train" in bad_call("select", "--out", run)
    assert "not both" in bad_call("select", task, "--train", task)
    assert "did you mean 'cutpaste'" in bad_call(*tiny_select(task, run, "--augmentation", "cutpast"))
    assert "not of the form name=value" in bad_call("select", task, "--grid", "patch_size", "--out", run)
    assert "does not take 'depth'" in bad_call("select", task, "--detector-params", "{depth: 3}", "--out", run)
    assert "no folders named train and test" in bad_call("select", tmp_path, "--out", run)
    assert "is not a folder" in bad_call("select", tmp_path / "missing", "--out", run)
    assert "holds no chosen model" in dsv("score", tmp_path, task / "test").stderr


def test_bad_images_are_one_line_or_skipped(task, tmp_path):
    (task / "train/good/000.png").write_bytes(b"no image")
    line = bad_call(*tiny_select(task, tmp_path / "run"))
    assert re.search(r"000\.png cannot be read as an image .*; remove it, or go on .*--skip-bad", line)
    completed = dsv(*tiny_select(task, tmp_path / "run", "--skip-bad", "--json", "--executor", "serial"))
    assert completed.returncode == 0, completed.stderr
    assert any("000.png" in note for note in json.loads(completed.stdout)["notes"])


# ---------------------------------------------------------------------------
# Killed, interrupted, crowded
# ---------------------------------------------------------------------------

KILL_AT_NTH_FLUSH = """
import os, signal, sys
from dsv_plugins import store
from dsv_plugins.cli import main

flush, left = store._flush, int(sys.argv.pop(1))

def counted(path):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    flush(path)

store._flush = counted
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("flushes", [2, 9, 17, 24, 38])
def test_killed_in_the_middle_of_writing_it_goes_on_to_the_same_bytes(finished, tmp_path, flushes):
    """Flushes happen between writing and renaming, so a kill there leaves half-written things behind."""
    task, undisturbed, _ = finished
    arguments = [*map(str, tiny_select(task, tmp_path / "run", "--executor", "serial"))]
    killed = subprocess.run([sys.executable, "-c", KILL_AT_NTH_FLUSH, str(flushes), *arguments], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    before = finished_candidates(tmp_path / "run")
    assert dsv(*arguments).returncode == 0
    after = finished_candidates(tmp_path / "run")
    assert len(after) == len(set(after)), "a finished candidate was trained again"
    assert after[: len(before)] == before
    assert (tmp_path / "run/selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dsv_plugins", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


LONGER = ["--detector-params", json.dumps({**TINY, "updates": 60})]


def test_killed_between_candidates_with_workers_it_goes_on(finished, tmp_path):
    task, _, _ = finished
    arguments = tiny_select(task, tmp_path / "run", *LONGER, "--workers", 2)
    running = start(*arguments)
    wait_until(lambda: finished_candidates(tmp_path / "run"))
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    before = finished_candidates(tmp_path / "run")
    completed = dsv(*arguments)
    assert completed.returncode == 0, completed.stderr
    after = finished_candidates(tmp_path / "run")
    assert len(after) == len(set(after)) == 3
    assert after[: len(before)] == before
    dsv(*tiny_select(task, tmp_path / "whole", *LONGER, "--executor", "serial"))
    assert (tmp_path / "run/selection.json").read_bytes() == (tmp_path / "whole/selection.json").read_bytes()


def test_ctrl_c_leaves_a_run_that_goes_on_and_says_how(finished, tmp_path):
    task, _, _ = finished
    running = start(*tiny_select(task, tmp_path / "run", *LONGER, "--workers", 2))
    wait_until(lambda: any((tmp_path / "run/progress").glob("*")))
    os.killpg(running.pid, signal.SIGINT)  # what a terminal does
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "the same command goes on from there" in output
    assert "Traceback" not in output + errors
    assert dsv(*tiny_select(task, tmp_path / "run", *LONGER)).returncode == 0


def test_the_second_process_on_a_run_is_told_at_once(finished, tmp_path):
    task, _, _ = finished
    arguments = tiny_select(task, tmp_path / "run", "--detector-params", json.dumps({**TINY, "updates": 5000}))
    running = start(*arguments)
    try:
        wait_until(lambda: (tmp_path / "run/study.json").exists())
        second = dsv(*arguments)
        assert second.returncode == 1
        assert second.stderr.startswith("dsv select: another process is working on ")
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


def test_a_full_disk_is_one_line_and_what_is_finished_is_kept(finished, tmp_path):
    task, undisturbed, _ = finished
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=420k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        arguments = tiny_select(task, disk / "run", "--executor", "serial")
        completed = dsv(*arguments)
        assert completed.returncode == 1
        assert re.fullmatch(r"dsv select: .* cannot be written \(.*No space left.*\n", completed.stderr)
        kept = finished_candidates(disk / "run")
        assert kept
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        assert dsv(*arguments).returncode == 0
        assert finished_candidates(disk / "run")[: len(kept)] == kept
        assert len(finished_candidates(disk / "run")) == 3
        assert (disk / "run/selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_run_folder_that_cannot_be_written_is_one_line(task):
    completed = dsv(*tiny_select(task, "/proc/run"))
    assert completed.returncode == 1
    assert re.fullmatch(r"dsv select: /proc/run.* cannot be written \(.*\n", completed.stderr)
