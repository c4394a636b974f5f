"""Studies on a cluster of two nodes, with real faults: what comes out is what `serial` writes, byte for byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import install
from quick_plugins import MARKS, NODE, marks, wait_until

import ray
from dsv_plugins import ExecutorPlugin, Observer, Study, TrainingError, build_registry
from dsv_plugins.search import Rungs
from dsv_plugins.testing import parametrize_with_checks

SIZES = [0.1, 0.2, 0.3, 0.4]


@pytest.fixture(autouse=True)
def fresh_marks(cluster, tmp_path, monkeypatch):
    """Where this test's trainings leave their marks; the nodes were started before, and find it by a link."""
    link = cluster.folder / "marks"
    link.unlink(missing_ok=True)
    (tmp_path / "marks").mkdir()
    link.symlink_to(tmp_path / "marks")
    monkeypatch.setenv(MARKS, str(link))


@pytest.fixture
def out(cluster, tmp_path):
    """The driver's files, which node B does not see."""
    folder = cluster.files / tmp_path.name
    folder.mkdir()
    return folder


def study(out: Path, executor: str, scene: str = "", **settings) -> Study:
    images = torch.randint(0, 256, (20, 3, 16, 16), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    return Study(
        images[:12],
        images[12:],
        augmentation="shade",
        detector="quick",
        # The scene is no setting of the detector, since it would be part of the candidates' ids.
        detector_params={"updates": 9},
        selector=["dsv", "mc"],
        executor=executor,
        out=out,
        **settings,
    )


def written(run: Path) -> dict[str, bytes]:
    """Everything that a study decides: the selection, and every candidate's tensors."""
    files = [run / "selection.json", *run.glob("candidates/*/*.safetensors"), *run.glob("candidates/*/*/*.safetensors")]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def events(run: Path, name: str) -> list[dict]:
    lines = (run / "journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def trainings() -> Counter:
    return Counter(mark["size"] for mark in marks())


class Notes(Observer):
    def __init__(self):
        self.lines, self.updates = [], []

    def noted(self, message):
        self.lines.append(message)

    def updated(self, candidate, update, planned, loss):
        self.updates.append(update)
