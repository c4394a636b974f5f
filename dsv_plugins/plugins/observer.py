"""What an observer is notified of while a study runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsv_plugins.types import Candidate

__all__ = ["Observer"]


class Observer:
    """Notified of what happens in a study. Derive from it and override what is of interest; the rest does nothing.

    The calls come one at a time, though not all from the same thread, and always in the process that runs the study. A
    complete plugin, which appends a line to a file for every event that a plot would need:

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
        """`done` of the `planned` train, test or holdout images have been read."""

    def started(self, run: Path, candidates: Sequence[Candidate]) -> None:
        """The study has its images; these are all its candidates, and this is its run folder."""

    def dispatching(self, run: Path, candidates: Sequence[Candidate], updates: int | None) -> None:
        """These candidates are about to be trained up to `updates`; the others of this round are stored."""

    def training(self, candidate: Candidate) -> None:
        """The training of a candidate has begun."""

    def updated(self, candidate: Candidate, update: int, planned: int, loss: float) -> None:
        """The training of a candidate has made `update` updates; called about twice a second, not after every one."""

    def finished(self, candidate: Candidate, seconds: float) -> None:
        """A candidate is trained, evaluated and stored."""

    def failed(self, candidate: Candidate, reason: str) -> None:
        """A candidate failed, and is left out."""

    def noted(self, message: str) -> None:
        """Something that the user should know, in one line."""

    def selected(self, selector: str, candidate: Candidate, loss: float) -> None:
        """A selector has made its choice; the deciding one comes first."""
