"""Studies on a cluster of two nodes, with real faults: what comes out is what `serial` writes, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import torch
from conftest import Cluster, install
from quick_plugins import MARKS, marks, wait_until

from dsv_plugins import ExecutorPlugin, Observer, Study, build_registry
from dsv_plugins.testing import parametrize_with_checks

SIZES = {0.1, 0.2, 0.3, 0.4}


@pytest.fixture(autouse=True)
def fresh_marks(cluster: Cluster) -> None:
    shutil.rmtree(os.environ[MARKS], ignore_errors=True)
    Path(os.environ[MARKS]).mkdir()


@pytest.fixture
def out(cluster: Cluster, tmp_path: Path) -> Path:
    """A place among the driver's files, which node B does not see."""
    return cluster.files / tmp_path.name


def stage(scene: str) -> None:
    Path(os.environ[MARKS], "scene").write_text(scene)


def study(out: Path, executor: str = "ray", **settings) -> Study:
    images = torch.randint(0, 256, (20, 3, 16, 16), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    settings = {"selector": ["dsv", "mc"], **settings}
    return Study(images[:12], images[12:], "shade", detector="quick", executor=executor, out=out, **settings)


def written(run: Path) -> dict[str, bytes]:
    """Everything that a study decides: the selection, and every tensor of every candidate."""
    files = [run / "selection.json", *run.glob("candidates/**/*.safetensors"), *run.glob("shared/**/*.safetensors")]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def events(run: Path, name: str) -> list[dict]:
    journal = run / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == name]


def trainings() -> Counter:
    return Counter(mark["size"] for mark in marks())


class Notes(Observer):
    def __init__(self):
        self.lines = []

    def noted(self, message):
        self.lines.append(message)


def test_losses_are_the_same_bytes_wherever_the_trainings_run(cluster, out, monkeypatch):
    """Also with a shared start and two rungs, whose files a worker out of reach must be sent."""
    put = []
    monkeypatch.setattr(ray, "put", lambda value, put_for_real=ray.put: put.append(value) or put_for_real(value))
    settings = {"search": "halving", "rungs": 2, "rung_factor": 2.0, "detector_params": {"shared_updates": 4}}
    for executor in ("serial", "processes"):
        study(out / executor, executor, **settings).run()
    shutil.rmtree(os.environ[MARKS])
    Path(os.environ[MARKS]).mkdir()
    stage("two at work")
    study(out / "ray", **settings).run()
    assert set(trainings()) == SIZES
    assert sorted(trainings().values()) == [1, 1, 2, 2], "half of the candidates reach the second rung"
    assert {mark["node"] for mark in marks()} == {"A", "B"}
    if cluster.isolated:
        assert all(mark["sees"] == (mark["node"] == "A") for mark in marks())
    assert written(out / "ray") == written(out / "processes") == written(out / "serial")
    assert len(written(out / "ray")) == 1 + 2 * 6 + 1
    assert len(put) == 1, "the images are put into the object store once, whatever the rounds"
    assert not list((out / "ray/progress").glob(".driver-*"))


HAZE = """
from dsv_plugins import AugmentationPlugin, hookimpl

class Haze:
    def __init__(self, size):
        self.size = size

    def __call__(self, images, *, generator):
        return images * (1 - self.size) + self.size

@hookimpl
def augmentation():
    return AugmentationPlugin("haze", Haze, space={"size": [0.1, 0.2, 0.3, 0.4]})
"""


def test_a_plugin_in_a_file_reaches_workers_that_do_not_have_the_file(cluster, out):
    out.mkdir(parents=True)
    file = out / "haze.py"
    file.write_text(HAZE)
    for executor in ("serial", "ray"):
        replace(study(out / executor, executor, plugins=file), augmentation="haze").run()
    assert written(out / "ray") == written(out / "serial")
    assert len(events(out / "ray", "finished")) == 4


def test_a_worker_that_is_killed_is_replaced(out):
    stage("the first worker on 0.2 dies")
    notes = Notes()
    study(out / "ray").run(notes)
    assert trainings() == {**dict.fromkeys(SIZES, 1), 0.2: 2}
    (note,) = [event for event in events(out / "ray", "noted") if "begun" in event["message"]]
    assert note["message"].startswith("shade(size=0.2): begun 2 times, since a worker or its node died; on ")
    assert sum(line.startswith("shade(size=0.2): begun 2 times") for line in notes.lines) == 1
    study(out / "serial", "serial").run()
    assert written(out / "ray") == written(out / "serial")


def test_a_driver_that_is_killed_resumes_when_it_is_started_again(cluster, out, tmp_path):
    stage("0.2 never ends")
    script = f"from test_cluster import Path, study; study(Path({str(out / 'ray')!r})).run()"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": cluster.address}
    driver = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        wait_until(lambda: len(events(out / "ray", "finished")) == 3 and trainings()[0.2] == 1)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    study(out / "ray").run()
    assert trainings() == {**dict.fromkeys(SIZES, 1), 0.2: 2}, "nothing finished is trained again"
    assert len(events(out / "ray", "resumed")) == 1
    study(out / "serial", "serial").run()
    assert written(out / "ray") == written(out / "serial")


def test_the_error_of_a_job_that_nobody_waits_for_any_more_is_not_shown(cluster):
    """As where all jobs fail alike, and the first error ends the run."""
    script = (
        "import time; from dsv_ray import RayExecutor\n"
        "def fail_after(seconds): time.sleep(seconds); raise ValueError('as is meant')\n"
        f"outcomes = RayExecutor({cluster.address!r}).run(fail_after, [0, 1])\n"
        "print(next(outcomes).error); time.sleep(3); outcomes.close()"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (completed.stdout, completed.stderr) == ("as is meant\n", "")


def test_other_plugins_than_the_drivers_are_an_error_that_names_them(cluster, out, tmp_path):
    install(tmp_path, "dsv-other", "2.0", "other = quick_plugins:Shade")
    images = out / "parts"
    _write_images(images)
    arguments = ["select", images, "--augmentation", "shade", "--detector", "quick", "--out", out / "run"]
    arguments += ["--executor", "ray", "--executor-params", json.dumps({"address": cluster.address})]
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    completed = subprocess.run(
        [sys.executable, "-m", "dsv_plugins", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 1
    assert completed.stderr == (
        "dsv select: a worker has other plugins than this process: dsv-other is missing there and "
        "2.0 (it fails to load) here; install the same on every machine\n"
    )
    assert not trainings()


def _write_images(folder: Path) -> None:
    from PIL import Image

    generator = torch.Generator().manual_seed(5)
    for part, count in (("train/good", 4), ("test/unknown", 3)):
        (folder / part).mkdir(parents=True)
        for index in range(count):
            pixels = torch.randint(0, 256, (16, 16), generator=generator, dtype=torch.uint8).numpy()
            Image.fromarray(pixels).save(folder / part / f"{index}.png")


@parametrize_with_checks([build_registry().get(ExecutorPlugin, "ray")])
def test_conforms(check):
    check()


def test_a_node_that_is_killed_is_done_without(cluster, out):
    """The last test: node B does not come back."""
    stage("node B never ends")
    killer = threading.Thread(target=_kill_when_at_work, args=(cluster,))
    killer.start()
    study(out / "ray").run()
    killer.join()
    (lost,) = (mark["size"] for mark in marks() if mark["node"] == "B")
    assert trainings() == {**dict.fromkeys(SIZES, 1), lost: 2}
    (note,) = [event for event in events(out / "ray", "noted") if "begun" in event["message"]]
    assert note["message"].startswith(f"shade(size={lost}): begun 2 times, since a worker or its node died")
    study(out / "serial", "serial").run()
    assert written(out / "ray") == written(out / "serial")


def _kill_when_at_work(cluster: Cluster) -> None:
    wait_until(lambda: any(mark["node"] == "B" for mark in marks()))
    cluster.kill("B")
