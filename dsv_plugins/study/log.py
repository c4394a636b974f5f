"""The log of a run: its journal, the copy of it at an address, the notes to the user, and the observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from dsv_plugins.plugins.observer import Observer
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.journal import Journal
from dsv_plugins.run.remote_copy import RemoteCopy
from dsv_plugins.study.progress import Observers

__all__ = ["RunLog"]

Details = ParamSpec("Details")


class RunLog:
    """Where everything that happens in a run is written or shown.

    Args:
        folder: The run folder, which has the journal.
        remote_copy: The copy of the folder at an address, if there is one.
        observers: Who is notified.

    Attributes:
        journal: The journal.
        observers: As given.
        notes: What the user should know, in the order in which it came up.
    """

    def __init__(self, folder: RunFolder, remote_copy: RemoteCopy | None, observers: Observers) -> None:
        self._remote_copy = remote_copy
        self.journal = Journal(folder.journal)
        self.observers = observers
        self.notes: list[str] = []

    def notify(
        self, event: Callable[Concatenate[Observer, Details], None], *args: Details.args, **kwargs: Details.kwargs
    ) -> None:
        """Notify the observers of an event."""
        self.observers.notify(event, *args, **kwargs)

    def record(self, event: str, **details: object) -> None:
        """Append to the journal. What the event is about is finished by now, so the address gets its copy."""
        self.journal.append(event, **details)
        if self._remote_copy is not None:
            self._remote_copy.push()

    def note(self, message: str) -> None:
        """Keep a line for the user, and show it."""
        self.notes.append(message)
        self.notify(Observer.noted, message)
