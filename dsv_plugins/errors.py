"""The exceptions of dsv_plugins, as one tree.

    DSVError                        everything below, for one `except`
    ├── PluginError                 a plugin is at fault, and is named
    │   ├── UnknownPluginError      nothing of that kind has that name
    │   ├── PluginConflictError     two providers claim one name
    │   ├── PluginSettingsError     the factory does not take those hyperparameters
    │   └── ConformanceError        the conformance kit found failures
    ├── EmbeddingError              embeddings that no loss can be computed from
    ├── ScoreError                  scores that no selector can be computed from
    ├── TrainingError               a training that ended without a usable detector
    ├── WorkerError                 a worker that cannot do a study's work, so that the study stops
    ├── StoreError                  the run folder cannot be written, or is in use
    └── InputError                  a file, a folder or a setting of the caller's is wrong

Each message is one line that says what is wrong and what to do about it; that of `ConformanceError` has one for each
failed check.
`exit_code` is what a command ends with: 2 where the call was wrong, 1 where the work failed.
"""

from __future__ import annotations

import difflib
import os
import shlex
import unicodedata
from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "ConformanceError",
    "DSVError",
    "EmbeddingError",
    "InputError",
    "PluginConflictError",
    "PluginError",
    "PluginSettingsError",
    "ScoreError",
    "StoreError",
    "TrainingError",
    "UnknownPluginError",
    "WorkerError",
    "describe_error",
    "did_you_mean",
]

NO_MEMORY = ("allocate memory", "failed to map segment", "bad_alloc")
NO_THREADS = ("start new thread", "resource temporarily unavailable")
"""What libraries say, in lower case, if the system gives them no more."""
FORMULA = tuple("=+-@＝＋－＠")
"""With these a formula begins, in some spreadsheets with the wide ones too."""
SIMILAR = 0.65
"""How similar a known name must be to be suggested: "serial" is not what somebody meant by "scal"."""


class DSVError(Exception):
    """The root of every error that this package raises on purpose."""

    exit_code: ClassVar[int] = 1


class PluginError(DSVError):
    """A plugin is at fault; the message names it and its provider."""


class UnknownPluginError(PluginError):
    """No plugin of that kind has that name."""

    exit_code = 2


class PluginConflictError(PluginError):
    """Two providers registered the same name of the same kind."""


class PluginSettingsError(PluginError):
    """A plugin's factory does not accept the hyperparameters it was given."""

    exit_code = 2


class ConformanceError(PluginError):
    """A plugin failed checks of the conformance kit."""


class EmbeddingError(DSVError):
    """A set of embeddings is empty, misshapen or not finite; the message names the set."""


class ScoreError(DSVError):
    """The candidates' scores do not permit this selector; the message says why."""


class TrainingError(DSVError):
    """A training ended without a usable detector, for the reason given."""


class WorkerError(DSVError):
    """A worker on another machine cannot do the work of this study, whatever the candidate."""


class StoreError(DSVError):
    """The run folder cannot be read or written, or another process uses it; what was finished is kept."""


class InputError(DSVError):
    """A file, a folder or a setting is wrong; the message names it and says what to do."""

    exit_code = 2


def printable(text: str) -> str:
    """Return the text with control characters spelled out, and nothing else changed.

    Neither a plugin nor the name of a file can then redraw the user's terminal, nor begin another line.
    """
    return "".join(
        character
        if character.isprintable() or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def cell(path: object) -> str:
    """Return a path for a CSV file, so that no spreadsheet takes it for a formula, nor a terminal for a command."""
    text = printable(str(path))
    return f"./{text}" if text.startswith(FORMULA) else text


def one_line(text: str) -> str:
    """Return prose of others, such as the message of a library, on one line and printable."""
    return printable(" ".join(text.split()))


def quoted(path: object) -> str:
    """Return a path as it is given to a shell, in one line: whoever copies it names the same file."""
    text = str(path)
    if text.isprintable():
        return shlex.quote(text)
    spelled = "".join(
        character
        if character.isprintable() and character not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
        for character in text
    )
    return f"$'{spelled}'"


class RemoteError(Exception):
    """Where in another process an error was raised: the cause of that error here, where it has no traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def describe_error(error: BaseException) -> str:
    """Return an exception's type and message, on one line, and what to do if the system gives no more."""
    try:
        message = one_line(str(error))
    except Exception:  # a foreign exception may fail even at this
        message = ""
    named = f"{type(error).__name__}: {shortened(message)}" if message else type(error).__name__
    return f"{named}{_shortage(error, message.lower())}"


def _shortage(error: BaseException, message: str) -> str:
    if isinstance(error, MemoryError) or any(each in message for each in NO_MEMORY):
        return " (there is not enough memory: free some, or raise the limit, `ulimit -v`)"
    if any(each in message for each in NO_THREADS):
        return " (no more threads may be started: raise the limit, `ulimit -u`, or that of memory, `ulimit -v`)"
    return ""


def reason_of(error: BaseException) -> str:
    """Return why something failed: the message of an error of ours, which says all; the type too of any other."""
    return one_line(str(error)) if isinstance(error, DSVError) else describe_error(error)


def shown(value: object, limit: int = 60) -> str:
    """Return a value as it is written in Python, for a line of ours that names it."""
    try:
        return shortened(one_line(repr(value)), limit)
    except Exception:  # as above
        return f"<{type(value).__name__}>"


def too_late(seconds: float) -> TrainingError:
    """Return the error of a training that took longer than it may."""
    return TrainingError(f"it took longer than {seconds:g} s; give it more time with --timeout, or fewer updates")


def shortened(text: str, limit: int = 300) -> str:
    """Return the beginning of a text that is longer than the limit, and any other as it is."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question whether the most similar known name was meant; empty if none is similar."""
    nearest = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=SIMILAR)
    return f"did you mean {nearest[0]!r}?" if nearest else ""
