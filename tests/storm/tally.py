"""How a command ended, and what that counts as."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsv_plugins.cli import main

HANG_SECONDS = 120
DSV = [sys.executable, "-m", "dsv_plugins"]


@dataclass(frozen=True)
class Ended:
    """How a command ended: with what exit code, and what it printed."""

    code: int
    out: str
    err: str

    def unclear(self, *sent: int) -> str | None:
        """Why a user would not know what to do; None if all is clear.

        Args:
            sent: The signals that were sent, by which it may have died.
        """
        if "Traceback" in self.err:
            return f"a traceback: {self.err.strip().splitlines()[-1]}"
        if self.code < 0:
            return None if -self.code in sent else f"died of signal {-self.code}"
        told = [line for line in self.err.splitlines() if line.startswith("dsv")]
        if self.code != 0 and len(told) != 1:
            return f"exit code {self.code} with {len(told)} lines: {self.err!r:.300}"
        return None


class HangError(BaseException):
    """A command took too long."""


def call(*arguments: object) -> Ended:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with _no_longer_than(HANG_SECONDS):
                code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # of the parser
            code = int(error.code or 0)
        except HangError:
            code, _ = -1, err.write("Traceback: it hangs\n")
        except BaseException:
            code, _ = 1, err.write(traceback.format_exc())
    return Ended(code, out.getvalue(), err.getvalue())


def call_apart(*arguments: object, before: Sequence[str] = (), start: Any = None, **environment: str) -> Ended:
    """Run a command in a process of its own, which a fault may kill.

    Args:
        arguments: Those of the command.
        before: What starts the command, if it does not start by itself.
        start: Called in the new process before the command.
        environment: Variables.
    """
    command = [*before, *DSV, *map(str, arguments)]
    everything = {**os.environ, **environment}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=everything, timeout=HANG_SECONDS, preexec_fn=start
        )
    except subprocess.TimeoutExpired:
        return Ended(-1, "", "Traceback: it hangs")
    return Ended(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError(time.strftime("%X"))

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Tally:
    """The counts of one storm, and a line for each fault that did harm."""

    KINDS = ("survived", "lost", "wrong", "outside", "unclear")

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []

    def count(
        self, fault: str, *, lost: object = None, wrong: object = None, outside: object = None, unclear: object = None
    ) -> None:
        """Count one fault by the worst that came of it."""
        for kind, reason in (("lost", lost), ("wrong", wrong), ("outside", outside), ("unclear", unclear)):
            if reason:
                self.counts[kind] += 1
                self.complaints.append(f"{kind}: {fault}: {reason}")
                return
        self.counts["survived"] += 1

    def summary(self) -> str:
        """The counts in one line."""
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in self.KINDS)
        return f"{self.name}: {sum(self.counts.values())} tried, {counts}"
