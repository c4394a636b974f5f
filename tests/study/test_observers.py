"""Observers of a study: what they are notified of, and what they cannot spoil."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
import torch
from conftest import DETECTOR, TINY

from dsv_plugins import (
    InputError,
    Observer,
    ObserverPlugin,
    PluginSettingsError,
    Search,
    SearchPlugin,
    SelectorPlugin,
    UnknownPluginError,
    hookimpl,
    select,
)
from dsv_plugins.study.observers import Observers

GRID = {"patch_size": [0.02, 0.08]}


def run(task, out, plugins=(), **settings):
    return select(
        task / "train/good",
        task / "test",
        grid=GRID,
        detector=DETECTOR,
        detector_params=TINY,
        executor="serial",
        out=out,
        plugins=tuple(plugins),
        **settings,
    )


def example() -> ModuleType:
    """The plugin in the docstring of `Observer`."""
    module = ModuleType("lines")
    source = (Observer.__doc__ or "").split("```python\n")[1].split("```")[0]
    exec("\n".join(line.removeprefix("    ") for line in source.splitlines()), vars(module))
    return module


def test_the_example_logs_a_study(task, tmp_path):
    result = run(task, tmp_path / "run", [example()], observers="lines", selector=["dsv", "base"])
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["candidate"] for event in events if event["event"] == "finished"] == [
        "shared start",
        *(str(entry.candidate) for entry in result.candidates),
    ]
    chosen = [
        (event["selector"], event["candidate"], event["loss"]) for event in events if event["event"] == "selected"
    ]
    assert chosen == [(name, str(choice.candidate), choice.loss) for name, choice in result.selected.items()]
    assert any(event["event"] == "updated" and event["update"] > 0 for event in events)


class Everything(Observer):
    """Keeps the name of every event but those that come as often as the clock wants."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if name in vars(Observer) and not name.startswith("_") and name not in ("decoding", "updated", "noted"):
            self.events.append(name)
        return super().__getattribute__(name)


def test_events_come_in_order(task, tmp_path):
    observer = Everything()
    run(task, tmp_path / "run", observer=observer)
    shared_start, candidate = ["dispatching", "training", "finished"], ["training", "finished"]
    trainings = [*shared_start, "dispatching", *candidate, *candidate]
    assert observer.events == ["started", *trainings, "selected", "study_ended"]
    observer.events.clear()
    run(task, tmp_path / "run", observer=observer)  # what is stored is notified of, too
    assert observer.events == ["started", "dispatching", "selected", "study_ended"]


class Logger(Observer):
    """Keeps what only the later arguments and events tell."""

    def __init__(self):
        self.planned, self.evaluations, self.ends = [], {}, []

    def started(self, run, candidates, planned=None):
        self.planned.append((len(candidates), planned))

    def finished(self, candidate, seconds, evaluation=None):
        self.evaluations[str(candidate)] = evaluation

    def study_ended(self, result):
        self.ends.append(result)

    def study_failed(self, error):
        self.ends.append(error)


class Half(Search):
    """Proposes the first half of the grid."""

    trials = 7

    def run(self, problem):
        candidates = problem.grid()
        return problem.evaluate(candidates[: len(candidates) // 2], problem.budget, None)


class Zero:
    def losses(self, evaluations):
        return [0.0 for _ in evaluations]


class Interrupted:
    def losses(self, evaluations):
        raise KeyboardInterrupt


def test_an_observer_sees_evaluations_and_all_losses_of_all_selectors(task, tmp_path):
    logger = Logger()
    result = run(task, tmp_path / "run", observer=logger, selector=["dsv", SelectorPlugin("zero", Zero)])
    assert logger.planned == [(2, 2)]
    assert logger.evaluations.pop("shared start") is None
    assert set(logger.evaluations) == {str(entry.candidate) for entry in result.candidates}
    for entry in result.candidates:
        seen = logger.evaluations[str(entry.candidate)]
        assert torch.equal(seen.scores.test, result.evaluation(entry.candidate).scores.test)
    (ended,) = logger.ends
    assert [entry.losses for entry in ended.candidates] == [entry.losses for entry in result.candidates]
    assert all(set(entry.losses) == {"dsv", "zero"} for entry in ended.candidates)


def test_the_number_of_candidates_is_told_for_a_search_that_proposes_them(task, tmp_path):
    logger = Logger()
    run(task, tmp_path / "run", observer=logger, search=SearchPlugin("half", Half, proposes=True))
    assert logger.planned == [(0, 7)]


@pytest.mark.parametrize(
    ("selector", "error"), [("mc", InputError), (SelectorPlugin("interrupted", Interrupted), KeyboardInterrupt)]
)
def test_a_study_that_fails_is_told_once_and_only_if_it_had_started(task, tmp_path, selector, error):
    logger = Logger()
    with pytest.raises(error) as raised:
        run(
            task, tmp_path / "run", observer=logger, selector=selector, search="halving" if selector == "mc" else "grid"
        )
    started = error is KeyboardInterrupt
    assert logger.planned == [(2, 2)] * started
    assert logger.ends == [raised.value] * started


def test_an_observer_of_the_first_interface_is_called_without_what_came_later():
    class Old(Observer):
        def finished(self, candidate, seconds):
            heard.append((candidate, seconds))

    class Open(Observer):
        def finished(self, *args, **later):
            heard.append((args, later))

    heard = []
    Observers(Old(), {"open": Open()}).notify(Observer.finished, "fog", 1.0, evaluation="all of it")
    assert heard == [("fog", 1.0), (("fog", 1.0), {"evaluation": "all of it"})]


class Fragile(Observer):
    calls = 0

    def started(self, run, candidates):
        Fragile.calls += 1
        raise OSError("the server is away")

    def selected(self, selector, candidate, loss):
        Fragile.calls += 1


class Plugins:
    @hookimpl
    def observer(self):
        return ObserverPlugin("fragile", Fragile)


def test_an_observer_that_raises_is_named_and_the_study_continues(task, tmp_path):
    notes = []

    class Notes(Observer):
        def noted(self, message):
            notes.append(message)

    Fragile.calls = 0
    result = run(task, tmp_path / "run", [Plugins()], observers=["fragile"], observer=Notes())
    assert [entry.status for entry in result.candidates] == ["finished", "finished"]
    assert "observer 'fragile' failed and is left out (OSError: the server is away)" in notes
    assert Fragile.calls == 1


def test_an_unknown_observer_stops_the_study_at_once(task, tmp_path):
    with pytest.raises(UnknownPluginError, match="'mlflo'"):
        run(task, tmp_path / "run", observers="mlflo")
    with pytest.raises(InputError, match="each once"):
        run(task, tmp_path / "run", [Plugins()], observers=["fragile", "fragile"])
    assert not (tmp_path / "run").exists()


EVENTS = [name for name in vars(Observer) if not name.startswith("_")]


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_reaches_every_observer(event):
    heard = []

    def listener(name):
        override = {event: lambda self, *args, **kwargs: heard.append((name, args, kwargs))}
        return type("Listener", (Observer,), override)()

    observers = Observers(listener("own"), {"first": listener("first"), "second": listener("second")})
    observers.notify(getattr(Observer, event), 1, 2, third=3)
    assert heard == [(name, (1, 2), {"third": 3}) for name in ("own", "first", "second")]


def test_the_error_of_the_callers_own_observer_is_the_callers():
    with pytest.raises(OSError, match="the server is away"):
        Observers(Fragile(), {}).notify(Observer.started, None, [])


def test_an_observer_gets_its_settings_by_its_name(task, tmp_path):
    class Greeting(Observer):
        def __init__(self, word="nothing"):
            self.word = word

        def started(self, run, candidates):
            (run / "greeting.txt").write_text(self.word)

    record = ObserverPlugin("greeting", Greeting)
    run(
        task,
        tmp_path / "run",
        [example()],
        observers=[record, "lines"],
        observer_params={"greeting": {"word": "hello"}},
    )
    assert (tmp_path / "run/greeting.txt").read_text() == "hello"
    with pytest.raises(InputError, match="observer_params has settings for 'greetings', .* observers: greeting"):
        run(task, tmp_path / "other", observers=record, observer_params={"greetings": {"word": "hello"}})
    with pytest.raises(PluginSettingsError, match=r"does not take 'words' \(did you mean 'word'\?\); it takes 'word'"):
        run(task, tmp_path / "other", observers=record, observer_params={"greeting": {"words": "hello"}})
    with pytest.raises(InputError, match="observer_params of 'greeting' is 'hello'; give its settings by their names"):
        run(task, tmp_path / "other", observers=record, observer_params={"greeting": "hello"})
    assert not (tmp_path / "other").exists()
