"""One worker process, seen from both ends: a pipe brings it calls, and another takes its answers back.

It is a plain program, not a process of multiprocessing. So it does not import the caller's script again, it shares no
semaphores that could leak, and its exit code says how it died.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NoReturn, Protocol

import cloudpickle

from dsv_plugins import TrainingError
from dsv_plugins.errors import RemoteError, describe_error

__all__ = [
    "Answer",
    "Process",
    "Worker",
    "ignore_interrupts",
    "interrupts_blocked",
    "private_pipes",
    "serve",
    "start_process",
]

IDLE_SECONDS = 300
"""An idle worker ends after this many seconds."""
END_SECONDS = 5.0
"""How long to wait for a worker that was killed."""
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "  # first, since our own package may be on the path
    f"from {__name__} import private_pipes, serve; serve(*private_pipes())"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call.

    Attributes:
        value: What the function returned.
        error: What it raised.
        exit_code: That of the worker, if it died over the call; negative for a signal, as in `subprocess`.
        late: Whether the worker was stopped because the call took too long.
    """

    value: Any = None
    error: BaseException | None = None
    exit_code: int | None = None
    late: bool = False


class Process(Protocol):
    """What a worker needs of its process; `subprocess.Popen` has it."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code."""

    def kill(self) -> None:
        """End it at once."""


def start_process() -> Process:
    """A new process that serves, and has imported nothing yet."""
    path = json.dumps([str(folder) for folder in sys.path])
    with interrupts_blocked():  # the worker lets them in when it can ignore them
        return subprocess.Popen(  # noqa: S603 — our own interpreter and program
            [sys.executable, "-c", PROGRAM, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


class Worker:
    """The driver's end: calls functions in a worker process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_late = False
        self._unread = 0

    @property
    def is_alive(self) -> bool:
        """Whether the process is there, and not about to be stopped."""
        return not self._is_late and self._process.poll() is None

    def begin(self, function: Callable[[], object]) -> None:
        """Let the worker call a function whose answer nobody needs, without waiting for it."""
        with contextlib.suppress(OSError):  # it is gone, which the next call will find
            self._send(function, ())
            self._unread += 1

    def is_ready(self, seconds: float | None = None) -> bool:
        """Wait until the worker has ended what it was told to begin; False if it died or takes longer."""
        while self._unread and self.is_alive:
            self._receive(seconds)
            self._unread -= 1
        return self.is_alive

    def call(self, function: Callable[[Any], Any], argument: object, seconds: float | None = None) -> Answer:
        """Call a function in the worker, and wait for the answer, but no longer than so many seconds."""
        try:
            self._send(function, (argument,))
        except OSError:
            return Answer(exit_code=self._process.wait())
        return self._receive(seconds)

    def end(self) -> None:
        """Kill the process; it holds nothing that would be lost."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # what could not be sent stays unsent
            self._process.stdin.close()

    def _send(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        # The call is pickled twice: the thread that reads it there must not import what it needs.
        _write(self._process.stdin, cloudpickle.dumps((function, arguments)))

    def _receive(self, seconds: float | None) -> Answer:
        timer = None if seconds is None else threading.Timer(seconds, self._stop_late)
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            value, error, told = pickle.loads(_read(self._process.stdout))  # noqa: S301 — from our own worker
            if error is not None:
                error.__cause__ = RemoteError(told)
            return Answer(value, error)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # the pipe ended, perhaps amid an answer
            return Answer(exit_code=self._process.wait(), late=self._is_late)
        finally:
            if timer is not None:
                timer.cancel()

    def _stop_late(self) -> None:
        self._is_late = True
        self._process.kill()


def serve(incoming: IO[bytes], answers: IO[bytes]) -> NoReturn:
    """The worker's end: answer calls until the driver is gone, or has not called for long."""
    ignore_interrupts()
    if hasattr(os, "register_at_fork"):  # a child of a training would hide its end from the driver
        os.register_at_fork(after_in_child=lambda: os.close(answers.fileno()))
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_forward, args=(incoming, calls), daemon=True).start()
    while True:
        try:
            call = calls.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            os._exit(0)
        _write(answers, _answer_to(call))


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the driver. It reaches the whole group of processes, which is for the driver to deal with."""
    if hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def private_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes from and to the driver, out of the way of whatever reads from or prints to the standard ones."""
    incoming, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(incoming, "rb"), os.fdopen(answers, "wb")


def _forward(incoming: IO[bytes], calls: queue.SimpleQueue[bytes]) -> None:
    """Pass calls on. When the driver is gone its pipe ends, and so does this worker, whatever it is doing."""
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            calls.put(_read(incoming))
    os._exit(1)


def _answer_to(call: bytes) -> bytes:
    value, error, told = None, None, ""
    try:
        function, arguments = pickle.loads(call)  # noqa: S301 — from our own driver
        value = function(*arguments)
    except Exception as raised:
        error, told = raised, traceback.format_exc()
    except BaseException as raised:  # no plugin can end the worker, nor fake a Ctrl-C, which does not come here
        error, told = TrainingError(describe_error(raised)), traceback.format_exc()
    try:
        answer = cloudpickle.dumps((value, error, told))
        pickle.loads(answer)  # noqa: S301 — some exceptions can be pickled, but not unpickled
    except Exception as raised:
        answer = cloudpickle.dumps((None, TrainingError(describe_error(error or raised)), told))
    return answer  # type: ignore[no-any-return, unused-ignore]


def _write(pipe: IO[bytes] | None, content: bytes) -> None:
    assert pipe is not None
    pickle.dump(content, pipe)
    pipe.flush()


def _read(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    return pickle.load(pipe)  # type: ignore[no-any-return]  # noqa: S301 — from our own process


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """A Ctrl-C must not reach a worker that is starting and cannot yet say that it leaves it to its driver."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
