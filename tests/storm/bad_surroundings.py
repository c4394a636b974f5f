"""Limits of resources, and streams that are closed or full: how to begin a process with them."""

from __future__ import annotations

import os
import random
import resource
import shutil

KINDS = {"AS": (300_000_000, 6_000_000_000), "NPROC": (1, 24), "NOFILE": (6, 60), "FSIZE": (100, 300_000)}
"""Each limit, and between what its values are drawn."""
CAPABILITIES = "+dac_override,+dac_read_search"


def bad_limit(dice: random.Random) -> tuple[str, int]:
    """A limit and its value; small values are as likely as large ones."""
    kind = dice.choice(sorted(KINDS))
    low, high = KINDS[kind]
    return kind, int(low * (high / low) ** dice.random())


def limited(kind: str, value: int) -> tuple[list[str], dict[str, object]]:
    """What to put before a command, and how to start it, so that it has the limit."""
    # The number of processes does not limit root.
    before = ["setpriv", "--reuid=65534", "--clear-groups", f"--inh-caps={CAPABILITIES}"]
    before = [*before, f"--ambient-caps={CAPABILITIES}"] if kind == "NPROC" and os.getuid() == 0 else []
    assert not before or shutil.which("setpriv")
    if before:
        return [*before, "prlimit", f"--nproc={value}"], {}
    number = getattr(resource, f"RLIMIT_{kind}")
    return [], {"preexec_fn": lambda: resource.setrlimit(number, (value, value))}
