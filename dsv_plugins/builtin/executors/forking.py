"""Workers that are forked from one process, which has imported what they need: once for all, not once for each.

That process does nothing else, so that no thread and no lock of the driver's is in a worker. If it cannot fork, or
dies, its workers count as dead and are replaced by workers that import on their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, NoReturn

import cloudpickle

from dsv_plugins.builtin.executors.worker import Worker, ignore_interrupts, interrupts_blocked, serve

__all__ = ["Forker", "can_fork", "fork_on_request"]

PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    f"from {__name__} import fork_on_request; fork_on_request(int(sys.argv.pop()))"
)
FORKED = b"forked"
DESCRIPTORS = 3
LONGEST_MESSAGE = 16


def can_fork() -> bool:
    """Whether this system lets a process be forked, watched and ended without a doubt about which process it is."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


class Forker:
    """The driver's end: starts the process that imports, and asks it for workers.

    Args:
        prepare: What it calls before the first fork. It must import only, since threads do not survive a fork.
    """

    def __init__(self, prepare: Callable[[], object]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps([str(folder) for folder in sys.path])
        with theirs, interrupts_blocked():
            self._process = subprocess.Popen(  # noqa: S603 — our own interpreter and program
                [sys.executable, "-c", PROGRAM, str(theirs.fileno()), path],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as pipe:  # it is gone, which its workers will show
            cloudpickle.dump(prepare, pipe)

    @property
    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def fork(self) -> Worker:
        """A new worker; the caller need not wait until it is forked."""
        (calls, calling), (answering, answers) = os.pipe(), os.pipe()
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = [calls, answers, theirs.fileno()]
        try:
            with theirs, contextlib.suppress(OSError):  # the process is gone, which closing our copies will show
                socket.send_fds(self._requests, [FORKED], given)
        finally:
            os.close(calls)
            os.close(answers)
        process = _Forked(self, status, os.fdopen(calling, "wb"), os.fdopen(answering, "rb"))
        worker = Worker(process)
        worker.begin(os.getpid)  # its answer says that the worker is there
        return worker

    def kill(self) -> None:
        """End the process, and with it the workers that are not forked yet."""
        self._process.kill()
        self._process.wait()


class _Forked:
    """A worker's process as `subprocess.Popen` would show it. Its parent says what became of it.

    Args:
        forker: What forks it.
        status: Where the parent sends a handle of the process once it is forked, and its exit code at the end.
        stdin: Where calls go.
        stdout: Where answers come from.
    """

    def __init__(self, forker: Forker, status: socket.socket, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._forker = forker
        self._status = status
        self._handle: int | None = None
        self._exit_code: int | None = None
        self._looking = threading.Lock()

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def poll(self) -> int | None:
        """The exit code; None while the process is there, or not forked yet."""
        with self._looking:
            while self._exit_code is None and select.select([self._status], [], [], 0)[0]:
                message, handles, *_ = socket.recv_fds(self._status, LONGEST_MESSAGE, 1)
                if message == FORKED:
                    self._handle = handles[0]
                else:  # an exit code, or nothing: its parent has died, most likely for want of memory
                    self._exit_code = int(message) if message else -signal.SIGKILL
            return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            select.select([self._status], [], [], left)
        return code

    def kill(self) -> None:
        """Kill the process; if it is not forked yet, what would fork it."""
        self.poll()
        if self._handle is None:
            self._forker.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)


def fork_on_request(descriptor: int) -> NoReturn:
    """The other end: import, then fork a worker for each request, and tell the exit codes of those that end."""
    ignore_interrupts()
    os.dup2(2, 1)
    with contextlib.suppress(BaseException):  # the job of a worker will raise it again, and be blamed for it
        pickle.load(sys.stdin.buffer)()  # noqa: S301 — from our own driver
    if threading.active_count() > 1:  # they would be missing in the workers
        os._exit(1)
    requests = socket.socket(fileno=descriptor)
    workers: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready = select.select([requests.fileno(), *workers], [], [])[0]
        for handle in workers.keys() & ready:
            process, status = workers.pop(handle)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            with status, contextlib.suppress(OSError):  # nobody asks any more
                status.send(str(code).encode())
            os.close(handle)
        if requests.fileno() in ready:
            message, descriptors, *_ = socket.recv_fds(requests, LONGEST_MESSAGE, DESCRIPTORS)
            if not message:  # the driver is gone; the workers see that for themselves
                os._exit(0)
            calls, answers, status = *descriptors[:2], socket.socket(fileno=descriptors[2])
            process = os.fork()
            if process == 0:
                for other in (requests, status, *(other for _, other in workers.values())):
                    other.close()
                serve(os.fdopen(calls, "rb"), os.fdopen(answers, "wb"))
            os.close(calls)
            os.close(answers)
            handle = os.pidfd_open(process)
            workers[handle] = (process, status)
            with contextlib.suppress(OSError):
                socket.send_fds(status, [FORKED], [handle])
