"""The journal of a run: what happened, one line of JSON for each event, appended and never changed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from dsv_plugins.store.folder import writing

__all__ = ["Journal"]


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
        """Every event; a line that a kill cut short is skipped."""
        if not self.path.exists():
            return []
        events = []
        for line in self.path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                events.append(json.loads(line))
        return events

    def seconds(self) -> dict[str, float]:
        """How long the training of each finished candidate took, by its id."""
        return {event["candidate"]: event["seconds"] for event in self.events() if event["event"] == "finished"}
