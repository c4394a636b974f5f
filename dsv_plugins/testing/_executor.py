"""What an executor must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsv_plugins.plugins.interfaces import Executor, Outcome
from dsv_plugins.testing._suite import Suite, demand

__all__ = ["Checks"]

JOBS = (5, 0, 3, 8)
BAD_JOB = 3


class Checks(Suite[Executor]):
    """The checks of an executor."""

    def returns_one_outcome_for_each_job(self) -> None:
        """Every job has exactly one outcome, with the job's index and the value that the work returned."""
        outcomes = _run(self._build(), _double, JOBS)
        values = {outcome.index: outcome.value for outcome in outcomes}
        expected = {index: _double(job) for index, job in enumerate(JOBS)}
        demand(values == expected, f"returned the values {values}, by index, and {expected} was expected")

    def reports_an_error_in_its_outcome(self) -> None:
        """A job that raises has its error in its outcome, and the others end with their values."""
        outcomes = {outcome.index: outcome for outcome in _run(self._build(), _fail_on_the_bad_job, JOBS)}
        for index, job in enumerate(JOBS):
            error, value = outcomes[index].error, outcomes[index].value
            if job == BAD_JOB:
                demand(isinstance(error, BaseException), f"returned {error!r} as the error of a job that raised")
            else:
                demand(error is None and value == job, f"returned {outcomes[index]} for a job that did not raise")

    def takes_no_jobs(self) -> None:
        """Without jobs there are no outcomes, and no error."""
        _run(self._build(), _double, ())

    def runs_again(self) -> None:
        """One object can run jobs more than once."""
        executor = self._build()
        for _ in range(2):
            _run(executor, _double, JOBS)


def _run(executor: Executor, work: Callable[[int], int], jobs: Sequence[int]) -> list[Outcome[int]]:
    outcomes: list[Any] = list(executor.run(work, jobs))
    for outcome in outcomes:
        demand(isinstance(outcome, Outcome), f"returned {outcome!r:.60}; return Outcome objects")
    indices = sorted(outcome.index for outcome in outcomes)
    demand(indices == list(range(len(jobs))), f"returned outcomes for the jobs {indices}; there are {len(jobs)} jobs")
    return outcomes


def _double(job: int) -> int:
    return 2 * job


def _fail_on_the_bad_job(job: int) -> int:
    if job == BAD_JOB:
        raise ValueError("this job is meant to fail")
    return job
