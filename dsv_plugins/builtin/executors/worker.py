"""What a worker process does: it answers calls, one after the other, until its launcher ends it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing import connection, parent_process

import cloudpickle

from dsv_plugins import TrainingError
from dsv_plugins.errors import describe_error

__all__ = ["CUT_OFF", "READY", "call_quietly", "work"]

READY = b""
"""What a worker sends when it has imported what it needs: the time limit of a job starts then."""

CUT_OFF = 74
"""The exit code of a worker that cannot answer, although its launcher is there: a plugin has closed the connection."""


def work(pipe: connection.Connection, prepare: bytes) -> None:
    """Prepare, then answer each call that comes through the pipe.

    Args:
        pipe: Brings calls, and takes answers back.
        prepare: A pickled function that imports what jobs need; empty if that has been done.
    """
    launcher = os.getppid()
    with contextlib.suppress(RuntimeError):  # if no thread may be started, the job will say so
        threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()
    call_quietly(prepare)
    try:
        pipe.send_bytes(READY)
        while True:
            answer = _answer_to(pipe.recv_bytes())
            with contextlib.suppress(OSError, ValueError):  # a full disk, or closed by a plugin
                sys.stdout.flush()  # the launcher may kill a worker that has answered
                sys.stderr.flush()
            pipe.send_bytes(answer)
    except (EOFError, OSError):
        if os.getppid() == launcher:  # or else it is gone
            os._exit(CUT_OFF)


def call_quietly(function: bytes) -> None:
    """Call a pickled function, if there is one. What it raises, the job will raise again, and be blamed for it."""
    with contextlib.suppress(BaseException):
        if function:
            pickle.loads(function)()  # noqa: S301 — from our own driver


def _end_with(launcher: int) -> None:
    """If the launcher is killed, nobody else could stop this worker or a child of the training."""
    parent = parent_process()
    assert parent is not None
    with contextlib.suppress(OSError, ValueError):
        connection.wait([parent.sentinel])
    while os.getppid() == launcher:  # a plugin has closed the sentinel
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def _answer_to(call: bytes) -> bytes:
    """The value, the error and its traceback, pickled."""
    value, error, told = None, None, ""
    try:
        function, argument = pickle.loads(call)  # noqa: S301 — from our own driver
        value = function(argument)
    except Exception as raised:
        error, told = raised, traceback.format_exc()
    except BaseException as raised:  # no plugin can end the worker, nor fake a Ctrl-C, which does not come here
        error, told = TrainingError(describe_error(raised)), traceback.format_exc()
    try:
        answer: bytes = cloudpickle.dumps((value, error, told))
        pickle.loads(answer)  # noqa: S301 — some exceptions can be pickled, but not unpickled
    except Exception as raised:
        answer = cloudpickle.dumps((None, TrainingError(describe_error(error or raised)), told))
    return answer
