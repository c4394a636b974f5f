"""What `dsv select --dry-run` shows: the candidates, and how long they may take."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dsv_plugins.cli.plugins import describe_space

if TYPE_CHECKING:
    from dsv_plugins.run import Run
    from dsv_plugins.study import Study
    from dsv_plugins.types import Candidate

__all__ = ["show_plan"]

PROBE_UPDATES = 30


def show_plan(study: Study, *, as_json: bool) -> None:
    """Print the plan of a study, with an estimate from a training of a few updates; nothing is kept."""
    from dsv_plugins.observers import Observer
    from dsv_plugins.run import Run

    run = Run(study, Observer())
    candidates = [] if run.search_record.proposes else study.candidates(run.registry, context={})
    count = getattr(run.search, "trials", len(candidates))
    workers = getattr(run.executor, "parallelism", 1)
    pace = _seconds_per_update(run, study.candidates(run.registry, context={}, range_points=1)[0])
    seconds = total = None
    if pace is not None and run.budget is not None:
        seconds = pace * run.budget
        total = pace * run.shared_updates + seconds * math.ceil(count / workers)
    if as_json:
        plan = {
            "run": str(study.folder()),
            "candidates": [{"augmentation": c.augmentation, "params": dict(c.params)} for c in candidates],
            "trials": count,
            "updates": run.budget,
            "shared_updates": run.shared_updates,
            "workers": workers,
            "seconds_per_candidate": seconds,
            "seconds": total,
        }
        print(json.dumps(plan, indent=2))
        return
    console = Console(markup=False, highlight=False, soft_wrap=True)
    if run.search_record.proposes:
        for name, space in study.spaces(run.registry).items():
            console.print(f"{name}: {describe_space(space)}")
    for candidate in candidates:
        console.print(str(candidate))
    budget = f" of {run.budget} updates" if run.budget else ""
    if run.shared_updates:
        budget += f", after {run.shared_updates} that they share,"
    console.print(f"{count} candidates{budget} for {study.detector}, {workers} at once")
    if seconds is not None and total is not None:
        most = "at most " if run.search_record.judges else ""
        console.print(f"{most}about {seconds:.0f} s for each, {total / 60:.1f} min in all, judged from a short probe")
    console.print(f"run folder: {study.folder()}")


class _ProbeEndedError(Exception):
    """Ends the probe."""


def _seconds_per_update(run: Run, candidate: Candidate) -> float | None:
    """The pace of a training, from its first updates; None where the detector reports no pace."""
    from dsv_plugins.dataset import open_dataset
    from dsv_plugins.evaluate import make_detector, threads
    from dsv_plugins.records import AugmentationPlugin

    marks: list[tuple[int, float]] = []

    def mark(update: int, planned: int, loss: float) -> None:
        marks.append((update, time.monotonic()))
        if update >= PROBE_UPDATES:
            raise _ProbeEndedError

    with tempfile.TemporaryDirectory() as folder, threads(run.study.threads), contextlib.suppress(_ProbeEndedError):
        run.prepare_images(Path(folder, "data"))
        augmentation = run.registry.create(AugmentationPlugin, candidate.augmentation, candidate.params)
        images = open_dataset(Path(folder, "data")).train
        make_detector(run.registry, candidate).fit(
            images, augmentation, updates=PROBE_UPDATES, seed=candidate.seed, progress=mark
        )
    if len(marks) < 2 or marks[-1][0] <= marks[0][0]:
        return None
    (first, started), (last, ended) = marks[0], marks[-1]
    return (ended - started) / (last - first)
