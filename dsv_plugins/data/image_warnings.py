"""What Pillow warns of while it reads a file, kept for a line that names the file."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["collecting_warnings", "warnings_of_pillow"]

_messages: ContextVar[list[str] | None] = ContextVar("messages", default=None)
"""Those of the file that a thread is reading. Each thread has its own value; the filters of Python are for all."""


@contextlib.contextmanager
def collecting_warnings() -> Iterator[None]:
    """Let `warnings_of_pillow` collect, in any thread, as long as this block lasts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", module=r"PIL\b")
        show = warnings.showwarning

        def keep(message: Warning | str, *details: Any, **more: Any) -> None:
            messages = _messages.get()
            if messages is None:
                show(message, *details, **more)
            else:
                messages.append(str(message))

        warnings.showwarning = keep
        yield


@contextlib.contextmanager
def warnings_of_pillow() -> Iterator[list[str]]:
    """A list that gets what this thread is warned of inside the block."""
    messages: list[str] = []
    token = _messages.set(messages)
    try:
        yield messages
    finally:
        _messages.reset(token)
