"""What an observer must do."""

from __future__ import annotations

import difflib
import tempfile
from pathlib import Path

from dsv_plugins.plugins.observer import Observer
from dsv_plugins.testing._suite import Subject, Suite, demand, has_sound_record
from dsv_plugins.types import Candidate

__all__ = ["SUITE"]

CANDIDATE = Candidate("cutout", {"patch_size": 0.1})
SIMILAR = 0.8


_Subject = Subject[Observer]


def is_an_observer(subject: _Subject) -> None:
    """The object derives from `Observer`, so that it knows the events of later versions too."""
    product = subject.build()
    demand(isinstance(product, Observer), f"made {product!r:.60}; derive it from dsv_plugins.Observer")


def has_no_misspelled_events(subject: _Subject) -> None:
    """No method is named nearly as an event is: nothing would call it."""
    events = [name for name in vars(Observer) if not name.startswith("_")]
    for name in dir(type(subject.build())):
        nearest = difflib.get_close_matches(name, events, 1, cutoff=SIMILAR)
        demand(
            not nearest or name in events,
            f"has a method {name!r}, which nothing calls; did you mean {', '.join(nearest)}?",
        )


def takes_the_events_of_a_study(subject: _Subject) -> None:
    """Every event of a small study is taken without an error."""
    observer = subject.build()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        observer.decoding("train", 2, 2)
        observer.started(run, [CANDIDATE])
        observer.dispatching(run, [CANDIDATE], 10)
        observer.training(CANDIDATE)
        observer.updated(CANDIDATE, 5, 10, 0.7)
        observer.finished(CANDIDATE, 1.5)
        observer.failed(CANDIDATE, "a reason")
        observer.noted("a line")
        observer.selected("dsv", CANDIDATE, 0.4)


SUITE = Suite(_Subject, (has_sound_record, is_an_observer, has_no_misspelled_events, takes_the_events_of_a_study))
