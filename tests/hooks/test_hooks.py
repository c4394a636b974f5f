"""Every hook, called for real, and documented."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    Observer,
    ObserverPlugin,
    Outcome,
    SearchPlugin,
    SelectorPlugin,
    build_registry,
    hookimpl,
)
from dsv_plugins.hooks import specs

DOCS = Path(__file__).parents[2] / "docs"
HOOKS = [
    name
    for name, member in vars(specs).items()
    if inspect.isfunction(member) and hasattr(member, f"{specs.PROJECT}_spec")
]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_section_in_the_docs_and_a_test(name):
    assert f"\n## `{name}`\n" in (DOCS / "reference" / "hooks.md").read_text()
    assert f"test_hook_{name}" in globals()


def test_hook_augmentation():
    class Plugins:
        @hookimpl
        def augmentation(self):
            return AugmentationPlugin("negative", lambda: lambda images, *, generator: 1 - images)

    negative = build_registry([Plugins()]).create(AugmentationPlugin, "negative")
    assert torch.equal(negative(torch.zeros(1, 1, 2, 2), generator=torch.Generator()), torch.ones(1, 1, 2, 2))


def test_hook_detector_encoder():
    class Brightness:
        def fit(self, images, augmentation, *, updates=None, seed=0, progress=None):
            self.mean = images.float().mean()

        def score(self, images):
            return (images.float().mean((1, 2, 3)) - self.mean).abs()

    class Plugins:
        @hookimpl
        def detector_encoder(self):
            return [DetectorEncoderPlugin("brightness", Brightness), DetectorEncoderPlugin("again", Brightness)]

    detector = build_registry([Plugins()]).create(DetectorEncoderPlugin, "again")
    detector.fit(torch.zeros(2, 1, 2, 2), None)
    assert detector.score(torch.ones(3, 1, 2, 2)).tolist() == [1, 1, 1]


def test_hook_selector():
    class First:
        def losses(self, evaluations):
            return [float(index) for index in range(len(evaluations))]

    class Plugins:
        @hookimpl
        def selector(self):
            return SelectorPlugin("first", First)

    assert build_registry([Plugins()]).create(SelectorPlugin, "first").losses([None, None]) == [0, 1]


def test_hook_search():
    class Last:
        def run(self, problem):
            return problem.evaluate(problem.grid()[-1:], problem.budget, None)

    class Plugins:
        @hookimpl
        def search(self):
            return SearchPlugin("last", Last)

    problem = SimpleNamespace(
        grid=lambda: ["first", "second"], budget=3, evaluate=lambda candidates, updates, continues: candidates * updates
    )
    assert build_registry([Plugins()]).create(SearchPlugin, "last").run(problem) == ["second"] * 3


def test_hook_executor():
    class Backwards:
        def run(self, work, jobs):
            for index in reversed(range(len(jobs))):
                yield Outcome(index, work(jobs[index]))

    class Plugins:
        @hookimpl
        def executor(self):
            return ExecutorPlugin("backwards", Backwards)

    outcomes = list(build_registry([Plugins()]).create(ExecutorPlugin, "backwards").run(abs, [-1, -2]))
    assert outcomes == [Outcome(1, 2), Outcome(0, 1)]


def test_hook_observer():
    class Notes(Observer):
        def __init__(self):
            self.lines = []

        def noted(self, message):
            self.lines.append(message)

    class Plugins:
        @hookimpl
        def observer(self):
            return ObserverPlugin("notes", Notes)

    notes = build_registry([Plugins()]).create(ObserverPlugin, "notes")
    notes.noted("a line")
    notes.selected("dsv", None, 0.5)  # an event that it does not override
    assert notes.lines == ["a line"]
