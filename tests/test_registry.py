"""The registry: packages that are really built and installed, each broken in its own way, and plugins of a script."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pluggy
import pytest

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
    hookspecs,
)
from dsv_plugins.records import RECORDS, Plugin
from dsv_plugins.registry import DISABLE_VARIABLE, Failure, Provider

OWN = f"dsv-plugins {metadata.version('dsv-plugins')}"
BUILTINS = {
    "augmentation": {"cutout", "cutavg", "cutdiff", "cutpaste"},
    "detector_encoder": {"cutpaste-resnet18"},
    "selector": {
        *("dsv", "discordance", "separability", "base", "mmd", "std", "mc", "select", "hits"),
        *("pu-auc", "energy", "cosine"),
    },
    "search": {"grid", "halving"},
}


@pytest.fixture(autouse=True)
def _nothing_disabled(monkeypatch):
    monkeypatch.delenv(DISABLE_VARIABLE, raising=False)


# ---------------------------------------------------------------------------
# Packages that are really built and installed
# ---------------------------------------------------------------------------

HEADER = """
from dsv_plugins import AugmentationPlugin, SelectorPlugin, hookimpl

class Stripe:
    def __init__(self, thickness=1):
        pass
"""


@dataclass(frozen=True)
class Package:
    """A plugin package. `code` follows the header; `reason` is what the registry must say of it."""

    name: str
    version: str
    code: str
    reason: str | None = None
    value: str = ""
    survives: bool = True  # whether the selector that every package brings is still listed

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def entry_point(self) -> str:
        return self.name.removeprefix("dsv-")

    @property
    def selector(self) -> str:
        return f"{self.name}-survivor"

    def write(self, folder: Path) -> None:
        (folder / "src" / self.module).mkdir(parents=True)
        (folder / "src" / self.module / "__init__.py").write_text(
            f"{HEADER}\n{self.code}\n@hookimpl\ndef selector():\n    return SelectorPlugin({self.selector!r}, Stripe)\n"
        )
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "{self.name}"\nversion = "{self.version}"\n'
            f'[project.entry-points.dsv_plugins]\n{self.entry_point} = "{self.value or self.module}"\n'
            # uv builds with this backend in its own process, so that fifteen packages take a second and no network.
            '[build-system]\nrequires = ["uv_build"]\nbuild-backend = "uv_build"\n'
        )


def augmentation(body: str, arguments: str = "") -> str:
    return f"@hookimpl\ndef augmentation({arguments}):\n    {body}\n"


PACKAGES = [
    Package(
        "dsv-good", "1.0", augmentation("return AugmentationPlugin('good', Stripe, 'Sound', {'thickness': [1, 2]})")
    ),
    Package(
        "dsv-import-error",
        "1.1",
        "import a_module_that_nobody_has",
        "'dsv_import_error' cannot be loaded: ModuleNotFoundError: No module named 'a_module_that_nobody_has'",
        survives=False,
    ),
    Package(
        "dsv-no-module",
        "1.2",
        "",
        "'dsv_no_module.absent' cannot be loaded: ModuleNotFoundError: No module named 'dsv_no_module.absent'",
        value="dsv_no_module.absent",
        survives=False,
    ),
    Package(
        "dsv-no-attribute",
        "1.3",
        "",
        "'dsv_no_attribute:plugin' cannot be loaded: "
        "AttributeError: module 'dsv_no_attribute' has no attribute 'plugin'",
        value="dsv_no_attribute:plugin",
        survives=False,
    ),
    Package(
        "dsv-exits",
        "1.4",
        "import sys\nsys.exit('no licence')",
        "'dsv_exits' cannot be loaded: SystemExit: no licence",
        survives=False,
    ),
    Package(
        "dsv-misspelled",
        "1.5",
        "@hookimpl\ndef augmentaton():\n    return AugmentationPlugin('lost', Stripe)",
        "there is no hook named 'augmentaton'; did you mean 'augmentation'?",
    ),
    Package(
        "dsv-raises",
        "1.6",
        augmentation("raise RuntimeError('the file\\n  is gone')"),
        "the hook 'augmentation' raised RuntimeError: the file is gone",
    ),
    Package(
        "dsv-wrong-return",
        "1.7",
        augmentation("return 'stripe'"),
        "the hook 'augmentation' returned 'stripe'; return AugmentationPlugin records",
    ),
    Package(
        "dsv-invalid-name",
        "1.8",
        augmentation("return AugmentationPlugin('Cut Paste', Stripe)"),
        "augmentation 'Cut Paste': the name is invalid; use lower-case letters, digits and single hyphens",
    ),
    Package(
        "dsv-empty-space",
        "1.9",
        augmentation("return AugmentationPlugin('empty', Stripe, space={'thickness': []})"),
        "augmentation 'empty': the search space of 'thickness' is empty; give it at least one value",
    ),
    Package(
        "dsv-wrong-parameter",
        "1.10",
        augmentation("return AugmentationPlugin('wrong', Stripe, space={'thicknes': [1]})"),
        "augmentation 'wrong': the factory does not take 'thicknes'; it takes 'thickness'",
    ),
    Package(
        "dsv-asks",
        "1.11",
        augmentation("return AugmentationPlugin('asks', Stripe)", arguments="config, seed"),
        "the hook 'augmentation' asks for 'config', 'seed', but hooks are called without arguments",
    ),
    Package(
        "dsv-taker",
        "1.12",
        augmentation("return AugmentationPlugin('cutpaste', Stripe)"),
        f"the augmentation 'cutpaste' is provided by {OWN} and dsv-taker 1.12; "
        "leave one out with DSV_DISABLE_PLUGINS=dsv-taker, or uninstall it",
    ),
    Package("dsv-twin-a", "2.1", augmentation("return AugmentationPlugin('twin', Stripe)")),
    Package(
        "dsv-twin-b",
        "2.2",
        augmentation("return AugmentationPlugin('twin', Stripe)"),
        "the augmentation 'twin' is provided by dsv-twin-a 2.1 and dsv-twin-b 2.2; "
        "leave one out with DSV_DISABLE_PLUGINS=dsv-twin-b, or uninstall it",
    ),
]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """A folder into which all the packages are installed."""
    sources, site = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    for package in PACKAGES:
        package.write(sources / package.name)
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert uv, "uv is one of the development dependencies"
    options = ["--quiet", "--no-deps", "--no-cache", "--offline", "--python", sys.executable, "--target", str(site)]
    folders = [str(sources / package.name) for package in PACKAGES]
    subprocess.run([uv, "pip", "install", *options, *folders], check=True)
    return site


@pytest.fixture(scope="session")
def dsv(site) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The `dsv` command where the packages are installed."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != DISABLE_VARIABLE}
        environment |= {"PYTHONPATH": str(site), **variables}
        command = [str(Path(sys.executable).parent / "dsv"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def listing(dsv) -> dict[str, list[dict[str, object]]]:
    outcome = dsv("plugins", "--json")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.entry_point)
def test_a_broken_package_is_named_with_its_reason(package, listing):
    provider = f"{package.name} {package.version}"
    expected = [] if package.reason is None else [(provider, package.entry_point, package.reason)]
    failures = [tuple(failure.values()) for failure in listing["failures"] if failure["provider"] == provider]
    assert failures == expected


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.entry_point)
def test_the_sound_plugin_of_a_broken_package_still_works(package, listing):
    found = [plugin for plugin in listing["plugins"] if plugin["name"] == package.selector]
    if package.survives:
        assert [(plugin["provider"], plugin["version"]) for plugin in found] == [(package.name, package.version)]
    else:
        assert not found


def test_everything_else_is_listed_beside_the_broken_packages(listing):
    own = [plugin for plugin in listing["plugins"] if plugin["provider"] == "dsv-plugins"]
    for kind, names in BUILTINS.items():
        assert names <= {plugin["name"] for plugin in own if plugin["kind"] == kind}
    assert {plugin["version"] for plugin in own} == {metadata.version("dsv-plugins")}
    assert {
        "kind": "augmentation",
        "name": "good",
        "provider": "dsv-good",
        "version": "1.0",
        "summary": "Sound",
        "space": {"thickness": [1, 2]},
    } in listing["plugins"]
    lost = {"lost", "empty", "wrong", "asks", "Cut Paste"}
    assert not lost & {plugin["name"] for plugin in listing["plugins"]}


def test_the_table_shows_the_same_as_the_json(dsv, listing):
    outcome = dsv("plugins")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    for plugin in listing["plugins"]:
        assert any(plugin["name"] in line.split() for line in lines)
    failed = [line for line in lines if line.startswith("failed ")]
    assert failed == [
        f"failed {failure['provider']} (entry point {failure['entry_point']!r}): {failure['reason']}"
        for failure in listing["failures"]
    ]


@pytest.mark.parametrize(("name", "package"), [("cutpaste", "dsv-taker"), ("twin", "dsv-twin-b")])
def test_a_name_with_two_providers_cannot_be_used(name, package, dsv):
    outcome = dsv("check", name)
    (reason,) = (each.reason for each in PACKAGES if each.name == package)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (1, "", f"dsv check: {reason}\n")


def test_an_unknown_name_tells_which_plugins_failed_to_load(dsv):
    outcome = dsv("check", "empti")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    for package in PACKAGES:
        conflict = "is provided by" in (package.reason or "")
        told = f"{package.name} {package.version} (entry point {package.entry_point!r}): {package.reason}" in line
        assert told == (package.reason is not None and not conflict)


@pytest.fixture
def on_path(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))


def providers(registry: Registry) -> set[str]:
    return {plugin.provider.name for plugin in registry.plugins} | {each.provider.name for each in registry.failures}


EVERYONE = {package.name for package in PACKAGES} | {"dsv-plugins"}


@pytest.mark.parametrize(
    ("disabled", "left_out"),
    [
        ("", set()),
        ("good", {"dsv-good"}),
        ("dsv-good", {"dsv-good"}),
        ("Dsv_Good", {"dsv-good"}),
        (" exits , dsv-raises,", {"dsv-exits", "dsv-raises"}),
        ("goo", set()),
        ("dsv-plugins", set()),
        ("*", EVERYONE - {"dsv-plugins"}),
    ],
)
@pytest.mark.usefixtures("on_path")
def test_third_parties_can_be_left_out(disabled, left_out, monkeypatch):
    monkeypatch.setenv(DISABLE_VARIABLE, disabled)
    # Other plugin packages, such as our adapters, may be installed beside.
    assert providers(build_registry()) & EVERYONE == EVERYONE - left_out


@pytest.mark.usefixtures("on_path")
def test_a_package_that_is_left_out_is_not_even_imported(monkeypatch):
    monkeypatch.setenv(DISABLE_VARIABLE, "*")
    monkeypatch.delitem(sys.modules, "dsv_good", raising=False)
    build_registry()
    assert "dsv_good" not in sys.modules


@pytest.mark.usefixtures("on_path")
def test_the_advice_on_a_conflict_helps(monkeypatch):
    with pytest.raises(PluginConflictError) as caught:
        build_registry().get(AugmentationPlugin, "cutpaste")
    advice = next(word for word in str(caught.value).split() if word.startswith(DISABLE_VARIABLE)).rstrip(",")
    monkeypatch.setenv(*advice.split("="))
    registry = build_registry()
    assert str(registry.provider(AugmentationPlugin, "cutpaste")) == OWN


@pytest.mark.usefixtures("on_path")
def test_what_is_left_out_is_told_with_an_unknown_name(monkeypatch):
    monkeypatch.setenv(DISABLE_VARIABLE, "dsv-good")
    with pytest.raises(UnknownPluginError, match=r"left out by DSV_DISABLE_PLUGINS: dsv-good$"):
        build_registry().get(AugmentationPlugin, "good")


@pytest.mark.usefixtures("on_path")
def test_a_distribution_that_stands_on_the_path_twice_counts_once(site, tmp_path, monkeypatch):
    shutil.copytree(site, tmp_path / "copy")
    monkeypatch.syspath_prepend(str(tmp_path / "copy"))
    registry = build_registry()
    assert registry.get(AugmentationPlugin, "good").summary == "Sound"


@pytest.mark.usefixtures("on_path")
def test_an_installed_module_that_is_given_as_well_counts_once():
    import dsv_good  # type: ignore[import-not-found]

    assert str(build_registry(plugins=[dsv_good]).provider(AugmentationPlugin, "good")) == "dsv-good 1.0"


@pytest.mark.usefixtures("on_path")
def test_third_parties_come_in_the_order_of_their_names():
    names = [plugin.provider.name for plugin in build_registry().plugins]
    assert [name for name, _ in itertools.groupby(names)] == ["dsv-plugins", *sorted(set(names) - {"dsv-plugins"})]


def test_the_remains_of_a_package_do_not_stop_the_rest(tmp_path, monkeypatch):
    folder = tmp_path / "dsv_remains-1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text("[dsv_plugins]\nremains = dsv_remains\nodd = not a module!\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = build_registry()
    assert registry.get(AugmentationPlugin, "cutpaste").name == "cutpaste"
    reasons = {failure.provider.entry_point: failure.reason for failure in registry.failures}
    assert "No module named 'dsv_remains'" in reasons["remains"]
    assert reasons["odd"].startswith("'not a module!' cannot be loaded: ")


# ---------------------------------------------------------------------------
# Nothing happens at import
# ---------------------------------------------------------------------------


def test_importing_the_package_loads_no_plugin_and_nothing_heavy(site):
    script = "import sys, dsv_plugins; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    outcome = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    loaded = set(outcome.stdout.split())
    assert "dsv_plugins.registry" in loaded
    assert not loaded & {"torch", "torchvision", "numpy", "scipy", "sklearn", "lightning", "rich", "jsonargparse"}
    assert not {name for name in loaded if name.startswith("dsv_plugins.builtin.")}
    assert not loaded & {package.module for package in PACKAGES}


def test_registries_share_nothing():
    first = build_registry(plugins=[plugin_module(augmentation=lambda: AugmentationPlugin("mine", Stripe))])
    assert first.get(AugmentationPlugin, "mine")
    with pytest.raises(UnknownPluginError):
        build_registry().get(AugmentationPlugin, "mine")


# ---------------------------------------------------------------------------
# Plugins of a script
# ---------------------------------------------------------------------------


class Stripe:
    def __init__(self, thickness: int = 1, colour: str = "black") -> None:
        if thickness < 1:
            raise ValueError(f"thickness is {thickness}; give at least 1")
        self.thickness = thickness
        self.colour = colour


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
        (fails, ["the hook 'augmentation' raised ZeroDivisionError"]),
        (yields_and_fails, ["the hook 'augmentation' raised ZeroDivisionError: later"]),
        (panics, ["the hook 'augmentation' raised Panic: called `Option::unwrap()` on a `None` value"]),
        (raises_unprintable, ["the hook 'augmentation' raised UnprintableError"]),
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
        (AugmentationPlugin("mine", Foreign()), ["augmentation 'mine': cannot be inspected: ZeroDivisionError"]),
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


# ---------------------------------------------------------------------------
# Names, and what is made of them
# ---------------------------------------------------------------------------


@pytest.fixture
def registry() -> Registry:
    record = AugmentationPlugin("stripe", Stripe, "Stripes", {"thickness": [1, 2]})
    return build_registry(plugins=[plugin_module("stripes", augmentation=lambda: record)])


def test_the_hooks_of_the_specs_are_those_of_the_records():
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
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
        "rotate": "no augmentation is named 'rotate'; known: cutout, cutpaste",
    }.items():
        with pytest.raises(UnknownPluginError) as caught:
            known.get(AugmentationPlugin, name)
        assert str(caught.value) == expected
    with pytest.raises(UnknownPluginError, match=r"^no executor is named 'ray'; known: none$"):
        known.get(ExecutorPlugin, "ray")


def test_a_name_of_another_kind_is_told(registry):
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
            "the augmentation 'mine' is provided by script-0 and script-1; rename one",
        ),
        (
            [lambda: AugmentationPlugin("cutout", Stripe)],
            f"the augmentation 'cutout' is provided by {OWN} and script-0; rename one",
        ),
    ],
    ids=["one provider", "two scripts", "script and built-in"],
)
def test_a_conflict_that_no_variable_can_solve_does_not_name_one(hooks, expected):
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
            "augmentation 'stripe' (stripes) refused {'thickness': 0}: ValueError: thickness is 0; give at least 1",
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
        (UnknownPluginError("no detector"), UnknownPluginError, "no detector"),
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
