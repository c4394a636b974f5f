"""What `dsv select --dry-run` shows: the candidates, and how long they may take."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dsv_plugins.cli.plugins import describe_space
from dsv_plugins.cli.terminal import Terminal, literal

if TYPE_CHECKING:
    from dsv_plugins.study.plan import Plan
    from dsv_plugins.study.study import Study

__all__ = ["show_plan"]

PROBE_UPDATES = 30


def show_plan(study: Study, *, as_json: bool) -> None:
    """Print the plan of a study, with an estimate from a training of a few updates; nothing is kept."""
    from dsv_plugins.plugins.registry import build_registry
    from dsv_plugins.study.check import check_detectors, make_executor
    from dsv_plugins.study.plan import plan_study

    registry = build_registry(study.plugins)
    check_detectors(study, registry)
    plan = plan_study(study, registry)
    candidates = [] if plan.search_record.proposes else plan.candidates()
    count = plan.search.trials or len(candidates)
    workers = make_executor(study, registry).parallelism
    pace = _seconds_per_update(plan)
    shared_updates = sum(map(plan.shared_updates, plan.detectors))
    seconds = total = None
    if pace is not None and plan.budget is not None:
        seconds = pace * plan.budget
        total = pace * shared_updates + seconds * math.ceil(count / workers)
    terminal = Terminal()
    if as_json:
        content = {
            "run": str(study.folder()),
            "candidates": [{"augmentation": c.augmentation, "params": dict(c.params)} for c in candidates],
            "trials": count,
            "updates": plan.budget,
            "shared_updates": shared_updates,
            "workers": workers,
            "seconds_per_candidate": seconds,
            "seconds": total,
        }
        terminal.print_json_object(content)
        return

    def say(line: str) -> None:
        terminal.print(literal(line), soft_wrap=True)

    if plan.search_record.proposes:
        for name, space in plan.spaces().items():
            say(f"{name}: {describe_space(space)}")
    for candidate in candidates:
        say(str(candidate))
    budget = f" of {plan.budget} updates" if plan.budget else ""
    if shared_updates:
        budget += f", after {shared_updates} that they share,"
    say(f"{count} candidates{budget} for {', '.join(study.detectors)}, {workers} at once")
    if seconds is not None and total is not None:
        most = "at most " if plan.search_record.judges else ""
        say(f"{most}about {seconds:.0f} s for each, {total / 60:.1f} min in all (from a short probe)")
    say(f"run folder: {study.folder()}")


class _ProbeEndedError(Exception):
    """Ends the probe."""


def _seconds_per_update(plan: Plan) -> float | None:
    """Return the seconds of one training update, from the first ones; None if the detector reports no progress."""
    from dsv_plugins.training.evaluate import make_augmentation, make_detector
    from dsv_plugins.training.job import threads

    candidate = plan.candidates(range_points=1)[0]
    marks: list[tuple[int, float]] = []

    def mark(update: int, planned: int, loss: float) -> None:
        marks.append((update, time.monotonic()))
        if update >= PROBE_UPDATES:
            raise _ProbeEndedError

    with tempfile.TemporaryDirectory() as folder, threads(plan.settings.threads), contextlib.suppress(_ProbeEndedError):
        dataset, _ = plan.prepare_images(Path(folder, "data"))
        augmentation = make_augmentation(plan.registry, candidate)
        make_detector(plan.registry, candidate).fit(
            dataset.train, augmentation, updates=PROBE_UPDATES, seed=candidate.seed, progress=mark
        )
    if len(marks) < 2 or marks[-1][0] <= marks[0][0]:
        return None
    (first, started), (last, ended) = marks[0], marks[-1]
    return (ended - started) / (last - first)
