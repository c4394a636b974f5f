"""What an executor makes of jobs: exactly one outcome for each, or a line that names the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dsv_plugins.errors import PluginError, shown
from dsv_plugins.plugins.interfaces import Executor, Outcome
from dsv_plugins.plugins.plugin_errors import wrap_errors

__all__ = ["outcomes_of"]

Job = TypeVar("Job")


def outcomes_of(
    executor: Executor, label: str, work: Callable[[Job], float], jobs: Sequence[Job]
) -> Iterator[Outcome[float]]:
    """Yield the outcome of each job as the executor says that it ended.

    Args:
        executor: What runs the jobs.
        label: What names it.
        work: What is done with each job.
        jobs: The jobs.

    Raises:
        PluginError: The executor failed, or its outcomes are not one for each job.
    """
    missing = list(range(len(jobs)))
    with wrap_errors(label):
        outcomes = iter(executor.run(work, jobs))
    while True:
        with wrap_errors(label):
            outcome = next(outcomes, None)
        if outcome is None and not missing:
            return
        if not isinstance(outcome, Outcome):
            left = f"{shown(outcome)} in place of an outcome" if outcome is not None else "no outcome"
            raise PluginError(f"{label} gave {left} for {len(missing)} of {len(jobs)} jobs")
        if outcome.index not in missing:
            raise PluginError(f"{label} gave an outcome of job {shown(outcome.index)}, which is none that is left")
        if outcome.error is None and not isinstance(outcome.value, (int, float)):
            raise PluginError(f"{label} gave {shown(outcome.value)} as what a job returned")
        missing.remove(outcome.index)
        yield outcome
