from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dsv_plugins.plugins.discovery import DISABLE_VARIABLE

DETECTOR = "cutpaste-resnet18"
TINY = {"image_size": 32, "width": 2, "updates": 12, "shared_updates": 8, "batch_size": 4}
"""Settings with which that detector trains in about a second."""

OWN = f"dsv-plugins {metadata.version('dsv-plugins')}"
BUILTINS = {
    "augmentation": {"cutout", "cutavg", "cutdiff", "cutpaste"},
    "detector_encoder": {"cutpaste-resnet18", "patch-fusion", "patch-memory"},
    "selector": {
        *("dsv", "discordance", "separability", "base", "mmd", "std", "mc", "select", "hits"),
        *("pu-auc", "energy", "cosine"),
    },
    "search": {"grid", "halving"},
}


SLOWEST_FIRST = (
    "test_interruptions.py",
    "test_docs.py",
    "test_bench_command.py",
    "test_study.py",
    "test_select_command.py",
    "test_builtin.py",
)


def pytest_configure() -> None:
    """Have Ctrl-C arrive in what the tests start: whatever a script runs in its background ignores it otherwise."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow files first, so that no worker is left with one at the end."""
    order = {name: index for index, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def texture(seed: int, *, defect: bool = False, size: int = 40) -> np.ndarray:
    """A smooth grey texture with a little noise; a defective one has a white bar."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size] / size
    phase = generator.uniform(0, 6.28, 2)
    image = (
        120 + 40 * np.sin(9 * rows + phase[0]) * np.cos(7 * columns + phase[1]) + generator.normal(0, 4, (size, size))
    )
    if defect:
        row = int(generator.integers(4, size - 8))
        image[row : row + 4, 6:-6] = 255
    return image.clip(0, 255).astype(np.uint8)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A small task in MVTec layout: 8 train images, 4 good and 4 defective test images."""
    return make_task(tmp_path / "parts")


def make_task(folder: Path, train: int = 8) -> Path:
    for part, kind, seeds in (
        ("train", "good", range(train)),
        ("test", "good", range(100, 104)),
        ("test", "bar", range(200, 204)),
    ):
        (folder / part / kind).mkdir(parents=True)
        for seed in seeds:
            Image.fromarray(texture(seed, defect=kind == "bar")).save(folder / part / kind / f"{seed:03d}.png")
    return folder


def dsv(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dsv_plugins", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "160", **environment},
        timeout=300,
    )


def dsv_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process: where nothing of the process matters, that saves the imports."""
    from dsv_plugins.cli import main

    given = [str(argument) for argument in arguments]
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(given)
        except SystemExit as error:  # a call that the parser refuses
            code = int(error.code or 0)
    return subprocess.CompletedProcess(given, code, output.getvalue(), errors.getvalue())


def tiny_select(task: Path, run: Path, *more: object) -> list[object]:
    """The arguments of a selection of three candidates that takes seconds: starting workers would take longer."""
    options = ["--grid", "patch_size=0.02,0.08,0.32", "--detector", DETECTOR, "--detector-params", json.dumps(TINY)]
    return ["select", task, *options, "--selector", "dsv", "--executor", "serial", "--out", run, *more]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A task, and the run folder and the output of an undisturbed selection on it; copy it to change it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    task = make_task(folder / "parts")
    completed = dsv(*tiny_select(task, folder / "run"))
    assert completed.returncode == 0, completed.stderr
    return task, folder / "run", completed.stdout


def journal(run: Path, name: str | None = None) -> list[dict]:
    """The events of a run, or those of one name."""
    file = run / "journal.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [event for event in events if name in (None, event["event"])]


@pytest.fixture
def nothing_disabled(monkeypatch):
    monkeypatch.delenv(DISABLE_VARIABLE, raising=False)


@pytest.fixture
def one_thread():
    """So small a network is slower on several threads, and far slower where others want the cores too."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def finished_detector():
    """One training that many tests look at, and none changes."""
    import torch
    from detectors import trained

    torch.set_num_threads(1)
    return trained()


def write_photo(path: Path, seed: int, *, defect: bool = False, size: int = 100) -> Path:
    Image.fromarray(texture(seed, defect=defect, size=size)).save(path)
    return path


@pytest.fixture(scope="session")
def calibrated_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study whose model has verdicts and heatmaps. Its name is one that a page must escape."""
    from dsv_plugins import select

    folder = tmp_path_factory.mktemp("line")
    for kind, seeds in (("good", range(40)), ("new", range(100, 106))):
        (folder / kind).mkdir()
        for seed in seeds:
            write_photo(folder / kind / f"{seed}.png", seed)
    result = select(
        folder / "good",
        folder / "new",
        detector="patch-memory",
        detector_params={"image_size": 64},
        holdout=0.4,
        executor="serial",
        out=folder / "<b>run",
    )
    return Path(result.path)


@pytest.fixture(scope="session")
def calibrated_model(calibrated_run: Path):
    from dsv_plugins import load

    return load(calibrated_run)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    return [write_photo(folder / f"{seed}.png", seed, defect=seed % 2 > 0, size=90 + seed) for seed in range(6)]


def pytest_terminal_summary(terminalreporter):
    """Print what tests summed up with `record_property("summary", ...)`, also in other processes."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [dict(getattr(report, "user_properties", ())) for report in reports]
    for summary in dict.fromkeys(found["summary"] for found in properties if "summary" in found):
        terminalreporter.line(summary)
