"""Every hook: a study that uses a plugin of it, and a section in the docs."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from brightness import SETTINGS, BrightnessPlugins, grey_images

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    Executor,
    ExecutorPlugin,
    Observer,
    ObserverPlugin,
    Outcome,
    Result,
    Search,
    SearchPlugin,
    SelectorPlugin,
    hookimpl,
    select,
)
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.plugins import specs

DOCS = Path(__file__).parents[2] / "docs"
HOOKS = [
    name
    for name, member in vars(specs).items()
    if inspect.isfunction(member) and hasattr(member, f"{specs.PROJECT}_spec")
]
STRENGTHS = [0.1, 0.2, 0.4]


def run(folder: Path, *plugins: object, **settings: object) -> Result:
    """A study of the three strengths of a brightening, with plugins beside those."""
    return select(
        grey_images(8, seed=0),
        grey_images(6, seed=1),
        out=folder / "run",
        plugins=(BrightnessPlugins(), *plugins),
        **{**SETTINGS, **settings},
    )


def strengths(result: Result) -> list[float]:
    return [entry.candidate.params["strength"] for entry in result.candidates]


def test_the_hooks_are_these():
    assert HOOKS == ["augmentation", "detector_encoder", "selector", "search", "executor", "observer"]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_section_in_the_docs_and_a_test(name):
    assert f"\n## `{name}`\n" in (DOCS / "reference" / "hooks.md").read_text()
    assert f"test_hook_{name}" in globals()


def test_hook_augmentation(tmp_path):
    class Plugins:
        @hookimpl
        def augmentation(self):
            return AugmentationPlugin("negative", lambda: lambda images, *, generator: 1 - images)

    result = run(tmp_path, Plugins(), augmentation="negative")
    embeddings = result.evaluation(result.choice.candidate).embeddings
    assert torch.allclose(embeddings.augmented, 1 - embeddings.train, atol=1e-6)
    assert str(result.choice.candidate) == "negative"


def test_hook_detector_encoder(tmp_path):
    from brightness import Brightness

    class Darkness(Brightness):
        def encode(self, images):
            return 1 - super().encode(images)

    class Plugins:
        @hookimpl
        def detector_encoder(self):
            return [DetectorEncoderPlugin("darkness", Darkness), DetectorEncoderPlugin("again", Darkness)]

    result = run(tmp_path, Plugins(), detector="again")
    assert isinstance(result.load_detector(result.choice.candidate), Darkness)
    test = open_dataset(result.path / "data").test
    darkness = 1 - test.double().mean((1, 2, 3), keepdim=False)[:, None] / 255
    assert torch.allclose(result.evaluation(result.choice.candidate).embeddings.test.double(), darkness, atol=1e-6)


def test_hook_selector(tmp_path):
    class Second:
        def losses(self, evaluations):
            return [abs(index - 1.0) for index in range(len(evaluations))]

    class Plugins:
        @hookimpl
        def selector(self):
            return SelectorPlugin("second", Second)

    result = run(tmp_path, Plugins(), selector="second")
    assert [entry.losses for entry in result.candidates] == [{"second": 1.0}, {"second": 0.0}, {"second": 1.0}]
    assert result.choice.candidate.params == {"strength": STRENGTHS[1]}


def test_hook_search(tmp_path):
    class Last(Search):
        def run(self, problem):
            return problem.evaluate(problem.grid()[-1:], problem.budget, None)

    class Plugins:
        @hookimpl
        def search(self):
            return SearchPlugin("last", Last)

    assert strengths(run(tmp_path, Plugins(), search="last")) == STRENGTHS[-1:]


def test_hook_executor(tmp_path):
    finished = []

    class Backwards(Executor):
        def run(self, work, jobs):
            for index in reversed(range(len(jobs))):
                yield Outcome(index, work(jobs[index]))

    class Plugins:
        @hookimpl
        def executor(self):
            return ExecutorPlugin("backwards", Backwards)

    class Finished(Observer):
        def finished(self, candidate, seconds):
            finished.append(candidate.params["strength"])

    result = run(tmp_path, Plugins(), executor="backwards", observer=Finished())
    assert finished == STRENGTHS[::-1]
    assert strengths(result) == STRENGTHS


def test_hook_observer(tmp_path):
    selected = []

    class Choices(Observer):  # of all events, it overrides one
        def selected(self, selector, candidate, loss):
            selected.append((selector, candidate, loss))

    class Plugins:
        @hookimpl
        def observer(self):
            return ObserverPlugin("choices", Choices)

    result = run(tmp_path, Plugins(), observers="choices", selector="dsv,mmd")
    assert selected == [(name, choice.candidate, choice.loss) for name, choice in result.selected.items()]
    assert [name for name, _, _ in selected] == ["dsv", "mmd"]
