"""Random faults, by the hundred: nothing may be lost, wrong or unclear."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bad_inputs import bad_calls
from bad_plugins import BAD_PLUGINS
from conftest import journal
from ground import Ground, select_arguments
from hostile import install
from hostile import select_arguments as hostile_arguments
from tally import DSV, HANG_SECONDS, Ended, Tally, call, call_apart

pytestmark = pytest.mark.storm

KILLS, DAMAGES, DISKS = 50, 100, 10
PYTHON_STARTS = 0.25
"""Seconds in which Python itself starts, and nothing of ours can handle a signal."""


SEED = int(os.environ.get("STORM_SEED", "0"))


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("storm"))


@pytest.fixture
def dice(request):
    """Draws that depend on the seed and on the test only."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture
def tally(request, record_property):
    """Counts what came of the faults of one storm; the test fails if something was lost, wrong or unclear."""
    made = Tally(f"{request.node.name.removeprefix('test_').replace('_', ' ')} of seed {SEED}")
    yield made
    record_property("summary", made.summary())
    assert not made.complaints, "\n".join(made.complaints)


def finished_in(run: Path) -> list[str]:
    with contextlib.suppress(ValueError, KeyError, OSError):
        return [event["candidate"] for event in journal(run, "finished")]
    return []


def lost_between(before: list[str], after: list[str]) -> str | None:
    if after[: len(before)] != before:
        return "finished work is gone"
    return "finished work was done again" if len(set(after)) < len(after) else None


def test_kills(ground, dice, tally):
    duration = PYTHON_STARTS + 8
    for number in range(KILLS):
        shutil.rmtree(ground.run, ignore_errors=True)
        arguments = select_arguments(ground.task, ground.run, "--executor", "processes", "--workers", 2)
        whom = dice.choice(["driver", "worker", "group"])
        sent = dice.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        moment = dice.uniform(PYTHON_STARTS, duration)
        running = subprocess.Popen(
            [*DSV, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(moment)
        kill(running, whom, sent, dice)
        fault = f"{number}: {sent.name} to the {whom} after {moment:.2f} s"
        try:
            ended = Ended(*_communicated(running))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            tally.count(fault, unclear="it hangs")
            continue
        unclear = ended.unclear(*(() if whom == "worker" else (sent,)))
        if whom == "worker" and ended.code != 0:
            unclear = unclear or f"the death of a worker ended the command: {ended.err!r:.300}"
        before = finished_in(ground.run)
        resumed = call(*select_arguments(ground.task, ground.run))
        unclear = unclear or resumed.unclear() or (resumed.code and f"it does not resume: {resumed.err!r:.300}")
        is_same = resumed.code != 0 or (ground.run / "selection.json").read_bytes() == ground.selection
        lost = lost_between(before, finished_in(ground.run))
        tally.count(fault, lost=lost, wrong=None if is_same else "another selection", unclear=unclear)


def _communicated(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = running.communicate(timeout=HANG_SECONDS)
    return running.returncode, out, err


def kill(running: subprocess.Popen[str], whom: str, sent: signal.Signals, dice) -> None:
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        if whom == "group":
            os.killpg(running.pid, sent)
        elif whom == "driver":
            os.kill(running.pid, sent)
        elif children := psutil.Process(running.pid).children(recursive=True):
            os.kill(dice.choice(children).pid, sent)


def damage(file: Path, how: str, dice) -> None:
    content = bytearray(file.read_bytes())
    if how == "delete":
        file.unlink()
    elif how == "truncate":
        file.write_bytes(content[: dice.randrange(len(content))] if content else b"")
    elif how == "replace":
        file.write_bytes(dice.randbytes(max(1, len(content))))
    elif content:
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        file.write_bytes(content)


def test_damages(ground, dice, tally):
    ground.restore()
    assert call("report", ground.run).code == 0
    page = (ground.run / "report.html").read_bytes()
    scored = call("score", ground.run, ground.task / "test")
    assert scored.code == 0, scored.err
    files = sorted(file.relative_to(ground.run) for file in ground.run.rglob("*") if file.is_file())
    for number in range(DAMAGES):
        ground.restore()
        name, how = dice.choice(files), dice.choice(["flip", "truncate", "delete", "replace"])
        if not (ground.run / name).exists():  # the report, which the undisturbed run was copied without
            shutil.copy(ground.pristine / "selection.json", ground.run / name)
        damage(ground.run / name, how, dice)
        before = finished_in(ground.run)
        again = call("report", ground.run)
        shown = (ground.run / "report.html").read_bytes() if again.code == 0 else page
        answered = call("score", ground.run, ground.task / "test")
        selected = call(*select_arguments(ground.task, ground.run))
        wrong = None
        if shown != page and name.name != "journal.jsonl":  # the journal is expendable, and so is the chart of it
            wrong = "another report"
        if answered.code == 0 and answered.out != scored.out:
            wrong = "other scores"
        if selected.code == 0 and (ground.run / "selection.json").read_bytes() != ground.selection:
            wrong = "another selection"
        hit = {name.parts[1].rpartition("-")[0]} if name.parts[0] == "candidates" else set()
        trained = set(finished_in(ground.run)[len(before) :]) - hit
        lost = f"{len(trained)} candidates that were whole were trained again" if trained and before else None
        unclear = again.unclear() or answered.unclear() or selected.unclear()
        tally.count(f"{number}: {how} of {name}", lost=lost, wrong=wrong, unclear=unclear)


def test_full_disks(ground, dice, tally, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    for number in range(DISKS):
        size = int(40 * 25 ** ((number + dice.random()) / DISKS))
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk], capture_output=True)
        if mounted.returncode:
            pytest.skip("a small file system can be mounted by root only")
        try:
            first = call_apart(*select_arguments(ground.task, disk / "run"))
            before = finished_in(disk / "run")
            subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
            second = call_apart(*select_arguments(ground.task, disk / "run"))
            unclear = first.unclear() or second.unclear() or (second.code and "it does not resume")
            is_same = second.code != 0 or (disk / "run/selection.json").read_bytes() == ground.selection
            lost = lost_between(before, finished_in(disk / "run"))
            wrong = None if is_same else "another selection"
            tally.count(f"a disk of {size} KiB", lost=lost, wrong=wrong, unclear=unclear)
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


def test_bad_inputs(ground, dice, tally, tmp_path):
    ground.restore()
    for fault, arguments in bad_calls(ground, dice, tmp_path):
        ended = call(*arguments)
        wrong = None
        if ended.code == 0 and "--json" in arguments:
            wrong = _invalid(ended.out)
        tally.count(fault, wrong=wrong, unclear=ended.unclear())


def _invalid(text: str) -> str | None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} in JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    return None


def test_bad_plugins(ground, tally, tmp_path):
    undisturbed = json.loads(_with_plugin(tmp_path / "honest", ground, "", ()).out)["selected"]["separability"]
    for number, (fault, code, arguments) in enumerate(BAD_PLUGINS):
        ended = _with_plugin(tmp_path / str(number), ground, code, arguments)
        wrong = None
        if ended.code == 0:
            wrong = _invalid(ended.out)
            is_honest = not {"--augmentation", "--detector"} & set(arguments)
            chosen = {} if wrong else json.loads(ended.out)["selected"]
            if is_honest and "separability" in chosen and chosen["separability"] != undisturbed:
                wrong = "the choice of another selector changed"
        tally.count(fault, wrong=wrong, unclear=ended.unclear())


def _with_plugin(folder: Path, ground, code: str, arguments) -> Ended:
    """Run a selection with a plugin; in a process of its own if the plugin may kill that."""
    environment = install(folder, code)
    command = hostile_arguments(ground.task, folder / "run", *arguments)
    if "processes" in arguments:
        return call_apart(*command, **environment)
    before = [*sys.path]
    sys.path.insert(0, str(folder))
    try:
        return call(*command)
    finally:
        sys.path[:] = before
        for name in ("honest_plugin", "hostile_plugin"):
            sys.modules.pop(name, None)
