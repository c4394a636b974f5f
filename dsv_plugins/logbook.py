"""What happens in a run, for its journal, for the copy at its address, and for whoever watches."""

from __future__ import annotations

from dsv_plugins.mirror import Mirror
from dsv_plugins.observers import Observer
from dsv_plugins.store import RunFolder

__all__ = ["Logbook"]


class Logbook:
    """Keeps what happens.

    Args:
        folder: The run folder, which has the journal.
        mirror: The copy of the folder at an address, where there is one.
        observer: Who is told.

    Attributes:
        notes: What the user should know, in the order in which it came up.
    """

    def __init__(self, folder: RunFolder, mirror: Mirror | None, observer: Observer) -> None:
        self._folder = folder
        self._mirror = mirror
        self._observer = observer
        self.notes: list[str] = []

    def record(self, event: str, **details: object) -> None:
        """Append to the journal; what the event is about is finished by now, and can be copied to the address."""
        self._folder.note(event, **details)
        if self._mirror is not None:
            self._mirror.push()

    def note(self, message: str) -> None:
        """Keep a word to the user, and say it."""
        self.notes.append(message)
        self._observer.noted(message)
