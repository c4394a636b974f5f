"""The executor `ray`: its settings and its hook. Ray itself is imported when the first job comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from dsv_plugins import Executor, ExecutorPlugin, Outcome, hookimpl

if TYPE_CHECKING:
    from dsv_ray.engine import Engine

__all__ = ["RayExecutor"]

Job = TypeVar("Job")
Value = TypeVar("Value")


@dataclass(frozen=True)
class RayExecutor(Executor):
    """Several jobs at once, each a task of Ray: on this machine, or on a cluster.

    Attributes:
        address: The cluster, such as "auto" or "10.0.0.1:6379"; if None, that of $RAY_ADDRESS, or else a
            new Ray on this machine, which ends with this process.
        workers: How many jobs at once; None for as many as the cluster has room for.
        num_cpus: The CPUs that Ray sets aside for a job.
        num_gpus: The GPUs, or the share of one; None for one if the cluster has any.
        retries: How often Ray tries a job again whose worker or node died.
    """

    address: str | None = None
    workers: int | None = None
    num_cpus: float = 1
    num_gpus: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}; give a whole number of at least 1")
        for name, least in (("num_cpus", 0), ("num_gpus", 0), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; give a number of at least {least}")

    @property
    def parallelism(self) -> int:
        """How many jobs run at once, as far as that is known without asking the cluster."""
        return self.workers or os.cpu_count() or 1

    def run(self, work: Callable[[Job], Value], jobs: Sequence[Job]) -> Iterator[Outcome[Value]]:
        """Yield the outcomes as the jobs end."""
        return self._engine.run(work, jobs)

    @cached_property
    def _engine(self) -> Engine:
        """It keeps the images in Ray's object store from one round of a search to the next."""
        from dsv_ray.engine import Engine

        return Engine(self)


@hookimpl
def executor() -> ExecutorPlugin:
    """A Ray cluster."""
    return ExecutorPlugin("ray", RayExecutor, "Several candidates at once, on a Ray cluster or a Ray of this machine")
