"""What an observer is notified of while a study runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Observer"]


class Observer:
    """Notified of what happens in a study. Derive from it and override what is of interest; the rest does nothing.

    The calls come one at a time, though not all from the same thread, and always in the process that runs the study.
    After `started` comes exactly one of `study_ended` and `study_failed`, unless the process is killed. An override may
    leave out arguments that have a default here: it is then called without them.

    A complete plugin, which appends a line to a file for every event that a plot would need:

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

        def study_ended(self, result):
            for entry in result.candidates:
                self.write(event="judged", candidate=str(entry.candidate), losses=entry.losses)

        def study_failed(self, error):
            self.write(event="study failed", reason=str(error))

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

    def started(self, run: Path, candidates: Sequence[Candidate], planned: int | None = None) -> None:
        """The study has its images; these are all its candidates, and this is its run folder.

        A search that proposes candidates by and by has none yet: `planned` says how many it will try at most. It is
        None if the search does not say.
        """

    def dispatching(self, run: Path, candidates: Sequence[Candidate], updates: int | None) -> None:
        """These candidates are about to be trained up to `updates`; the others of this round are stored."""

    def training(self, candidate: Candidate) -> None:
        """The training of a candidate has begun."""

    def updated(self, candidate: Candidate, update: int, planned: int, loss: float) -> None:
        """The training of a candidate has made `update` updates; called about twice a second, not after every one."""

    def finished(self, candidate: Candidate, seconds: float, evaluation: Evaluation | None = None) -> None:
        """A candidate is trained, evaluated and stored; None is the evaluation of a start that candidates share."""

    def failed(self, candidate: Candidate, reason: str) -> None:
        """A candidate failed, and is left out."""

    def noted(self, message: str) -> None:
        """Something that the user should know, in one line."""

    def selected(self, selector: str, candidate: Candidate, loss: float) -> None:
        """A selector has made its choice; the deciding one comes first."""

    def study_ended(self, result: Any) -> None:
        """The study has ended; this is the `Run` that `select` returns, with all losses of all selectors."""

    def study_failed(self, error: BaseException) -> None:
        """The study has ended with an error, or was interrupted. Close here what was opened when it started."""
