"""The journal of a run: what happened, one line of JSON for each event, appended and never changed.

It tells of the work, and no work depends on it: a line that cannot be read is skipped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv_plugins.errors import StoreError
from dsv_plugins.run.folder import writing

__all__ = ["NOTED", "RESUMED", "SELECTED", "STARTED", "Journal"]

STARTED, RESUMED, FINISHED, SELECTED, NOTED = "started", "resumed", "finished", "selected", "noted"


class Journal:
    """The file `journal.jsonl` of a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, **details: object) -> None:
        """Add one event, and wait until the disk has it."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **details})
        with writing(self.path), self.path.open("ab+") as journal:
            if journal.tell():
                journal.seek(-1, os.SEEK_END)
                if journal.read(1) != b"\n":  # a kill cut the last line short
                    journal.write(b"\n")
            journal.write(line.encode() + b"\n")
            journal.flush()
            os.fsync(journal.fileno())

    def events(self) -> list[dict[str, Any]]:
        """Return every event that can be read."""
        return [event for event in map(_event, self._lines()) if event is not None]

    def unreadable_lines(self) -> int:
        """Return how many lines cannot be read, such as one that a kill cut short."""
        return sum(_event(line) is None for line in self._lines())

    def seconds(self) -> dict[str, float]:
        """Return how long the training of each finished candidate took, by its id."""
        return {event["candidate"]: event["seconds"] for event in self.events() if event["event"] == FINISHED}

    def notes(self) -> list[str]:
        """Return what the user was told since the study was last started or resumed."""
        notes: list[str] = []
        for event in self.events():
            if event["event"] in (STARTED, RESUMED):
                notes = []
            elif event["event"] == NOTED:
                notes.append(str(event.get("message", "")))
        return notes

    def command(self) -> str:
        """Return the first command line that asked for the study; empty if none is known."""
        commands = [event.get("command") for event in self.events()]
        return next((command for command in commands if isinstance(command, str) and command), "")

    def elapsed(self) -> float | None:
        """Return the seconds that the study took until its selection; None if it has none.

        The time between an interruption and its resumption does not count.
        """
        elapsed, before = 0.0, None
        for event in self.events():
            time = event.get("time")
            if not isinstance(time, float):
                return None
            if before is not None and event["event"] != RESUMED:
                elapsed += time - before
            if event["event"] == SELECTED:
                return None if before is None else elapsed
            before = time
        return None

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read ({error.strerror}); check its permissions") from error


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    return None if event["event"] == FINISHED and not _tells_of_a_training(event) else event


def _tells_of_a_training(event: Mapping[str, Any]) -> bool:
    candidate, updates, seconds = (event.get(name, "") for name in ("candidate", "updates", "seconds"))
    return (
        isinstance(candidate, str)
        and candidate != ""
        and (updates is None or isinstance(updates, int))
        and isinstance(seconds, (int, float))
        and math.isfinite(seconds)
    )
