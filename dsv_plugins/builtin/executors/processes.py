"""Jobs in worker processes, which are kept for the next jobs.

Each worker has a thread of the driver, which starts it, gives it jobs and waits for it. Signals are handled in the main
thread only, so none can come between the start of a worker and the note of it.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from dsv_plugins import Outcome, TrainingError
from dsv_plugins.builtin.executors.forking import Forker, can_fork
from dsv_plugins.builtin.executors.worker import Answer, Worker, start_process
from dsv_plugins.errors import too_late

__all__ = ["run_in_processes", "warmed_up_processes"]

Job = TypeVar("Job")
Value = TypeVar("Value")


class _Workers:
    """All workers of this process."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._forkers: list[Forker] = []

    def warm_up(self, prepare: Callable[[], None], count: int, *, forks: bool) -> None:
        """Let so many idle workers prepare themselves; starts those that are missing."""
        with self._changing:
            self._bury()
            for worker in self._idle[:count]:
                worker.begin(prepare)
            missing = range(len(self._idle), count)
            if forks and missing:
                self._forkers.append(Forker(prepare))
            for _ in missing:
                self._idle.append(self._new())
                if not forks:
                    self._idle[-1].begin(prepare)

    def take(self, wanted: threading.Event) -> Worker | None:
        """An idle worker, or a new one; None if none is wanted any more."""
        with self._changing:
            if not wanted.is_set():
                return None
            self._bury()
            worker = self._idle.pop(0) if self._idle else self._new()
            self._busy.add(worker)
            return worker

    def put_back(self, worker: Worker) -> None:
        """Keep a worker for the next job."""
        with self._changing:
            if worker in self._busy:
                self._busy.remove(worker)
                self._idle.append(worker)

    def end(self) -> None:
        """End all workers, at once."""
        with self._changing:
            for forker in self._forkers:
                forker.kill()
            for worker in (*self._idle, *self._busy):
                worker.end()
            self._forkers = []
            self._idle = []
            self._busy = set()

    def _new(self) -> Worker:
        """A worker of the process that has imported the latest; a new process if there is none."""
        forker = self._forkers[-1] if self._forkers else None
        return forker.fork() if forker is not None and forker.is_alive else Worker(start_process())

    def _bury(self) -> None:
        """Forget the idle workers that are dead."""
        for worker in [worker for worker in self._idle if not worker.is_alive]:
            worker.end()
            self._idle.remove(worker)


_WORKERS = _Workers()
atexit.register(_WORKERS.end)


def run_in_processes(
    work: Callable[[Job], Value], jobs: Sequence[Job], *, workers: int, retries: int, seconds: float | None = None
) -> Iterator[Outcome[Value]]:
    """Yield one outcome for each job as it ends.

    A job whose worker died is tried again when the others have ended, with the machine for itself: most of the time
    there was not enough memory for all.
    """
    dead = []
    for index, answer in _answers(work, jobs, range(len(jobs)), workers=workers, seconds=seconds):
        if answer.exit_code is None or answer.late:
            yield _outcome(index, answer, seconds=seconds)
        else:
            dead.append((index, answer))
    for index, answer in dead:
        deaths = 1
        while answer.exit_code is not None and not answer.late and deaths <= retries:
            ((_, answer),) = _answers(work, jobs, [index], workers=1, seconds=seconds)
            deaths += 1
        yield _outcome(index, answer, seconds=seconds, deaths=deaths)


@contextlib.contextmanager
def warmed_up_processes(prepare: Callable[[], None], *, workers: int, forks: bool) -> Iterator[None]:
    """Start the workers and let them prepare themselves, while the caller continues.

    Args:
        prepare: Imports what jobs need.
        workers: How many.
        forks: Whether one process may prepare for all of them, if the system can fork.
    """
    with _ended_on_error():
        starting = threading.Thread(
            target=_WORKERS.warm_up, args=(prepare, workers), kwargs={"forks": forks and can_fork()}, daemon=True
        )
        starting.start()
        starting.join()
        yield


def _answers(
    work: Callable[[Job], Value], jobs: Sequence[Job], indices: Sequence[int], *, workers: int, seconds: float | None
) -> Iterator[tuple[int, Answer]]:
    """The answers of the workers, as they come, each with the index of its job."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
    wanted = threading.Event()
    wanted.set()

    def drive() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            answers.put((index, _answer(work, jobs[index], wanted, seconds)))

    for index in indices:
        waiting.put(index)
    with _ended_on_error():
        try:
            for _ in range(min(workers, len(indices))):
                threading.Thread(target=drive, daemon=True).start()
            for _ in indices:
                yield answers.get()
        finally:
            wanted.clear()


def _answer(work: Callable[[Job], Value], job: Job, wanted: threading.Event, seconds: float | None) -> Answer:
    """Let a worker do one job."""
    try:
        while (worker := _WORKERS.take(wanted)) is not None:
            try:
                if worker.is_ready(seconds):  # one that died while it prepared itself is replaced
                    return worker.call(work, job, seconds)
            finally:
                _WORKERS.put_back(worker)
    except Exception as error:  # such as no memory for another process
        return Answer(error=error)
    return Answer(error=TrainingError("the study was stopped"))


def _outcome(index: int, answer: Answer, *, seconds: float | None, deaths: int = 1) -> Outcome[Any]:
    if answer.late:
        assert seconds is not None
        return Outcome(index, error=too_late(seconds))
    if answer.exit_code is not None:
        times = "once" if deaths == 1 else f"{deaths} times"
        return Outcome(index, error=TrainingError(f"its worker process died {times}, {_cause(answer.exit_code)}"))
    return Outcome(index, answer.value, answer.error)


def _cause(exit_code: int) -> str:
    if exit_code >= 0:
        return f"with exit code {exit_code}: something in the training ends the process"
    if exit_code == -signal.SIGKILL:
        return "killed by SIGKILL, perhaps for want of memory; try fewer workers"
    name = signal.Signals(-exit_code).name
    return (
        f"of {name} ({signal.strsignal(-exit_code)}): a crash in the detector, the augmentation or a library of theirs"
    )


@contextlib.contextmanager
def _ended_on_error() -> Iterator[None]:
    """End all workers if the block ends with an exception, such as a Ctrl-C."""
    try:
        yield
    except BaseException:
        _WORKERS.end()
        raise
