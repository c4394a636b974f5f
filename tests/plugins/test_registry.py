"""The registry, with plugins of a script: what it says of each, and what it makes of names."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pluggy
import pytest
from conftest import BUILTINS, OWN

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    DSVError,
    ExecutorPlugin,
    InputError,
    PluginConflictError,
    PluginError,
    PluginSettingsError,
    Range,
    Registry,
    SelectorPlugin,
    UnknownPluginError,
    build_registry,
    hookimpl,
)
from dsv_plugins.plugins import specs
from dsv_plugins.plugins.discovery import Failure, Provider
from dsv_plugins.plugins.records import RECORDS, Plugin

pytestmark = pytest.mark.usefixtures("nothing_disabled")


# ---------------------------------------------------------------------------
# Plugins of a script
# ---------------------------------------------------------------------------


class Stripe:
    def __init__(self, thickness: int = 1, colour: str = "black") -> None:
        if thickness < 1:
            raise ValueError(f"thickness is {thickness}; give at least 1")
        self.thickness = thickness
        self.colour = colour

    def __call__(self, images, *, generator):
        return images


def plugin_module(name: str = "script", **hooks: Callable[..., object]) -> ModuleType:
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def reasons(*plugins: object) -> list[str]:
    """What the registry says of the given plugins, and of nothing else."""
    others = build_registry().failures
    return [failure.reason for failure in build_registry(plugins=plugins).failures if failure not in others]


def reasons_of_record(record: object) -> list[str]:
    return reasons(plugin_module(augmentation=lambda: record))


class Methods:
    @hookimpl
    def augmentation(self):
        return AugmentationPlugin("mine", Stripe)


class StaticMethods:
    @staticmethod
    @hookimpl
    def augmentation():
        return AugmentationPlugin("mine", Stripe)


class ClassMethods:
    @classmethod
    @hookimpl
    def augmentation(cls):
        return AugmentationPlugin("mine", Stripe)


class Settings:
    def __init__(self, thickness: int) -> None:
        self.thickness = thickness

    @hookimpl
    def augmentation(self):
        return AugmentationPlugin("mine", Stripe, f"Thickness {self.thickness}")


@pytest.mark.parametrize(
    ("plugin", "provider"),
    [
        (plugin_module("script", augmentation=lambda: AugmentationPlugin("mine", Stripe)), "script"),
        (Methods, "Methods"),
        (StaticMethods, "StaticMethods"),
        (ClassMethods, "ClassMethods"),
        (Methods(), "Methods"),
        (StaticMethods(), "StaticMethods"),
        (Settings(3), "Settings"),
    ],
    ids=["module", "class", "class-static", "class-classmethod", "instance", "instance-static", "instance-with-state"],
)
def test_a_script_can_hand_over(plugin, provider):
    registry = build_registry(plugins=[plugin])
    assert isinstance(registry.create(AugmentationPlugin, "mine", {"thickness": 2}), Stripe)
    assert registry.provider(AugmentationPlugin, "mine") == Provider(provider)
    assert reasons(plugin) == []


def test_a_class_that_needs_arguments_is_named():
    (reason,) = reasons(Settings)
    assert reason.startswith("its hooks cannot be reached: TypeError: ")
    assert "'thickness'" in reason


def test_hooks_may_return_one_record_several_or_none_and_may_yield_them():
    def yielding():
        yield SelectorPlugin("one", Stripe)
        yield SelectorPlugin("two", Stripe)

    plugin = plugin_module(
        augmentation=lambda: (AugmentationPlugin("one", Stripe), AugmentationPlugin("two", Stripe)),
        detector_encoder=lambda: DetectorEncoderPlugin("one", Stripe),
        selector=yielding,
        executor=lambda: (),
    )
    found = build_registry(plugins=[plugin]).plugins
    assert [(each.record.kind, each.record.name) for each in found if each.provider.name == "script"] == [
        ("augmentation", "one"),
        ("augmentation", "two"),
        ("detector_encoder", "one"),
        ("selector", "one"),
        ("selector", "two"),
    ]


def test_a_hook_may_go_by_another_name_and_may_have_defaults():
    module = ModuleType("script")
    module.stripes = hookimpl(specname="augmentation")(lambda count=1: AugmentationPlugin(f"mine-{count}", Stripe))
    assert build_registry(plugins=[module]).get(AugmentationPlugin, "mine-1")


def test_an_unknown_hook_that_is_marked_optional_is_no_failure():
    module = ModuleType("script")
    module.hook_of_a_later_version = hookimpl(optionalhook=True)(lambda: None)
    assert reasons(module) == []


def fails(*_: object) -> object:
    raise ZeroDivisionError


class Panic(BaseException):
    """As a Rust extension raises it."""


def panics() -> object:
    raise Panic("called `Option::unwrap()` on a `None` value")


class Unprintable:
    __repr__ = fails


class UnprintableError(Exception):
    __str__ = fails


def raises_unprintable() -> object:
    raise UnprintableError


def yields_and_fails():
    yield AugmentationPlugin("half", Stripe)
    raise ZeroDivisionError("later")


RETURN = "; return AugmentationPlugin records"


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (lambda: None, ["the hook 'augmentation' returned None" + RETURN]),
        (lambda: {"name": "mine"}, ["the hook 'augmentation' returned {'name': 'mine'}" + RETURN]),
        (lambda: [1, "a\nb"], [f"the hook 'augmentation' returned {each}{RETURN}" for each in ("1", r"'a\nb'")]),
        (lambda: "x" * 100, ["the hook 'augmentation' returned '" + "x" * 78 + "…" + RETURN]),
        (lambda: Unprintable(), ["the hook 'augmentation' returned <Unprintable>" + RETURN]),
        (
            lambda: SelectorPlugin("mine", len),
            [f"the hook 'augmentation' returned {repr(SelectorPlugin('mine', len))[:79]}…{RETURN}"],
        ),
        (fails, ["the hook 'augmentation' failed: ZeroDivisionError"]),
        (yields_and_fails, ["the hook 'augmentation' failed: ZeroDivisionError: later"]),
        (panics, ["the hook 'augmentation' failed: Panic: called `Option::unwrap()` on a `None` value"]),
        (raises_unprintable, ["the hook 'augmentation' failed: UnprintableError"]),
    ],
)
def test_a_hook_that_goes_wrong_is_told_in_a_line(hook, expected):
    assert reasons(plugin_module(augmentation=hook)) == expected


def test_an_interrupt_is_not_taken_for_a_failure():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_registry(plugins=[plugin_module(augmentation=interrupted)])


def test_a_wrapper_is_no_hook_of_ours():
    module = ModuleType("script")
    module.augmentation = hookimpl(wrapper=True)(lambda: (yield))
    assert reasons(module) == ["the hook 'augmentation' is a wrapper; return records instead"]


def test_a_plugin_without_hooks_is_named():
    assert reasons(SimpleNamespace(augmentation=lambda: None)) == [
        "implements no hook; mark a function with @hookimpl, "
        "named augmentation, detector_encoder, selector, search, executor or observer"
    ]


def test_a_hook_that_is_nothing_like_ours_lists_ours():
    assert reasons(plugin_module(pytest_configure=lambda: None)) == [
        "there is no hook named 'pytest_configure'; the hooks are augmentation, detector_encoder, selector, "
        "search, executor, observer"
    ]


class Foreign:
    """Fails wherever the registry looks."""

    __call__ = fails
    __signature__ = property(fails)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (AugmentationPlugin("mine", 3), ["augmentation 'mine': the factory 3 cannot be called"]),
        (
            AugmentationPlugin("mine", Stripe, "two\nlines"),
            [r"augmentation 'mine': the summary is 'two\nlines'; make it one line of text"],
        ),
        (
            AugmentationPlugin("mine", Stripe, "\x1b[2Jgone"),
            [r"augmentation 'mine': the summary is '\x1b[2Jgone'; make it one line of text"],
        ),
        (
            AugmentationPlugin("mine", Stripe, None),
            ["augmentation 'mine': the summary is None; make it one line of text"],
        ),
        (
            AugmentationPlugin("mine", lambda size, colour: None, space={"colour": ["red"]}),
            ["augmentation 'mine': the factory needs 'size'; give it a default or a place in the search space"],
        ),
        (
            AugmentationPlugin("mine", lambda: None, space={"colour": ["red"]}),
            ["augmentation 'mine': the factory does not take 'colour'; it takes nothing"],
        ),
        (
            DetectorEncoderPlugin("mine", Stripe, check_params={"width": 4}),
            ["detector_encoder 'mine': the factory does not take 'width'; it takes 'thickness', 'colour'"],
        ),
        (AugmentationPlugin("mine", Foreign()), ["augmentation 'mine' cannot be inspected: ZeroDivisionError"]),
        (
            AugmentationPlugin("Mine", Stripe, space={"colour": [], "thickness": Range(2, 1)}),
            [
                "augmentation 'Mine': the name is invalid; use lower-case letters, digits and single hyphens",
                "augmentation 'Mine': the search space of 'colour' is empty; give it at least one value",
                "augmentation 'Mine': the range of 'thickness' is empty: low 2 is above high 1",
            ],
        ),
    ],
)
def test_an_unsound_record_is_told_in_a_line_for_each_problem(record, expected):
    assert reasons(plugin_module(**{record.kind: lambda: record})) == expected


@pytest.mark.parametrize("name", ["a", "cut-paste", "resnet18", "3d", "a-1-b"])
def test_valid_names(name):
    assert reasons_of_record(AugmentationPlugin(name, Stripe)) == []


@pytest.mark.parametrize("name", ["", "-a", "a-", "a--b", "A", "a_b", "a b", "a/b", "ä", "a\n", "[red]", None, 3])
def test_invalid_names(name):
    (reason,) = reasons_of_record(AugmentationPlugin(name, Stripe))
    assert reason.endswith("the name is invalid; use lower-case letters, digits and single hyphens")
    assert "\n" not in reason


def test_a_factory_may_take_anything_or_hide_its_signature():
    assert reasons_of_record(AugmentationPlugin("mine", lambda **settings: None, space={"size": [1]})) == []
    assert reasons_of_record(AugmentationPlugin("mine", type, space={"size": [1]})) == []


def test_a_huge_search_space_is_not_enumerated(monkeypatch):
    monkeypatch.setattr(itertools, "product", fails)
    space = {f"hp_{index}": Range(index, 100) for index in range(30)} | {"mode": ["fast", "slow"]}
    record = AugmentationPlugin("mine", lambda **settings: None, space=space)
    assert reasons_of_record(record) == []
    assert record.first_point() == {f"hp_{index}": index for index in range(30)} | {"mode": "fast"}


def test_registries_share_nothing():
    first = build_registry(plugins=[plugin_module(augmentation=lambda: AugmentationPlugin("mine", Stripe))])
    assert first.get(AugmentationPlugin, "mine")
    with pytest.raises(UnknownPluginError):
        build_registry().get(AugmentationPlugin, "mine")


# ---------------------------------------------------------------------------
# Names, and what is made of them
# ---------------------------------------------------------------------------


@pytest.fixture
def registry() -> Registry:
    record = AugmentationPlugin("stripe", Stripe, "Stripes", {"thickness": [1, 2]})
    return build_registry(plugins=[plugin_module("stripes", augmentation=lambda: record)])


def test_the_hooks_of_the_specs_are_those_of_the_records():
    manager = pluggy.PluginManager(specs.PROJECT)
    manager.add_hookspecs(specs)
    assert set(vars(manager.hook)) == set(RECORDS)
    assert {record.__name__ for record in RECORDS.values()} == {
        "AugmentationPlugin",
        "DetectorEncoderPlugin",
        "SelectorPlugin",
        "SearchPlugin",
        "ExecutorPlugin",
        "ObserverPlugin",
    }


@pytest.mark.parametrize("kind", BUILTINS)
def test_built_ins_come_through_their_hooks(kind, registry):
    for name in BUILTINS[kind]:
        assert registry.get(RECORDS[kind], name).summary
        assert str(registry.provider(RECORDS[kind], name)) == OWN


def test_of_kind_gives_the_records_of_one_kind_built_ins_first(registry):
    names = [record.name for record in registry.of_kind(AugmentationPlugin)]
    assert set(names[:-1]) >= BUILTINS["augmentation"]
    assert names[-1] == "stripe"
    assert "dsv" not in names


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    records = [AugmentationPlugin(name, Stripe) for name in ("cutout", "cutpaste")]
    known = Registry([SimpleNamespace(record=record, provider=Provider("x")) for record in records])
    for name, expected in {
        "cutpast": "no augmentation is named 'cutpast' (did you mean 'cutpaste'?); known: cutout, cutpaste",
        "CUTOUT": "no augmentation is named 'CUTOUT' (did you mean 'cutout'?); known: cutout, cutpaste",
        "rotate": "no augmentation is named 'rotate'; known: cutout, cutpaste; for another, install its package, or "
        "give its file with --plugins or DSV_PLUGINS",
    }.items():
        with pytest.raises(UnknownPluginError) as caught:
            known.get(AugmentationPlugin, name)
        assert str(caught.value) == expected
    with pytest.raises(UnknownPluginError, match=r"^no executor is named 'ray'; known: none; for another, install"):
        known.get(ExecutorPlugin, "ray")


def test_a_name_of_another_kind_says_of_which(registry):
    with pytest.raises(
        UnknownPluginError, match=r"^no selector is named 'stripe'; that is .* of kind augmentation; known"
    ):
        registry.get(SelectorPlugin, "stripe")


def test_the_same_name_may_serve_two_kinds():
    plugin = plugin_module(
        augmentation=lambda: AugmentationPlugin("both", Stripe), selector=lambda: SelectorPlugin("both", Stripe)
    )
    registry = build_registry(plugins=[plugin])
    assert registry.get(AugmentationPlugin, "both").kind == "augmentation"
    assert registry.get(SelectorPlugin, "both").kind == "selector"


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        (
            [lambda: [AugmentationPlugin("mine", Stripe), AugmentationPlugin("mine", Stripe)]],
            "the augmentation 'mine' is provided 2 times by script-0; each needs a name of its own",
        ),
        (
            [lambda: AugmentationPlugin("mine", Stripe)] * 2,
            "the augmentation 'mine' is provided by script-0 and script-1; say which, as script-1:mine",
        ),
        (
            [lambda: AugmentationPlugin("cutout", Stripe)],
            f"the augmentation 'cutout' is provided by {OWN} and script-0; say which, as script-0:cutout",
        ),
    ],
    ids=["one provider", "two scripts", "script and built-in"],
)
def test_a_conflict_is_told_with_the_name_that_solves_it(hooks, expected):
    plugins = [plugin_module(f"script-{index}", augmentation=hook) for index, hook in enumerate(hooks)]
    assert reasons(*plugins) == [expected]
    with pytest.raises(PluginConflictError) as caught:
        build_registry(plugins=plugins).create(AugmentationPlugin, expected.split("'")[1])
    assert str(caught.value) == expected


def test_create_passes_the_hyperparameters(registry):
    made = registry.create(AugmentationPlugin, "stripe", {"thickness": 3})
    assert (made.thickness, made.colour) == (3, "black")
    assert registry.create(AugmentationPlugin, "stripe").thickness == 1


TAKES = "it takes 'thickness', 'colour'"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"size": 1}, f"augmentation 'stripe' (stripes): the factory does not take 'size'; {TAKES}"),
        ({"size": 1, "x": 2}, f"augmentation 'stripe' (stripes): the factory does not take 'size', 'x'; {TAKES}"),
        (
            {"thickness": 0},
            "augmentation 'stripe' (stripes) refused {'thickness': 0}: thickness is 0; give at least 1",
        ),
        (
            {"thickness": "thin"},
            "augmentation 'stripe' (stripes) refused {'thickness': 'thin'}: "
            "TypeError: '<' not supported between instances of 'str' and 'int'",
        ),
    ],
    ids=str,
)
def test_wrong_settings_name_the_plugin_its_provider_and_what_it_takes(params, expected, registry):
    with pytest.raises(PluginSettingsError) as caught:
        registry.create(AugmentationPlugin, "stripe", params)
    assert str(caught.value) == expected
    assert caught.value.exit_code == 2


def test_missing_settings_of_a_built_in_are_told_to_its_user():
    with pytest.raises(PluginSettingsError) as caught:
        build_registry().create(AugmentationPlugin, "cutpaste", {})
    assert str(caught.value).startswith(
        f"augmentation 'cutpaste' ({OWN}): the factory needs 'patch_size'; it takes 'patch_size', "
    )


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError("no such\nfile"), PluginError, "selector 'mine' (script) could not be made: OSError: no such file"),
        (InputError("weights.pt is missing"), InputError, "weights.pt is missing"),
        (UnknownPluginError("no detector"), UnknownPluginError, "selector 'mine' (script): no detector"),
    ],
    ids=str,
)
def test_a_factory_that_fails_is_named_unless_it_says_itself_what_is_wrong(error, expected, message):
    def factory() -> Stripe:
        raise error

    registry = build_registry(plugins=[plugin_module(selector=lambda: SelectorPlugin("mine", factory))])
    with pytest.raises(DSVError) as caught:
        registry.create(SelectorPlugin, "mine")
    assert (type(caught.value), str(caught.value)) == (expected, message)


def test_every_kind_of_record_has_the_hook_of_its_name():
    assert all(issubclass(record, Plugin) and record.kind == kind for kind, record in RECORDS.items())


def test_a_failure_reads_as_a_line():
    assert str(Failure(Provider("dsv-x", "1.0", "x"), "is broken")) == "dsv-x 1.0 (entry point 'x'): is broken"
    assert str(Failure(Provider("script"), "is broken")) == "script: is broken"
