"""What Pillow warns of while it reads a file, kept for a line that names the file."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from PIL import Image

__all__ = ["collecting_warnings", "warnings_of_pillow"]

_of_this_thread = threading.local()  # unlike the filters of Python, which are for all threads


@contextlib.contextmanager
def collecting_warnings() -> Iterator[None]:
    """Let `warnings_of_pillow` collect, in any thread, as long as this block lasts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", module=r"PIL\b")
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `decode` says it in other words
        show = warnings.showwarning

        def keep(message: Warning | str, *details: Any, **more: Any) -> None:
            messages = getattr(_of_this_thread, "messages", None)
            if messages is None:
                show(message, *details, **more)
            else:
                messages.append(str(message))

        warnings.showwarning = keep
        yield


@contextlib.contextmanager
def warnings_of_pillow() -> Iterator[list[str]]:
    """Yield a list that gets what this thread is warned of inside the block."""
    messages: list[str] = []
    _of_this_thread.messages = messages
    try:
        yield messages
    finally:
        _of_this_thread.messages = None
