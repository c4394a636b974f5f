"""A plugin package made of a few lines of code, and a study that uses it in seconds."""

from __future__ import annotations

import os
from pathlib import Path

HEADER = """
import os, signal, sys, time
import torch
from dsv_plugins import *
from dsv_plugins import hookimpl
from brightness import Brighten, Brightness
"""
"""What the code of a plugin can use."""

DETECTOR = """
class {name}(Brightness):
    {body}

@hookimpl
def detector_encoder():
    return DetectorEncoderPlugin("hostile-detector", {name})
"""
AUGMENTATION = """
class {name}:
    def __init__(self, strength=0.1):
        self.strength = strength
    def __call__(self, images, *, generator):
        {body}

@hookimpl
def augmentation():
    return AugmentationPlugin("hostile-augmentation", {name}, space={{"strength": [0.1, 0.2]}})
"""
SELECTOR = """
class {name}:
    def losses(self, evaluations):
        {body}

@hookimpl
def selector():
    return SelectorPlugin("hostile-selector", {name}, judges_alone=True)
"""
SEARCH = """
class {name}(Search):
    def run(self, problem):
        {body}

@hookimpl
def search():
    return SearchPlugin("hostile-search", {name})
"""
EXECUTOR = """
class {name}(Executor):
    def run(self, work, jobs):
        {body}

@hookimpl
def executor():
    return ExecutorPlugin("hostile-executor", {name})
"""
OBSERVER = """
class {name}(Observer):
    def started(self, run, candidates):
        {body}

@hookimpl
def observer():
    return ObserverPlugin("hostile-observer", {name})
"""
HONEST = """
@hookimpl
def augmentation():
    return AugmentationPlugin("brighten", Brighten, space={"strength": [0.1, 0.2]})

@hookimpl
def detector_encoder():
    return DetectorEncoderPlugin("brightness", Brightness)
"""


def install(folder: Path, code: str) -> dict[str, str]:
    """Write a package with this plugin code; returns the environment in which it is installed."""
    folder.mkdir(exist_ok=True)
    modules = {"honest_plugin": HONEST, "hostile_plugin": code}
    for name, content in modules.items():
        (folder / f"{name}.py").write_text(f"{HEADER}\n{content}\n")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dsv_plugins]\n{name} = {name}\n")
    here = Path(__file__).parent
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, here, here.parent)))}


def select_arguments(task: Path, run: Path, *more: object) -> list[object]:
    """A selection in which the honest plugins do everything that `more` does not give to others."""
    honest = {
        "--augmentation": "brighten",
        "--detector": "brightness",
        "--selector": "separability",
        "--executor": "serial",
        "--grid": "strength=0.1,0.2",
        "--holdout": 0.3,
        "--out": run,
    }
    honest |= dict(zip(more[::2], more[1::2], strict=True))
    return ["select", task, *(part for pair in honest.items() for part in pair), "--json"]
