"""Where a storm takes place: a task, and an undisturbed run of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from conftest import DETECTOR, TINY, make_task
from tally import call

__all__ = ["Ground", "select_arguments"]


def select_arguments(task: Path, run: Path, *more: object) -> list[object]:
    """A selection of two candidates."""
    options = ["--grid", "patch_size=0.02,0.32", "--detector", DETECTOR, "--detector-params", json.dumps(TINY)]
    return ["select", task, *options, "--selector", "dsv", "--executor", "serial", "--out", run, *more]


class Ground:
    """Where a storm takes place.

    Attributes:
        task: A task of a few images.
        run: Where the run is that is disturbed.
        selection: The selection of the undisturbed run.
    """

    def __init__(self, folder: Path) -> None:
        self.task = make_task(folder / "parts")
        self.run = folder / "run"
        self.pristine = folder / "pristine"
        assert call(*select_arguments(self.task, self.run)).code == 0
        self.run.rename(self.pristine)
        self.selection = (self.pristine / "selection.json").read_bytes()

    def restore(self) -> None:
        """Put the undisturbed run where the run is."""
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.pristine, self.run)
