"""The log of a run: its journal, the copy of it at an address, the notes to the user, and the observers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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
        self._has_started = False

    @contextlib.contextmanager
    def failure_notified(self) -> Iterator[None]:
        """Notify the observers of an error that ends the study in the block, if they know that it has started."""
        try:
            yield
        except BaseException as error:
            if self._has_started:
                self.notify(Observer.study_failed, error)
            raise

    def notify(
        self, event: Callable[Concatenate[Observer, Details], None], *args: Details.args, **kwargs: Details.kwargs
    ) -> None:
        """Notify the observers of an event."""
        self._has_started = self._has_started or event.__name__ == Observer.started.__name__
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
