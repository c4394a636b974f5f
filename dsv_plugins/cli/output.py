"""The standard output of a command, kept free of what plugins and libraries print, and lines beside it."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from dsv_plugins.errors import StoreError, printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["answering", "note", "output", "own_output", "silence", "steady_streams", "tell"]

_kept: list[IO[str]] = []


class _Beside(io.FileIO):
    """The standard error, whose full disk or gone reader must not cost the answer on the standard output."""

    def write(self, content: ReadableBuffer, /) -> int:
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def steady_streams() -> None:
    """Let the standard error never fail, and let no file that is opened later take the place of a closed stream."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 — for as long as the process lives
    encoding = getattr(sys.stderr, "encoding", "utf-8")
    beside = io.BufferedWriter(_Beside(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(beside, encoding, errors="backslashreplace", line_buffering=True)


def tell(line: str) -> None:
    """Write one line to the standard error; what is in it cannot steer the terminal."""
    print(printable(line), file=sys.stderr)


def note(line: str) -> None:
    """Write a line that a user should know, and that ends nothing."""
    tell(f"note: {line}")


def output() -> IO[str]:
    """Return where a command writes its answer."""
    return _kept[-1] if _kept else sys.stdout


@contextlib.contextmanager
def own_output() -> Iterator[None]:
    """Keep the standard output for our own answer; whatever else is printed in the block goes to the standard error.

    That holds for the file descriptor too, so for libraries in C and for processes that are started in the block.
    """
    _flush()
    try:
        descriptor = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of the two is closed, so that there is nothing to keep apart
        yield
        return
    stream = sys.stdout
    is_real = _descriptor_of(stream) == 1  # what captures output, such as a notebook, has a stream of its own
    kept: IO[str] = _writer(descriptor, stream.encoding) if is_real else stream
    _kept.append(kept)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
        with answering(kept):
            kept.flush()
    finally:
        _flush()  # what C libraries still hold must not follow our answer
        _kept.pop()
        if is_real:
            kept.close()
        os.dup2(descriptor, 1)
        os.close(descriptor)


def _descriptor_of(stream: IO[str]) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None


def _writer(descriptor: int, encoding: str) -> IO[str]:
    # A name that the terminal's encoding lacks is spelled out: an image's name must not end the command.
    return open(descriptor, "w", encoding=encoding, errors="backslashreplace", closefd=False)


@contextlib.contextmanager
def answering(stream: IO[str]) -> Iterator[None]:
    """Write to a stream in the block. If its reader has gone, the rest goes nowhere, which is no error.

    Raises:
        StoreError: There is no room for it.
    """
    try:
        yield
    except BrokenPipeError:
        silence(stream)
    except OSError as error:
        silence(stream)
        raise StoreError(f"the output cannot be written ({error.strerror}); write it elsewhere") from error


def silence(stream: IO[str]) -> None:
    """Let what is still written to a stream go nowhere, since its reader, such as `head`, has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    stream.flush()


def _flush() -> None:
    """Write what Python and the C library have in their buffers."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
