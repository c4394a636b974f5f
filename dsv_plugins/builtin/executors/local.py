"""The built-in executors: one candidate after the other in this process, or several at once in others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dsv_plugins import Executor, ExecutorPlugin, Outcome, hookimpl

__all__ = ["Processes", "Serial"]

Job = TypeVar("Job")
Value = TypeVar("Value")

ACCELERATORS = ("/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/dev/accel")
"""Where Linux shows a GPU: NVIDIA's, one of Windows below Linux, AMD's, and others."""


@dataclass(frozen=True)
class Serial(Executor):
    """One job after the other, in this process."""

    def run(self, work: Callable[[Job], Value], jobs: Sequence[Job]) -> Iterator[Outcome[Value]]:
        """Yield the outcomes in the order of the jobs."""
        for index, job in enumerate(jobs):
            try:
                yield Outcome(index, work(job))
            except Exception as error:
                yield Outcome(index, error=error)


@dataclass(frozen=True)
class Processes(Executor):
    """Several jobs at once, each in a process of its own. A process that dies is replaced and its job tried again.

    Attributes:
        workers: How many processes; None for one on each core, or on each GPU if there are any.
        retries: How often a job whose process died is tried again.
        timeout: The seconds after which a job's process is stopped; None for no limit.
    """

    workers: int | None = None
    retries: int = 2
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}; give a whole number of at least 1")

    @property
    def parallelism(self) -> int:
        """How many jobs run at once."""
        return self.workers or _default_workers()

    def limited(self, *, jobs: int | None = None, seconds: float | None = None) -> Processes:
        """This executor with no more processes than jobs, and a limit for each job."""
        workers = self.workers if jobs is None else min(self.parallelism, max(1, jobs))
        return replace(self, workers=workers, timeout=seconds or self.timeout)

    def warmed_up(self, prepare: Callable[[], None]) -> AbstractContextManager[None]:
        """Start the processes, and let them prepare themselves meanwhile."""
        from dsv_plugins.builtin.executors.processes import warmed_up_processes

        return warmed_up_processes(prepare, workers=self.parallelism, forks=can_fork())

    def run(self, work: Callable[[Job], Value], jobs: Sequence[Job]) -> Iterator[Outcome[Value]]:
        """Yield the outcomes as the jobs end."""
        from dsv_plugins.builtin.executors.processes import run_in_processes

        return run_in_processes(
            work, jobs, workers=self.parallelism, retries=self.retries, seconds=self.timeout, forks=can_fork()
        )


@hookimpl
def executor() -> list[ExecutorPlugin]:
    """This process, or several on this machine."""
    return [
        ExecutorPlugin("serial", Serial, "One candidate after the other, in this process"),
        ExecutorPlugin("processes", Processes, "Several candidates at once, one process each"),
    ]


def can_fork() -> bool:
    """Return whether a worker may be forked from a process that has imported what it needs.

    A library may look for a GPU when it is imported, and a process that is forked then cannot use it.
    """
    return sys.platform == "linux" and not any(Path(device).exists() for device in ACCELERATORS)


def _default_workers() -> int:
    if not can_fork():  # importing torch takes seconds, so it is asked only if there may be a GPU
        import torch

        if torch.accelerator.is_available():
            return max(1, torch.accelerator.device_count())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
