"""The process that starts workers, watches them and tries again what died, so that the driver only reads answers.

On Linux it imports what jobs need, and forks a fresh worker for each job: that takes milliseconds, and what a plugin
does to a library ends with its job. If it must not fork, workers are started anew, import on their own and are kept.

It is a program of its own with one thread, for two reasons. A fork takes no thread or lock of the driver along. And
multiprocessing, in the driver, would run the caller's script again for each worker, as would Pebble, which builds on
it: a script without `if __name__ == "__main__"` ends there.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import cloudpickle

from dsv_plugins.builtin.executors.worker import READY, call_quietly, work

__all__ = ["Ended", "Launcher", "launch"]

IDLE_SECONDS = 300
"""A launcher without anything to do ends after this many seconds: it has libraries in memory."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: with an answer, with the death of its workers, or, if it has neither, too late.

    Attributes:
        answer: The pickled value and error.
        exit_code: That of the worker, if it died; negative for a signal.
        deaths: How many workers died over it.
    """

    answer: bytes | None = None
    exit_code: int | None = None
    deaths: int = 0


def launch(descriptor: int) -> NoReturn:
    """Do what the driver requests until it is gone, or has requested nothing for long; then end all at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts every process means the driver
    driver = Connection(descriptor)
    launcher = Launcher(driver)
    with contextlib.suppress(EOFError, OSError):
        while driver.poll(IDLE_SECONDS):
            driver.recv()(launcher)  # one of the methods below, with its arguments
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("this process is in that group")


class Launcher:
    """Forks a worker for each job, or keeps those that were started.

    Args:
        driver: Where the ends of jobs are told.
    """

    def __init__(self, driver: Connection) -> None:
        self._driver = driver
        self._forks = False
        self._function = b""
        self._idle: list[_Worker] = []

    def prepare(self, function: bytes, *, workers: int, forks: bool) -> None:
        """Import what jobs need, or start workers that do.

        Args:
            function: Pickled; imports what jobs need. Empty for none.
            workers: How many to start if they cannot be forked when they are needed.
            forks: Whether they may be forked.
        """
        self._forks, self._function = forks, function
        if forks:
            call_quietly(function)
            self._forks = threading.active_count() == 1  # other threads would be missing in a fork
        while not self._forks and len(self._idle) < workers:
            self._idle.append(self._new_worker())

    def run(self, calls: Mapping[int, bytes], *, workers: int, retries: int, seconds: float | None) -> None:
        """Do the jobs, and tell the driver how each one ended.

        A job whose worker died is tried again when the others have ended, with the machine for itself: most of the
        time there was not enough memory for all.

        Args:
            calls: A pickled function with its argument for each job, by the job's index.
            workers: How many run at once.
            retries: How often a job whose worker died is tried again.
            seconds: How long each may take; None for no limit.
        """
        waiting, dead = deque(calls), deque[int]()
        deaths = dict.fromkeys(calls, 0)
        running: dict[int, _Worker] = {}
        while waiting or dead or running:
            while (waiting and len(running) < workers) or (dead and not running):
                index = (waiting or dead).popleft()
                try:
                    worker = self._take_worker()
                except OSError as error:  # such as no memory for another process
                    self._driver.send((index, Ended(cloudpickle.dumps((None, error, "")))))
                else:
                    worker.begin(calls[index], seconds)
                    running[index] = worker
            if self._driver in wait([self._driver, *(worker.pipe for worker in running.values())], POLL_SECONDS):
                raise EOFError("the driver says nothing before it has all answers: it is gone")
            for index, worker in list(running.items()):
                ended = worker.look()
                if ended is None:
                    continue
                del running[index]
                if self._forks or ended.answer is None:
                    worker.end()
                else:
                    self._idle.append(worker)
                deaths[index] += ended.exit_code is not None
                if ended.exit_code is not None and deaths[index] <= retries:
                    dead.append(index)
                else:
                    self._driver.send((index, replace(ended, deaths=deaths[index])))

    def _take_worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop(0)
            if worker.is_alive:
                return worker
            worker.end()
        return self._new_worker()

    def _new_worker(self) -> _Worker:
        return _Worker("fork", b"") if self._forks else _Worker("spawn", self._function)


class _Worker:
    """A process that does one job at a time.

    Args:
        method: How it is started, in the words of multiprocessing.
        prepare: What it calls first, pickled.
    """

    def __init__(self, method: str, prepare: bytes) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        with theirs:
            # A daemon of multiprocessing could not load images in processes of its own.
            context: Any = multiprocessing.get_context(method)  # its types name no Process
            self._process: multiprocessing.Process = context.Process(target=work, args=(theirs, prepare))
            self._process.start()
        self._seconds: float | None = None
        self._started = time.monotonic()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def begin(self, call: bytes, seconds: float | None) -> None:
        """Give it a job."""
        self._seconds = seconds
        self._started = time.monotonic()
        with contextlib.suppress(OSError):  # it is dead, which the next look finds
            self.pipe.send_bytes(call)

    def look(self) -> Ended | None:
        """Return how its job ended; None if it has not."""
        is_alive = self.is_alive  # asked first: what it wrote before it died counts
        try:
            if self.pipe.poll():
                answer = self.pipe.recv_bytes()
                if answer != READY:
                    return Ended(answer)
                self._started = time.monotonic()
        except (EOFError, OSError):  # it has died, perhaps amid an answer
            self._process.join()
            is_alive = False
        if not is_alive:
            return Ended(exit_code=self._process.exitcode)
        is_late = self._seconds is not None and time.monotonic() - self._started > self._seconds
        return Ended() if is_late else None

    def end(self) -> None:
        """Kill the process; it holds nothing that would be lost."""
        self._process.kill()
        self._process.join()
        self.pipe.close()
