"""What happens in a run: its journal, the notes to the user, and the observers that are notified."""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec

from dsv_plugins.errors import describe_error
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.journal import NOTED, Journal
from dsv_plugins.run.progress import TrainingProgress, read_progress
from dsv_plugins.run.remote_copy import RemoteCopy
from dsv_plugins.types import Candidate

__all__ = ["Observers", "ProgressWatcher", "RunLog"]

Details = ParamSpec("Details")

POLL_SECONDS = 0.5
CLOCK_SLACK = 1.0
"""Seconds by which a file system's clock may lag."""


class Observers:
    """Notifies several observers of each event, one event at a time. A plugin that raises is notified no more.

    Args:
        own: The caller's observer, whose errors are the caller's.
        plugins: Observers of plugins, by name.
    """

    def __init__(self, own: Observer, plugins: Mapping[str, Observer]) -> None:
        self._own = own
        self._plugins = dict(plugins)
        self._one_at_a_time = threading.RLock()

    def notify(
        self, event: Callable[Concatenate[Observer, Details], None], *args: Details.args, **kwargs: Details.kwargs
    ) -> None:
        """Call one method of every observer, as in `notify(Observer.finished, candidate, seconds)`.

        What was added to an event later is given by keyword: observers that were written before do not take it.
        """
        with self._one_at_a_time:
            _call(getattr(self._own, event.__name__), args, kwargs)
            for name, observer in list(self._plugins.items()):
                try:
                    _call(getattr(observer, event.__name__), args, kwargs)
                except (Exception, SystemExit) as error:  # a logger is not worth a study
                    del self._plugins[name]
                    self.notify(Observer.noted, f"observer {name!r} failed and is left out ({describe_error(error)})")


def _call(method: Callable[..., None], args: tuple[Any, ...], later: dict[str, Any]) -> None:
    parameters = inspect.signature(method).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    method(*args, **{name: value for name, value in later.items() if takes_all or name in parameters})


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
        self.journal.append(NOTED, message=message)
        self.notify(Observer.noted, message)


class ProgressWatcher:
    """Notifies observers of trainings in progress, wherever these run. Use as a context manager around them.

    Args:
        run: The run folder, where trainings write how far they are.
        candidates: Those about to be trained.
        observers: Who is notified.
    """

    def __init__(self, run: RunFolder, candidates: Sequence[Candidate], observers: Observers) -> None:
        self._run = run
        self._waiting = {candidate.id: candidate for candidate in candidates}
        self._seen: dict[str, TrainingProgress] = {}
        self._observers = observers
        self._started = time.time()
        self._looking = threading.RLock()  # no observer may hear of a training after its end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ProgressWatcher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def end(self, candidate: Candidate) -> None:
        """Notify of what is new about a candidate, and of nothing more afterwards."""
        with self._looking:
            if candidate.id in self._waiting:
                self._look(candidate)
                if candidate.id not in self._seen:
                    self._observers.notify(Observer.training, candidate)
                del self._waiting[candidate.id]

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            for candidate in list(self._waiting.values()):
                with self._looking:
                    if candidate.id in self._waiting:
                        self._look(candidate)

    def _look(self, candidate: Candidate) -> None:
        progress = read_progress(self._run, candidate.id, since=self._started - CLOCK_SLACK)
        if progress is None:
            return
        before = self._seen.get(candidate.id)
        if before is None:
            self._observers.notify(Observer.training, candidate)
        if before is None or before.update != progress.update:
            self._seen[candidate.id] = progress
            self._observers.notify(Observer.updated, candidate, progress.update, progress.planned, progress.loss)
