"""Every hook: a study that uses a plugin of it, and a section in the docs."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from brightness import SETTINGS, BrightnessPlugins, grey_images
from conftest import dsv_here

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    DSVError,
    Executor,
    ExecutorPlugin,
    Observer,
    ObserverPlugin,
    Outcome,
    PluginConflictError,
    PluginError,
    PluginSettingsError,
    Registry,
    Result,
    ScoreError,
    Search,
    SearchPlugin,
    SelectorPlugin,
    UnknownPluginError,
    build_registry,
    hookimpl,
    load,
    select,
)
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.plugins import specs
from dsv_plugins.plugins.settings import settings_of
from dsv_plugins.testing import run_checks

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


# ---------------------------------------------------------------------------
# Names that several providers use
# ---------------------------------------------------------------------------


def constant(name: str, grey: float) -> SimpleNamespace:
    """A plugin object, called `name`, whose augmentation `flat` and selector `first` others have too."""
    plugin = type(name, (), {})()
    plugin.augmentation = hookimpl(
        lambda: AugmentationPlugin("flat", lambda: lambda images, *, generator: torch.full_like(images, grey))
    )
    plugin.selector = hookimpl(lambda: SelectorPlugin("first", Numbered))
    return plugin


class Numbered:
    """Its losses are the places of the candidates, from a first one on."""

    def __init__(self, start: float = 0.0, sign: int = 1) -> None:
        if sign not in (1, -1):
            raise ValueError(f"sign is {sign}; give 1 or -1")
        self.start, self.sign = start, sign

    def losses(self, evaluations):
        return [self.start + self.sign * place for place in range(len(evaluations))]


def test_qualified_names_work_in_a_study_and_in_its_model(tmp_path):
    plugins = (BrightnessPlugins(), constant("Dark", 0.0), constant("Light", 1.0))
    settings = {**SETTINGS, "grid": {}, "augmentation": "Light:flat,Dark:flat", "selector": "Dark:first,Light:first"}
    images = (grey_images(8, seed=0), grey_images(6, seed=1))
    with pytest.raises(PluginConflictError, match="say which, as Light:flat"):
        select(*images, out=tmp_path / "none", plugins=plugins, **{**settings, "augmentation": "flat"})
    result = select(*images, out=tmp_path / "run", plugins=plugins, **settings)
    augmented = [result.evaluation(entry.candidate).embeddings.augmented for entry in result.candidates]
    assert [float(embeddings.mean()) for embeddings in augmented] == [1.0, 0.0]
    assert list(result.selected) == ["Dark:first", "Light:first"]
    assert len(load(result.path, plugins=plugins).predict(images[1]).scores) == 6


# ---------------------------------------------------------------------------
# Settings of selectors
# ---------------------------------------------------------------------------

NUMBERED = SelectorPlugin("numbered", Numbered)


def test_selectors_are_set_as_detectors_are(tmp_path):
    one = run(tmp_path, selector=NUMBERED, selector_params={"start": 5.0, "sign": -1})
    assert [entry.losses for entry in one.candidates] == [{"numbered": 5.0}, {"numbered": 4.0}, {"numbered": 3.0}]
    assert one.choice.candidate.params == {"strength": STRENGTHS[2]}
    again = run(tmp_path, selector=NUMBERED, selector_params={"start": 1.0})
    assert again.choice.candidate.params == {"strength": STRENGTHS[0]}, "settings are a part of what is finished"
    several = run(tmp_path, selector=["dsv", NUMBERED], selector_params={"numbered": {"start": 2.0}})
    assert [entry.losses["numbered"] for entry in several.candidates] == [2.0, 3.0, 4.0]


class Judging(Search):
    """As halving, it looks at the losses."""

    def run(self, problem):
        evaluations = problem.evaluate(problem.grid(), problem.budget, None)
        self.losses.extend(problem.losses(list(evaluations.values())))
        return evaluations

    losses: list[float] = []  # noqa: RUF012


def test_a_search_steers_by_the_selector_as_it_is_set(tmp_path):
    alone = SelectorPlugin("numbered", Numbered, judges_alone=True)
    run(tmp_path, selector=alone, selector_params={"start": 7.0}, search=SearchPlugin("judging", Judging, judges=True))
    assert Judging.losses == [7.0, 8.0, 9.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selector_params": {"strat": 1}}, r"selector 'numbered' \(test_hooks\): .* does not take 'strat' \(did you"),
        ({"selector_params": {"sign": 3}}, r"selector 'numbered' \(test_hooks\) refused {'sign': 3}: sign"),
        ({"selector": ["dsv", NUMBERED], "selector_params": {"numbred": {}}}, r"'numbred', which is not among"),
        ({"selector": ["dsv", NUMBERED], "selector_params": {"numbered": 3}}, r"'numbered' is 3; give its settings by"),
        ({"selector": SelectorPlugin("needs", lambda size: None)}, r"the factory needs 'size'; give it a default"),
        (
            {"selector": SelectorPlugin("needs", Numbered, space={"start": [1.0]})},
            r"its space is never searched; leave it out, and let users set --selector-params",
        ),
    ],
)
def test_a_selector_that_cannot_be_made_is_refused_before_an_image_is_read(settings, message, tmp_path):
    everything = {**SETTINGS, "selector": NUMBERED, "plugins": (BrightnessPlugins(),), **settings}
    with pytest.raises(DSVError, match=message):
        select(tmp_path / "no-images", tmp_path / "no-images-either", out=tmp_path / "run", **everything)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------
# Selectors made of selectors
# ---------------------------------------------------------------------------


class Twice:
    """The doubled losses of another selector, which may be in no package."""

    def __init__(self, registry: Registry, of: str = "numbered") -> None:
        self.inner = registry.create(SelectorPlugin, of)

    def losses(self, evaluations):
        return [2 * loss for loss in self.inner.losses(evaluations)]


class Broken:
    def losses(self, evaluations):
        raise KeyError("width")


class Unjudging:
    def losses(self, evaluations):
        raise ScoreError("there are no scores")


def unmade(registry):
    return registry.create(SelectorPlugin, "absent")


TWICE = SelectorPlugin("twice", Twice)


def test_a_factory_gets_the_registry_of_the_study(tmp_path):
    result = run(tmp_path, NUMBERED, selector=TWICE)
    assert [entry.losses["twice"] for entry in result.candidates] == [0.0, 2.0, 4.0]


def test_the_conformance_kit_gives_a_factory_a_registry_too():
    failed = [
        each for each in run_checks(SelectorPlugin("twice", lambda registry: Twice(registry, "energy"))) if each.failed
    ]
    assert failed == []


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        (SelectorPlugin("numbered", Broken), "selector 'numbered' (test_hooks) failed: KeyError: 'width'"),
        (SelectorPlugin("numbered", Unjudging), "selector 'numbered' (test_hooks): there are no scores"),
    ],
)
def test_an_error_in_an_inner_selector_names_both(inner, told, tmp_path):
    with pytest.raises(PluginError) as caught:
        run(tmp_path, inner, selector=TWICE)
    assert str(caught.value) == f"selector 'twice' (test_hooks): {told}"


def test_an_inner_selector_that_cannot_be_made_is_named_with_the_outer_one():
    registry = build_registry([SelectorPlugin("outer", unmade)])
    with pytest.raises(UnknownPluginError, match=r"^selector 'outer' \(test_hooks\): no selector is named 'absent'"):
        registry.create(SelectorPlugin, "outer")


def test_a_registry_is_no_setting():
    registry = build_registry([TWICE, NUMBERED])
    with pytest.raises(PluginSettingsError, match=r"does not take 'registry'.*; it takes 'of'$"):
        registry.create(SelectorPlugin, "twice", {"registry": 3})
    assert [each.name for each in settings_of(registry.get(SelectorPlugin, "twice"))] == ["of"]


def test_a_model_of_a_plugin_that_was_given_as_an_object_says_how_a_command_gets_it(task, tmp_path):
    result = run(tmp_path)
    told = dsv_here("score", result.path, task / "test").stderr
    assert "install it, or give its file with --plugins" in told
    assert "plugins=" not in told
