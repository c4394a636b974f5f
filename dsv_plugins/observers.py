"""Who wants to know how a study goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dsv_plugins.types import Candidate

__all__ = ["Observer", "Observers"]


class Observer:
    """Told what happens in a study. Derive from it and override what is of interest; the rest does nothing.

    The calls come one at a time, though not all from the same thread, and in the process that runs the study, wherever
    the trainings run. A complete plugin, which appends a line to a file for every event that a plot would need:

    ```python
    import json
    from dsv_plugins import Observer, ObserverPlugin, hookimpl


    class Lines(Observer):
        \"\"\"Writes events as lines of JSON beside the run; MLflow or TensorBoard would be called in their place.\"\"\"

        def started(self, run, candidates):
            self.file = run / "events.jsonl"

        def updated(self, candidate, update, planned, loss):
            self.write(event="updated", candidate=str(candidate), update=update, loss=loss)

        def finished(self, candidate, seconds):
            self.write(event="finished", candidate=str(candidate), seconds=seconds)

        def selected(self, selector, candidate, loss):
            self.write(event="selected", selector=selector, candidate=str(candidate), loss=loss)

        def write(self, **event):
            with self.file.open("a") as file:
                print(json.dumps(event), file=file)


    @hookimpl
    def observer():
        return ObserverPlugin(name="lines", factory=Lines, summary="Events as lines of JSON")
    ```
    """

    def decoding(self, images: str, done: int, planned: int) -> None:
        """So many of the train, test or holdout images have been read."""

    def started(self, run: Path, candidates: Sequence[Candidate]) -> None:
        """The study has its images; these are all its candidates, and this is its run folder."""

    def dispatching(self, run: Path, candidates: Sequence[Candidate], updates: int | None) -> None:
        """These candidates are about to be trained, up to so many updates; the others of this round are stored."""

    def training(self, candidate: Candidate) -> None:
        """The training of a candidate has begun."""

    def updated(self, candidate: Candidate, update: int, planned: int, loss: float) -> None:
        """The training of a candidate has got so far; told about twice a second, not after every update."""

    def finished(self, candidate: Candidate, seconds: float) -> None:
        """A candidate is trained, evaluated and stored."""

    def failed(self, candidate: Candidate, reason: str) -> None:
        """A candidate failed, and is left out."""

    def noted(self, message: str) -> None:
        """Something that the user should know, in one line."""

    def selected(self, selector: str, candidate: Candidate, loss: float) -> None:
        """A selector has made its choice; the deciding one comes first."""


class Observers(Observer):
    """Several observers as one. A plugin that raises is told to the others and left alone from then on.

    Args:
        own: The caller's observer, whose errors are the caller's.
        plugins: Observers of plugins, by name.
    """

    def __init__(self, own: Observer, plugins: Mapping[str, Observer]) -> None:
        self._own = own
        self._plugins = dict(plugins)
        self._one_at_a_time = threading.RLock()

    def decoding(self, images: str, done: int, planned: int) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.decoding(images, done, planned))

    def started(self, run: Path, candidates: Sequence[Candidate]) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.started(run, candidates))

    def dispatching(self, run: Path, candidates: Sequence[Candidate], updates: int | None) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.dispatching(run, candidates, updates))

    def training(self, candidate: Candidate) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.training(candidate))

    def updated(self, candidate: Candidate, update: int, planned: int, loss: float) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.updated(candidate, update, planned, loss))

    def finished(self, candidate: Candidate, seconds: float) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.finished(candidate, seconds))

    def failed(self, candidate: Candidate, reason: str) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.failed(candidate, reason))

    def noted(self, message: str) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.noted(message))

    def selected(self, selector: str, candidate: Candidate, loss: float) -> None:
        """Pass it on."""
        self._tell(lambda observer: observer.selected(selector, candidate, loss))

    def _tell(self, event: Callable[[Observer], None]) -> None:
        with self._one_at_a_time:
            event(self._own)
            for name, observer in list(self._plugins.items()):
                try:
                    event(observer)
                except Exception as error:  # a logger is not worth a study
                    del self._plugins[name]
                    self.noted(f"observer {name!r} failed and is told nothing more ({type(error).__name__}: {error})")
