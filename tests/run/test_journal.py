"""The journal of a run: one line of JSON for each event, whatever cuts a line short."""

from __future__ import annotations

import json

import pytest

from dsv_plugins import StoreError
from dsv_plugins.run.journal import Journal


def names(journal: Journal) -> list[str]:
    return [event["event"] for event in journal.events()]


def test_a_journal_that_was_not_written_yet_is_empty(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.events() == []
    assert journal.seconds() == {}


def test_it_survives_a_line_cut_short(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("started", pid=1)
    journal.append("finished", candidate="x", updates=4, seconds=1.5)
    with journal.path.open("a") as file:
        file.write('{"event": "fin')
    assert names(journal) == ["started", "finished"]
    journal.append("resumed")
    assert names(journal) == ["started", "finished", "resumed"]


@pytest.mark.parametrize(
    "line",
    [
        *(b"\xff\xfe", b"5", b"{}", b"[" * 100_000, b'{"event": 5}', b'{"event": "finished"}'),
        b'{"event": "finished", "candidate": 5, "updates": 1, "seconds": 1}',
        b'{"event": "finished", "candidate": "x", "updates": "1", "seconds": 1}',
        b'{"event": "finished", "candidate": "x", "updates": 1, "seconds": "1"}',
        b'{"event": "finished", "candidate": "x", "updates": 1, "seconds": Infinity}',
    ],
    ids=lambda line: repr(line[:70]),
)
def test_a_line_that_cannot_be_read_is_skipped_and_counted(tmp_path, line):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("started", pid=1)
    journal.path.write_bytes(journal.path.read_bytes() + line + b"\n")
    journal.append("finished", candidate="x", updates=4, seconds=1.5)
    assert names(journal) == ["started", "finished"]
    assert journal.seconds() == {"x": 1.5}
    assert journal.unreadable_lines() == 1


def test_a_journal_that_is_none_is_one_line(tmp_path):
    with pytest.raises(StoreError, match=r"cannot be read \(Is a directory\)"):
        Journal(tmp_path).events()


def test_events_are_plain_json(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("failed", reason='a "quoted" line\nwith a break')
    (line,) = journal.path.read_text().splitlines()
    assert json.loads(line)["reason"] == 'a "quoted" line\nwith a break'


def test_the_seconds_of_a_candidate_are_those_of_its_last_training(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("finished", candidate="x", updates=4, seconds=1.5)
    journal.append("failed", candidate="y", reason="none")
    journal.append("finished", candidate="x", updates=12, seconds=2.5)
    assert journal.seconds() == {"x": 2.5}


@pytest.mark.parametrize(
    ("events", "elapsed"),
    [
        ([], None),
        ([("started", 5.0)], None),
        ([("started", 5.0), ("finished", 7.0), ("selected", 9.5)], 4.5),
        ([("started", 5.0), ("selected", 9.5), ("resumed", 20.0), ("selected", 21.0)], 4.5),
        ([("started", 5.0), ("finished", 7.0), ("resumed", 20.0), ("finished", 20.5), ("selected", 21.0)], 3.0),
        ([("started", "5"), ("selected", 9.5)], None),
        ([("selected", 9.5)], None),
    ],
)
def test_the_time_of_a_study_is_that_in_which_it_ran(tmp_path, events, elapsed):
    lines = [{"event": event, "time": time, "candidate": "x", "updates": 1, "seconds": 1} for event, time in events]
    file = tmp_path / "journal.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert Journal(file).elapsed() == elapsed
