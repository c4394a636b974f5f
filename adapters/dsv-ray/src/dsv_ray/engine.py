"""Jobs as tasks of Ray. Scheduling and retries are Ray's; here is what goes into a task and what comes out."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from dsv_plugins import InputError, Outcome, TrainingError, WorkerError
from dsv_plugins.errors import describe_error
from dsv_plugins.training.job import Job
from dsv_ray.messages import open_mailbox, read_messages
from dsv_ray.remote import PortableJob, RemoteJobs, RemoteResult

if TYPE_CHECKING:
    from dsv_ray import RayExecutor

__all__ = ["Engine"]

Value = TypeVar("Value")

POLL_SECONDS = 0.5


class Engine:
    """Runs jobs on the cluster of an executor's settings.

    Args:
        settings: The executor.
    """

    def __init__(self, settings: RayExecutor) -> None:
        self._settings = settings
        _connect(settings)
        self._remote: RemoteJobs[ray.ObjectRef[Any]] = RemoteJobs(ray.put)
        self._mailbox = open_mailbox()
        self._numbers = itertools.count()

    def run(self, work: Callable[[Any], Value], jobs: Sequence[Any]) -> Iterator[Outcome[Value]]:
        """Yield one outcome for each job as it ends."""
        task: Any = _perform.options(
            num_cpus=self._settings.num_cpus,
            num_gpus=_gpus(self._settings.num_gpus),
            max_retries=self._settings.retries,
        )
        numbers = [next(self._numbers) for _ in jobs]  # the mailbox serves every round, and must not mix them up
        waiting = deque(range(len(jobs)))
        running: dict[ray.ObjectRef[Any], int] = {}
        try:
            with self._remote:
                while waiting or running:
                    while waiting and len(running) < (self._settings.workers or len(jobs)):
                        index = waiting.popleft()
                        packed = self._packed(jobs[index])
                        running[task.remote(self._mailbox, numbers[index], work, *packed)] = index
                    ended, _ = ray.wait([*running], timeout=POLL_SECONDS)
                    begun, progress = read_messages(self._mailbox)
                    for index in running.values():
                        if numbers[index] in progress:
                            self._remote.show_progress(jobs[index], *progress[numbers[index]])
                    for reference in ended:
                        index = running.pop(reference)
                        yield self._outcome(index, jobs[index], reference, begun.get(numbers[index], ()))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _packed(self, job: Any) -> tuple[Any, ray.ObjectRef[Any] | None]:
        return self._remote.pack(job) if isinstance(job, Job) else (job, None)

    def _outcome(self, index: int, job: Any, reference: ray.ObjectRef[Any], places: Sequence[str]) -> Outcome[Any]:
        note = ""
        if len(places) > 1:
            note = f"begun {len(places)} times, since a worker or its node died; on {', then on '.join(places)}"
        try:
            return Outcome(index, self._remote.unpack(job, ray.get(reference)), note=note)
        except RayTaskError as error:  # the work raised
            return Outcome(index, error=error.cause or TrainingError(str(error)), note=note)
        except RayError as error:
            reason = f"Ray gave it up after {self._settings.retries + 1} attempts ({type(error).__name__}); "
            advice = "a worker may have run out of memory: give num_cpus or num_gpus so that fewer share a machine"
            return Outcome(index, error=TrainingError(reason + advice), note=note)


@ray.remote
def _perform(mailbox: Any, number: int, work: Callable[[Any], Value], job: Any, images: Any) -> RemoteResult[Value]:
    """Do one job on a worker."""
    with contextlib.suppress(RayActorError):  # without the mailbox the work is as good
        ray.get(mailbox.begin.remote(number, f"{socket.gethostname()} (process {os.getpid()})"))
    if not isinstance(job, PortableJob):
        return RemoteResult(work(job), {})
    return job.run(work, images, lambda name, content: mailbox.report.remote(number, name, content))


def _connect(settings: RayExecutor) -> None:
    """Reach the cluster, or start a Ray that ends with this process, unless that is done already."""
    if ray.is_initialized():
        return
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    # Errors are outcomes. Ray should not print that of a job whose result is no longer needed.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    own: dict[str, Any] = {"num_cpus": _own_cpus(settings), "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # Ray raises all kinds, and a bare Exception if a machine is too busy to start in time
        if own:
            raise WorkerError(
                f"Ray does not start on this machine ({describe_error(error)}); try again when it is less busy"
            ) from error
        raise InputError(
            f"no Ray can be reached at {address!r} ({describe_error(error)}); "
            "start one with `ray start --head`, or leave the address out for a Ray of this machine"
        ) from error
    wanted, there = settings.num_gpus or 0, _gpus_there()
    if own and wanted > there:  # a cluster may grow, a machine does not, and Ray would wait for ever
        raise InputError(f"num_gpus is {wanted}, and this machine has {there:g} GPUs")


def _own_cpus(settings: RayExecutor) -> int:
    """The CPUs of a Ray of this machine: room for the workers asked for, or for at least one."""
    if settings.workers is None:
        return max(os.cpu_count() or 1, math.ceil(settings.num_cpus))
    return max(1, math.ceil(settings.workers * settings.num_cpus))


def _gpus(wanted: float | None) -> float:
    return wanted if wanted is not None else float(_gpus_there() > 0)


def _gpus_there() -> float:
    return float(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]
