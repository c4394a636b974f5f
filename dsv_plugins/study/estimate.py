"""How long a study will take, from a probe: its first candidates, in a folder that is removed afterwards."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dsv_plugins.errors import TrainingError
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.study.check import make_executor
from dsv_plugins.study.observers import Observers, RunLog
from dsv_plugins.study.plan import Plan
from dsv_plugins.study.schedule import Schedule
from dsv_plugins.study.warm_up import preparation

__all__ = ["Estimate", "estimate"]

PROBE_UPDATES = 30
"""Of a training that counts its updates; the others are taken to be as fast."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the probe took.

    Attributes:
        candidate: The seconds of one candidate, while others are trained beside it.
        once: The seconds of what is done once: start, decoding, and what all candidates share.
    """

    candidate: float
    once: float

    def total(self, candidates: int, workers: int) -> float:
        """Return the seconds of a study of so many candidates."""
        return self.once + self.candidate * math.ceil(candidates / workers)


def estimate(plan: Plan, observer: Observer) -> Estimate:
    """Do all that a study does for the candidates that it trains first, with few updates, and keep nothing.

    Raises:
        TrainingError: One of them failed, as it would in the study.
    """
    settings = plan.settings
    updates = None if plan.budget is None else min(plan.budget, PROBE_UPDATES)
    executor = make_executor(settings, plan.registry)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as path, executor.warmed_up(preparation(settings, plan.registry)):
        folder = RunFolder(Path(path))
        log = RunLog(folder, None, Observers(observer, {}))
        schedule = Schedule(plan, folder, executor, log)
        plan.prepare_images(folder.data, log.observers)
        candidates = plan.candidates(range_points=1)[: executor.parallelism]
        evaluations = schedule.evaluate(candidates, updates, None)
        elapsed = time.monotonic() - started
        for candidate in candidates:
            if candidate.id in schedule.failures:
                raise TrainingError(f"{candidate} failed: {schedule.failures[candidate.id]}") from schedule.first_error
        probed = log.journal.seconds()
    seconds = fmean(probed.values())
    if updates:
        assert plan.budget is not None
        training = fmean(evaluation.timings["training"] for evaluation in evaluations.values())
        seconds += training * (plan.budget / updates - 1)
    return Estimate(candidate=seconds, once=elapsed - max(probed.values()))
