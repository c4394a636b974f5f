"""Interrupts: Ctrl-C and SIGTERM end a command in the same way, in one line and without a traceback."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

__all__ = ["end_at_once", "interruptible", "leave", "received"]

DEFAULTS: Mapping[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""What the handlers are if nobody has changed them. A shell lets its background jobs ignore Ctrl-C, which stays so."""

_received: list[int] = []


def received() -> int | None:
    """Return the signal that asked the command to end; None if there was none."""
    return _received[0] if _received else None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for SIGINT and SIGTERM in the block; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number, default in DEFAULTS.items() if signal.getsignal(number) == default]
    hook = sys.unraisablehook
    if ours:
        _received.clear()
        sys.unraisablehook = _raise_again
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, DEFAULTS[number])
        sys.unraisablehook = hook


def end_at_once(code: int) -> None:
    """From now on, let an interrupt end the process with this exit code: the work is done, and Python is leaving."""
    for number in DEFAULTS:
        if signal.getsignal(number) == _interrupt:
            signal.signal(number, lambda *_: os._exit(code))


def leave(code: int) -> NoReturn:
    """End the process with this exit code, without taking the interpreter apart.

    Threads are joined and exit functions run, as always. What is left out takes more than a second once torch is
    imported. It also makes the exit code wrong: `python -m` reports a Ctrl-C that came while a dataclass was made, even
    if it was handled.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # the two steps of Python's own exit that others rely on
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _received:
        os._exit(128 + number)
    _received.append(number)
    raise KeyboardInterrupt


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Keep an interrupt that came while Python called a destructor, from which nothing can be raised."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt) and _received:
        signal.raise_signal(_received.pop())
    else:
        sys.__unraisablehook__(unraisable)
