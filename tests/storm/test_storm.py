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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from bad_inputs import bad_calls
from bad_names import bad_name, escaped, formula, scores_in
from bad_paths import bad_paths
from bad_plugins import BAD_PLUGINS
from bad_surroundings import bad_limit, limited
from conftest import journal
from ground import Ground, select_arguments
from hostile import AUGMENTATION, install
from hostile import select_arguments as hostile_arguments
from PIL import Image
from scipy.ndimage import gaussian_filter
from states import STATES
from tally import DSV, HANG_SECONDS, Ended, Tally, call, call_apart

from dsv_plugins.data.dataset import prepare

pytestmark = pytest.mark.storm

KILLS, DAMAGES, DISKS, NAMES, COPIES, LIMITS, ROUNDS = 50, 100, 10, 60, 20, 20, 10
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


def test_names(ground, dice, tally, tmp_path, monkeypatch):
    ground.restore()
    monkeypatch.chdir(tmp_path)  # a path that begins with the name
    images = sorted((ground.task / "test").rglob("*.png"))
    expected = {image: scores_in(call("score", ground.run, image), None, as_json=False) for image in images}
    for number in range(NAMES):
        name, image = bad_name(dice, number), dice.choice(images)
        shutil.copy(image, name)
        as_json, is_bad = dice.random() < 0.3, dice.random() < 0.2
        out = dice.choice([None, Path(f"{number}.out")])
        more = [
            *(["--json"] if as_json else []),
            *(["--out", out] if out else []),
            *dice.choice([[], ["--heatmaps", "heat"]]),
        ]
        if is_bad:
            Path(name).write_bytes(b"no image")
        ended = call("score", ground.run, f"./{name}" if name.startswith("-") else name, *more)
        text = out.read_text() if out and out.exists() else ended.out
        wrong = outside = None
        if ended.code == 0 and scores_in(ended, out, as_json=as_json) != expected[image]:
            wrong = "another score"
        elif ended.code == 0 and as_json and json.loads(text)[0]["file"] != name:
            wrong = "another name"
        elif ended.code and not is_bad:
            wrong = f"no score: {ended.err!r:.300}"
        if not as_json:
            outside = escaped(text) or formula(text)
        tally.count(
            f"{number}: {name!r} {more}", wrong=wrong, outside=outside or escaped(ended.err), unclear=ended.unclear()
        )
        Path(name).unlink()


def test_bad_paths(ground, dice, tally, tmp_path, monkeypatch):
    ground.restore()
    monkeypatch.chdir(tmp_path)
    for fault, arguments in bad_paths(ground, dice, tmp_path):
        ended = call(*arguments)
        outside = None if all(map(os.path.exists, ("/dev/null", "/dev/full"))) else "a device was replaced"
        told = "unexpected" in ended.err and f"an unexpected error: {ended.err!r:.300}"
        tally.count(fault, outside=outside or escaped(ended.err), unclear=ended.unclear() or told)


def test_copies(dice, tally, tmp_path):
    for number in range(COPIES):
        folder, photos = tmp_path / str(number), dice.randint(10, 40)
        good, generator = folder / "good", np.random.default_rng(dice.randrange(1 << 30))
        good.mkdir(parents=True)
        for photo in range(photos):
            noise = gaussian_filter(generator.normal(size=(48, 48, 3)), (2.5, 2.5, 0))
            pixels = 128 + 40 * noise / noise.std()
            for copy in range(dice.choice([1, 1, 1, 2, 3, 5])):
                kind = dice.choice(["exact", "encoded", "burst"]) if copy else "exact"
                shown = pixels + generator.normal(0, 3, pixels.shape) if kind == "burst" else pixels
                image = Image.fromarray(shown.clip(0, 255).astype(np.uint8))
                image.save(good / f"{photo}-{copy}.{'jpg' if kind == 'encoded' else 'png'}", quality=80)
        test = [folder / f"{shade}.png" for shade in (0, 99)]
        for shade, file in zip((0, 99), test, strict=True):
            Image.fromarray(np.full((48, 48, 3), shade, np.uint8)).save(file)
        prepare(good, test, folder / "data", size=48, holdout=None, seed=number)
        files = json.loads((folder / "data/images.json").read_text())["files"]
        train, held_out = (
            [Path(file).name.split("-")[0] for file in files.get(name, [])] for name in ("train", "holdout")
        )
        both = set(train) & set(held_out)
        counted = len(held_out) - len(set(held_out))
        wrong = f"{sorted(both)} are on both sides" if both else counted and "a held-out photo counts twice"
        tally.count(f"{number}: copies among {photos} photos", wrong=wrong)


def test_limits(ground, dice, tally, tmp_path):
    for number in range(LIMITS):
        kind, value = bad_limit(dice)
        run = tmp_path / str(number) / "run"
        run.parent.mkdir(mode=0o777)
        run.parent.chmod(0o777)
        before, more = limited(kind, value)
        arguments = select_arguments(ground.task, run, "--executor", dice.choice(["serial", "processes"]))
        first = call_apart(*arguments, before=before, start=more.get("preexec_fn"), HOME=str(run.parent))
        done = finished_in(run)
        second = call(*select_arguments(ground.task, run))
        is_same = second.code != 0 or (run / "selection.json").read_bytes() == ground.selection
        unclear = first.unclear() or second.unclear() or (second.code and f"it does not resume: {second.err!r:.300}")
        lost, wrong = lost_between(done, finished_in(run)), None if is_same else "another selection"
        tally.count(f"{number}: {kind} of {value:,}", lost=lost, wrong=wrong, unclear=unclear)


def test_concurrency(ground, dice, tally, tmp_path):
    ground.restore()
    scored = json.loads(call("score", ground.run, ground.task / "test", "--json").out)
    scores = [row["score"] for row in scored]
    commands = {
        "select": select_arguments(ground.task, ground.run),
        "report": ["report", ground.run],
        "score": ["score", ground.run, ground.task / "test", "--json"],
        "recalibrate": ["score", ground.run, "--recalibrate", ground.task / "test/good"],
    }
    for number in range(ROUNDS):
        ground.restore()
        if dice.random() < 0.5:
            (ground.run / "finished.json").unlink()  # so that all is ranked and kept again
        names = [dice.choice(sorted(commands)) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            ended = list(pool.map(lambda name: call_apart(*commands[name]), names))
        wrong = unclear = None
        for name, each in zip(names, ended, strict=True):
            unclear = unclear or each.unclear()
            if each.code and "another process is working" not in each.err:
                wrong = f"{name} fails: {each.err!r:.300}"
            elif name == "score" and [row["score"] for row in json.loads(each.out)] != scores:
                wrong = "other scores"
        after = call(*commands["select"])
        unclear = unclear or after.unclear()
        if after.code or (ground.run / "selection.json").read_bytes() != ground.selection:
            wrong = wrong or "another selection"
        tally.count(f"{number}: {' and '.join(names)} at once", wrong=wrong, unclear=unclear)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_streams(ground, tally, tmp_path):
    ground.restore()
    image = ground.task / "test/good/100.png"
    commands = {
        "score": ["score", ground.run, image],
        "report": ["report", ground.run],
        "select": select_arguments(ground.task, ground.run),
    }
    for name, arguments in commands.items():
        expected = call_apart(*arguments)
        for redirection in ("2>/dev/full", "2>&-", "0<&-", ">&-", ">/dev/full"):
            ended = call_apart(*arguments, before=["bash", "-c", f'exec "$@" {redirection}', "bash"])
            has_output = not redirection.startswith(">")
            lost = has_output and ended.out != expected.out and f"the output: {ended.err!r:.300}"
            code = 1 if redirection == ">/dev/full" else 0
            unclear = ended.unclear() or (ended.code != code and f"exit code {ended.code}: {ended.err!r:.300}")
            tally.count(f"{name} {redirection}", lost=lost, unclear=unclear)


def test_states(ground, tally, tmp_path):
    honest = _losses(_with_plugin(tmp_path / "honest", ground, "", ("--executor", "processes", "--workers", 1)))
    for number, state in enumerate(STATES):
        code = AUGMENTATION.format(name="Hostile", body=f"{state}; return (images + self.strength).clamp(0, 1)")
        arguments = ("--augmentation", "hostile-augmentation,brighten", "--executor", "processes", "--workers", 1)
        ended = _with_plugin(tmp_path / str(number), ground, code, (*arguments, "--timeout", 8))
        found = _losses(ended)
        # A process with few open files or small ones looks like a full disk, which ends the study with a line.
        missed = [name for name in honest if found.get(name) != honest[name] and (ended.code == 0 or name in found)]
        wrong = missed and f"{missed[0]} has the loss {found.get(missed[0])}, not {honest[missed[0]]}"
        tally.count(state, wrong=wrong, unclear=ended.unclear())


def _losses(ended: Ended) -> dict[str, float]:
    """The loss of each candidate that is honest."""
    candidates = json.loads(ended.out)["candidates"] if ended.code == 0 else []
    return {
        json.dumps(each["params"]): each["losses"]["separability"]
        for each in candidates
        if each["augmentation"] == "brighten"
    }
