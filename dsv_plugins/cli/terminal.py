"""What the commands write to: a console that outlives its reader and shows foreign text as it is."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from dsv_plugins.cli.output import answering, output, silence
from dsv_plugins.errors import printable
from dsv_plugins.run.folder import finite

__all__ = ["Terminal", "any_name_printable", "literal", "progress_console"]


class Terminal(Console):
    """The standard output. When its reader, such as `head`, has gone, the command still ends with its own exit code."""

    def __init__(self) -> None:
        super().__init__(highlight=False, file=output())

    def print_json_object(self, content: object) -> None:
        """Print JSON for machines: indented, never wrapped, coloured or cut; null for what JSON has no number for."""
        self.write(f"{json.dumps(finite(content), indent=2, allow_nan=False)}\n")

    def write(self, text: str) -> None:
        """Write text for machines as it is."""
        with answering(self.file):
            self.file.write(text)

    def flush(self) -> None:
        """Write what is left, so that a reader who has gone is noticed now and not while Python shuts down."""
        with answering(self.file):
            self.file.flush()

    def on_broken_pipe(self) -> None:
        """Write the rest nowhere; rich would exit at once, and with 1."""
        self.quiet = True
        silence(self.file)


@contextlib.contextmanager
def any_name_printable() -> Iterator[None]:
    """Spell out what the terminal's encoding lacks inside the block: an image's name must not end the command."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        yield
        return
    stream, errors = sys.stdout, sys.stdout.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):  # its reader may have gone, and the stream with it
            stream.reconfigure(errors=errors)


def literal(text: str, style: str = "") -> Text:
    """Text that rich must not read as markup or emoji, and that cannot steer the terminal."""
    return Text(printable(text), style=style)


def progress_console(*, as_json: bool) -> Console:
    """Return where a command shows how far it is: beside its answer, unless that is for machines."""
    return Console(stderr=True) if as_json else Terminal()
