"""Jobs in worker processes, with loky: its workers do not import the caller's script again, as multiprocessing's do."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from loky import ProcessPoolExecutor

from dsv_plugins import Outcome, TrainingError

__all__ = ["run_in_processes"]

Job = TypeVar("Job")
Value = TypeVar("Value")

WATCH_SECONDS = 1.0


def run_in_processes(
    work: Callable[[Job], Value], jobs: Sequence[Job], *, workers: int, retries: int
) -> Iterator[Outcome[Value]]:
    """Yield one outcome for each job as it ends.

    The death of one worker takes its whole pool along. What was under way then is suspect, and is tried again one job
    at a time, so that only the job that kills its workers is given up.
    """
    pending = list(range(len(jobs)))
    while pending:
        suspects = []
        with _pool(min(workers, len(pending))) as pool:
            futures = {pool.submit(work, jobs[index]): index for index in pending}
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


def _alone(work: Callable[[Job], Value], job: Job, index: int, retries: int) -> Outcome[Value]:
    for _ in range(retries):
        with _pool(1) as pool:
            future = pool.submit(work, job)
            error = future.exception()
            if not isinstance(error, BrokenProcessPool):
                return Outcome(index, None if error else future.result(), error)
    reason = f"its worker process died {retries + 1} times, perhaps for want of memory; try fewer workers"
    return Outcome(index, error=TrainingError(reason))


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, initializer=_prepare_worker, initargs=(os.getpid(),))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def _prepare_worker(parent: int) -> None:
    # Ctrl-C reaches the whole group of processes; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """End this worker when its parent is gone, so that a killed study leaves nothing running."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
