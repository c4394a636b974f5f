"""A selection that is killed, interrupted or crowded, in real processes and on a real full disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import TINY, dsv, journal, tiny_select


def finished_candidates(run: Path) -> list[str]:
    return [event["candidate"] for event in journal(run, "finished")]


KILL_AT_NTH_FLUSH = """
import os, signal, sys
from dsv_plugins.run import folder as store
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


@pytest.mark.parametrize(("flushes", "trained"), [(2, 0), (17, 0), (38, 2)])
def test_killed_in_the_middle_of_writing_it_resumes_to_the_same_bytes(finished, tmp_path, flushes, trained):
    """Flushes happen between writing and renaming: the images, the first and the last candidate are half-written."""
    task, undisturbed, _ = finished
    arguments = [*map(str, tiny_select(task, tmp_path / "run"))]
    killed = subprocess.run([sys.executable, "-c", KILL_AT_NTH_FLUSH, str(flushes), *arguments], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "run").rglob(".*.partial"))) == 1
    before = finished_candidates(tmp_path / "run")
    assert len(before) == trained
    assert dsv(*arguments).returncode == 0
    assert not list((tmp_path / "run").rglob(".*.partial"))
    after = finished_candidates(tmp_path / "run")
    assert len(after) == len(set(after)) == 3, "a finished candidate was trained again"
    assert after[: len(before)] == before
    assert (tmp_path / "run/selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()


MARK = "DSV_TEST_MARK"


def start(*arguments: object, mark: Path | str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dsv_plugins", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, MARK: str(mark)},
    )


def wait_until(condition, running: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait for something that a process does; fail if it ends without."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


TWO_WORKERS = ["--executor", "processes", "--workers", 2]
LONGER = ["--detector-params", json.dumps({**TINY, "updates": 60})]


def test_killed_between_candidates_with_workers_it_resumes(finished, tmp_path):
    task, _, _ = finished
    arguments = tiny_select(task, tmp_path / "run", *LONGER, *TWO_WORKERS)
    running = start(*arguments)
    wait_until(lambda: finished_candidates(tmp_path / "run"), running)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    before = finished_candidates(tmp_path / "run")
    completed = dsv(*arguments)
    assert completed.returncode == 0, completed.stderr
    after = finished_candidates(tmp_path / "run")
    assert len(after) == len(set(after)) == 3
    assert after[: len(before)] == before
    dsv(*tiny_select(task, tmp_path / "whole", *LONGER))
    assert (tmp_path / "run/selection.json").read_bytes() == (tmp_path / "whole/selection.json").read_bytes()


def test_ctrl_c_leaves_a_run_that_can_be_resumed_and_says_how(finished, tmp_path):
    task, _, _ = finished
    running = start(*tiny_select(task, tmp_path / "run", *LONGER, *TWO_WORKERS))
    wait_until(lambda: any((tmp_path / "run/progress").glob("*")), running)
    os.killpg(running.pid, signal.SIGINT)  # what a terminal does
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "what is finished is kept in" in output
    assert "Traceback" not in output + errors
    assert dsv(*tiny_select(task, tmp_path / "run", *LONGER)).returncode == 0


MOMENTS = {
    "imports": lambda run: not run.exists(),
    "images": lambda run: (run / "study.json").exists(),
    "training": lambda run: any((run / "progress").glob("*")),
    "report": lambda run: (run / "selection.json").exists(),
}


def processes_with(mark: Path) -> list[psutil.Process]:
    """The living processes of a command: it and all that it started have its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def handles_signals(process: int) -> bool:
    """Whether a process handles SIGTERM, as the command does from its first line on."""
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process}/status").read_text())
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_at_any_moment_is_quiet_and_leaves_nothing_running(finished, tmp_path, moment, sent):
    task, undisturbed, _ = finished
    arguments = tiny_select(task, tmp_path / "run", *TWO_WORKERS)
    running = start(*arguments, mark=tmp_path)
    assert running.pid in {process.pid for process in processes_with(tmp_path)}
    wait_until(lambda: MOMENTS[moment](tmp_path / "run"), running)
    wait_until(lambda: handles_signals(running.pid), running)  # before, Python itself starts, and nothing of ours runs
    os.killpg(running.pid, sent)
    output, errors = running.communicate(timeout=60)
    assert running.returncode in {128 + sent} | ({0} if moment == "report" else set())
    assert "Traceback" not in output + errors
    assert "leaked" not in errors
    if running.returncode:
        assert re.fullmatch(r"dsv( select)?: interrupted; run the same command again\n", errors)
    deadline = time.monotonic() + 10
    while processes_with(tmp_path):
        assert time.monotonic() < deadline, "something is left running"
        time.sleep(0.1)
    if moment == "training":
        assert "what is finished is kept in" in output
        assert dsv(*arguments).returncode == 0
        assert (tmp_path / "run/selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()


INTERRUPTED_WHILE_A_CLASS_IS_MADE = """
import atexit
atexit.register(print, "exit functions run")
exec("import signal; signal.raise_signal(signal.SIGINT)")  # dataclasses are made by exec, too
"""


def test_an_interrupt_in_code_that_is_made_on_the_fly_ends_with_the_same_exit_code(tmp_path):
    (tmp_path / "plugin.py").write_text(INTERRUPTED_WHILE_A_CLASS_IS_MADE)
    running = start("plugins", "--plugins", tmp_path / "plugin.py")
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors == "dsv plugins: interrupted; run the same command again\n"
    assert output == "exit functions run\n"


def test_killing_the_workers_at_the_end_does_not_hold_the_command_up(finished, tmp_path):
    task, _, _ = finished
    running = start(*tiny_select(task, tmp_path / "run", *TWO_WORKERS))
    wait_until(lambda: (tmp_path / "run/selection.json").exists(), running)
    for worker in psutil.Process(running.pid).children(recursive=True):
        worker.kill()
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")


def test_a_second_process_on_a_run_fails_at_once(finished, tmp_path):
    task, _, _ = finished
    arguments = tiny_select(task, tmp_path / "run", "--detector-params", json.dumps({**TINY, "updates": 5000}))
    running = start(*arguments)
    try:
        wait_until(lambda: (tmp_path / "run/study.json").exists(), running)
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
        arguments = tiny_select(task, disk / "run")
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
