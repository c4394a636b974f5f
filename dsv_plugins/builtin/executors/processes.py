"""The driver's end of the executor `processes`: it sends jobs to a launcher, and reads how they end."""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import cloudpickle

from dsv_plugins import Outcome, TrainingError, WorkerError
from dsv_plugins.builtin.executors.launcher import Ended, Launcher, launch
from dsv_plugins.builtin.executors.worker import CUT_OFF
from dsv_plugins.errors import RemoteError, describe_error, too_late

__all__ = ["end_launchers", "run_in_processes", "warmed_up_processes"]

Job = TypeVar("Job")
Value = TypeVar("Value")

PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "  # first, since our own package may be on the path
    f"from {launch.__module__} import launch; launch(int(sys.argv.pop()))"
)


class _Process:
    """A launcher's process, and the connection to it."""

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        path = json.dumps([str(folder) for folder in sys.path])
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 — our own interpreter and program
                    [sys.executable, "-c", PROGRAM, str(theirs.fileno()), path],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what plugins print is no output of the driver's
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for the driver to deal with; one signal ends all workers
                )
        except OSError as error:
            raise WorkerError(
                f"no worker process can be started ({describe_error(error)}); use --executor serial"
            ) from error

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> int:
        """End it with all its workers, at once; returns its exit code."""
        if self.is_alive:
            with contextlib.suppress(OSError):  # it has just died
                os.killpg(self._process.pid, signal.SIGKILL)
        self.connection.close()
        return self._process.wait()


_idle: list[_Process] = []


def end_launchers() -> None:
    """End the launchers that are kept for the next jobs."""
    while _idle:
        _idle.pop().end()


atexit.register(end_launchers)


@contextlib.contextmanager
def warmed_up_processes(prepare: Callable[[], None], *, workers: int, forks: bool) -> Iterator[None]:
    """Let a launcher prepare itself while the caller continues. It ends if the block ends with an exception.

    Args:
        prepare: Imports what jobs need. It must import only, since threads do not survive a fork.
        workers: How many workers to start if they cannot be forked when they are needed.
        forks: Whether workers may be forked.
    """
    try:
        launcher = _idle_launcher() or _Process()
        _idle.append(launcher)
        with contextlib.suppress(Exception):  # it has just died, or a plugin cannot be pickled: the jobs will say so
            function = cloudpickle.dumps(prepare)
            launcher.connection.send(partial(Launcher.prepare, function=function, workers=workers, forks=forks))
        yield
    except BaseException:
        end_launchers()
        raise


def run_in_processes(
    work: Callable[[Job], Value],
    jobs: Sequence[Job],
    *,
    workers: int,
    retries: int,
    seconds: float | None = None,
    forks: bool,
) -> Iterator[Outcome[Value]]:
    """Yield one outcome for each job as it ends."""
    calls: dict[int, bytes] = {}
    for index, job in enumerate(jobs):
        try:
            calls[index] = cloudpickle.dumps((work, job))
        except Exception as error:
            yield Outcome(index, error=error)
    deaths = 0
    while calls:
        idle = _idle_launcher()
        launcher = idle or _Process()
        try:
            if idle is None:
                # To read the work imports its module. That may be what killed the last launcher; then a worker dies of
                # it, for which its job fails.
                function = b"" if deaths else cloudpickle.dumps(partial(type, work))
                launcher.connection.send(partial(Launcher.prepare, function=function, workers=0, forks=forks))
            launcher.connection.send(
                partial(Launcher.run, calls=calls, workers=workers, retries=retries, seconds=seconds)
            )
            while calls:
                index, ended = launcher.connection.recv()
                del calls[index]
                yield _outcome(index, ended, seconds)
            _idle.append(launcher)
        except (EOFError, OSError):
            deaths += 1
            ended = Ended(exit_code=launcher.end(), deaths=deaths)
            if deaths > 1 + retries:
                yield from (_outcome(index, ended, seconds) for index in calls)
                return
        except BaseException:
            launcher.end()
            raise


def _idle_launcher() -> _Process | None:
    while _idle:
        launcher = _idle.pop()
        if launcher.is_alive:
            return launcher
        launcher.end()
    return None


def _outcome(index: int, ended: Ended, seconds: float | None) -> Outcome[Any]:
    if ended.answer is not None:
        try:
            value, error, told = pickle.loads(ended.answer)  # noqa: S301 — from our own worker
        except Exception as raised:  # such as a class that exists there only
            return Outcome(index, error=raised)
        if error is not None:
            error.__cause__ = RemoteError(told)
        return Outcome(index, value, error)
    if ended.exit_code is None:
        assert seconds is not None
        return Outcome(index, error=too_late(seconds))
    times = "once" if ended.deaths == 1 else f"{ended.deaths} times"
    return Outcome(index, error=TrainingError(f"its worker process died {times}, {_cause(ended.exit_code)}"))


def _cause(exit_code: int) -> str:
    if exit_code == CUT_OFF:
        return "cut off: something in the training closes files that are not its own"
    if exit_code >= 0:
        return f"with exit code {exit_code}: something in the training ends the process"
    if exit_code == -signal.SIGKILL:
        return "killed by SIGKILL, perhaps for want of memory; try fewer workers"
    name = signal.Signals(-exit_code).name
    return (
        f"of {name} ({signal.strsignal(-exit_code)}): a crash in the detector, the augmentation or a library of theirs"
    )
