"""What an observer must do."""

from __future__ import annotations

import difflib
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from dsv_plugins.plugins.observer import Observer
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.records import CandidateRecord, SelectionRecord, write_checksummed
from dsv_plugins.run.run import Run, claim
from dsv_plugins.study.observers import Observers
from dsv_plugins.testing._suite import Suite, demand
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Scores

__all__ = ["Checks"]

EVENTS = [name for name in vars(Observer) if not name.startswith("_")]
CANDIDATE = Candidate("cutout", {"patch_size": 0.1})
SIMILAR = 0.8


class Checks(Suite[Observer]):
    """The checks of an observer."""

    def has_no_misspelled_events(self) -> None:
        """No method is named nearly as an event is: nothing would call it."""
        for name in dir(type(self._build())):
            nearest = difflib.get_close_matches(name, EVENTS, 1, cutoff=SIMILAR)
            demand(
                not nearest or name in EVENTS,
                f"has a method {name!r}, which nothing calls; did you mean {', '.join(nearest)}?",
            )

    def takes_the_events_of_a_study(self) -> None:
        """Every event of a small study is taken without an error, of one that ends well and of one that fails."""
        for fails in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                _notify(Observers(self._build(), {}), Path(folder), fails=fails)


def _notify(observers: Observers, run: Path, *, fails: bool) -> None:
    """The events of a study of one candidate."""
    rows = torch.zeros(2, 1)
    evaluation = Evaluation(CANDIDATE, Embeddings(rows, rows, rows), Scores(rows[:, 0], rows[:, 0]))
    observers.notify(Observer.decoding, "train", 2, 2)
    observers.notify(Observer.started, run, [CANDIDATE], planned=1)
    observers.notify(Observer.dispatching, run, [CANDIDATE], 10)
    observers.notify(Observer.training, CANDIDATE)
    observers.notify(Observer.updated, CANDIDATE, 5, 10, 0.7)
    observers.notify(Observer.finished, CANDIDATE, 1.5, evaluation=evaluation)
    observers.notify(Observer.failed, CANDIDATE, "a reason")
    observers.notify(Observer.noted, "a line")
    if fails:
        observers.notify(Observer.study_failed, RuntimeError("a reason"))
    else:
        entry = CandidateRecord(CANDIDATE, "finished", updates=10, losses={"dsv": 0.4})
        selection = SelectionRecord([entry], {"dsv": entry.id}, {}, {entry.id: 1.0}, 10, None, ())
        claim(RunFolder(run), {})
        write_checksummed(RunFolder(run).selection, asdict(selection))
        observers.notify(Observer.selected, "dsv", CANDIDATE, 0.4)
        observers.notify(Observer.study_ended, Run(run))
