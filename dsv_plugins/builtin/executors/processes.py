"""Jobs in worker processes, with loky: its workers do not import the caller's script again, as multiprocessing's do."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import TypeVar

from loky import ProcessPoolExecutor, get_reusable_executor

from dsv_plugins import Outcome, TrainingError

__all__ = ["run_in_processes", "warmed_up_processes"]

Job = TypeVar("Job")
Value = TypeVar("Value")

WATCH_SECONDS = 1.0
IDLE_SECONDS = 300
"""An idle worker ends after this many seconds."""


def run_in_processes(
    work: Callable[[Job], Value], jobs: Sequence[Job], *, workers: int, retries: int
) -> Iterator[Outcome[Value]]:
    """Yield one outcome for each job as it ends.

    The death of one worker takes its whole pool along. What was under way then is suspect, and is tried again one job
    at a time, so that only the job that kills its workers is given up.
    """
    pending = list(range(len(jobs)))
    while pending:
        with _pool(workers) as pool:
            futures = _submitted(pool, work, {index: jobs[index] for index in pending})
            for future in as_completed(futures):
                index = futures[future]
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    continue
                pending.remove(index)
                yield Outcome(index, None if error else future.result(), error)
        suspects = pending[:workers]  # jobs start in their order, so the first unfinished ones were under way
        for index in suspects:
            pending.remove(index)
            yield _alone(work, jobs[index], index, retries)


@contextlib.contextmanager
def warmed_up_processes(prepare: Callable[[], None], *, workers: int) -> Iterator[None]:
    """Start the workers and let each of them prepare itself, while the caller continues."""
    with _pool(workers) as pool:
        with _deaf_to_interrupts():
            for _ in range(workers):
                pool.submit(prepare)
        yield


def _alone(work: Callable[[Job], Value], job: Job, index: int, retries: int) -> Outcome[Value]:
    for _ in range(retries):
        with _pool(1) as pool:
            (future,) = _submitted(pool, work, {index: job})
            error = future.exception()
            if not isinstance(error, BrokenProcessPool):
                return Outcome(index, None if error else future.result(), error)
    reason = f"its worker process died {retries + 1} times, perhaps for want of memory; try fewer workers"
    return Outcome(index, error=TrainingError(reason))


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Workers that are kept for the next caller, unless the block ends with an exception."""
    pool = get_reusable_executor(
        max_workers=workers, timeout=IDLE_SECONDS, initializer=_prepare_worker, initargs=(os.getpid(),)
    )
    with warnings.catch_warnings():
        # Loky replaces a worker that has grown, and takes the libraries of a training for a leak.
        warnings.filterwarnings("ignore", "A worker was restarted", UserWarning)
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, kill_workers=True)
            raise


def _submitted(
    pool: ProcessPoolExecutor, work: Callable[[Job], Value], jobs: Mapping[int, Job]
) -> dict[Future[Value], int]:
    """The jobs' futures. Starts the workers if they are not running yet."""
    with _deaf_to_interrupts():
        return {pool.submit(work, job): index for index, job in jobs.items()}


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A Ctrl-C must not reach a worker that is starting and cannot yet say that it leaves it to its parent."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it lets interrupts in again when it starts, so it must not start below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker(parent: int) -> None:
    # Ctrl-C reaches the whole group of processes; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(os._exit, 0)  # all that is left by then is memory, which takes a second to tear down
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """End this worker when its parent is gone, so that a killed study leaves nothing running."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
