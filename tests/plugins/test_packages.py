"""Packages that are really built and installed, each broken in its own way."""

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

import pytest
from conftest import BUILTINS, OWN

from dsv_plugins import (
    AugmentationPlugin,
    Observer,
    ObserverPlugin,
    PluginConflictError,
    Registry,
    Study,
    UnknownPluginError,
    build_registry,
    hookimpl,
)
from dsv_plugins.plugins.discovery import DISABLE_VARIABLE
from dsv_plugins.study.check import check_names

pytestmark = pytest.mark.usefixtures("nothing_disabled")


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
        "'dsv_exits' called sys.exit('no licence')",
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
        "the hook 'augmentation' failed: RuntimeError: the file is gone",
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
        "augmentation 'wrong': the factory does not take 'thicknes' (did you mean 'thickness'?); it takes 'thickness'",
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
    ),
    Package("dsv-twin-a", "2.1", augmentation("return AugmentationPlugin('twin', Stripe)")),
    Package(
        "dsv-twin-b",
        "2.2",
        augmentation("return AugmentationPlugin('twin', Stripe)"),
        "the augmentation 'twin' is provided by dsv-twin-a 2.1 and dsv-twin-b 2.2; say which, as dsv-twin-b:twin",
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


def search_path(site: Path) -> str:
    """Where Python looks for packages in a process of its own: as here, and in that folder."""
    return os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def dsv(site) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The `dsv` command where the packages are installed."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != DISABLE_VARIABLE}
        environment |= {"PYTHONPATH": search_path(site), **variables}
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
    (good,) = (plugin for plugin in listing["plugins"] if plugin["name"] == "good")
    assert [setting["name"] for setting in good.pop("settings")] == ["thickness"]
    assert good == {
        "kind": "augmentation",
        "name": "good",
        "provider": "dsv-good",
        "version": "1.0",
        "summary": "Sound",
        "space": {"thickness": [1, 2]},
    }
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


def test_a_name_with_two_providers_is_used_with_the_package_before_it(dsv):
    outcome = dsv("check", "twin")
    (reason,) = (each.reason for each in PACKAGES if each.name == "dsv-twin-b")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (1, "", f"dsv check: {reason}\n")
    for package in ("dsv-twin-a", "dsv-twin-b"):
        (plugin,) = json.loads(dsv("plugins", f"{package}:twin", "--json").stdout)["plugins"]
        assert plugin["provider"] == package
        checked = json.loads(dsv("check", f"{package}:twin", "--json").stdout)
        assert checked["checks"][0] == {"check": "has_sound_record", "status": "passed", "reason": ""}


def test_a_package_that_claims_the_name_of_a_built_in_does_not_switch_it_off(dsv, listing):
    line = (
        "dsv-taker 1.12 (entry point 'taker'): the augmentation 'cutpaste' is built in, and keeps its name; this one is"
    )
    assert [f"advice {line} dsv-taker:cutpaste"] == [
        each for each in dsv("plugins").stdout.splitlines() if "dsv-taker:cutpaste" in each and "advice" in each
    ]
    assert "dsv-taker" not in {each["provider"].split()[0] for each in listing["failures"]}
    for name, provider in (("cutpaste", "dsv-plugins"), ("dsv-taker:cutpaste", "dsv-taker")):
        (plugin,) = json.loads(dsv("plugins", name, "--json").stdout)["plugins"]
        assert plugin["provider"] == provider
    assert dsv("plugins", "dsv-plugins:cutpaste").returncode == 0
    assert "no plugin is named 'dsv-taken:cutpaste'" in dsv("plugins", "dsv-taken:cutpaste").stderr


def test_an_unknown_name_says_which_plugins_failed_to_load(dsv):
    outcome = dsv("check", "empti")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    for package in PACKAGES:
        conflict = "is provided by" in (package.reason or "")
        named = f"{package.name} {package.version} (entry point {package.entry_point!r}): {package.reason}" in line
        assert named == (package.reason is not None and not conflict)


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
def test_the_advice_on_a_conflict_helps():
    registry = build_registry()
    with pytest.raises(PluginConflictError) as caught:
        registry.get(AugmentationPlugin, "twin")
    name = str(caught.value).rpartition(" ")[2]
    assert str(registry.provider(AugmentationPlugin, name)) == "dsv-twin-b 2.2"
    assert str(registry.provider(AugmentationPlugin, "Dsv_Twin_A:twin")) == "dsv-twin-a 2.1"
    assert str(registry.provider(AugmentationPlugin, "cutpaste")) == OWN


@pytest.mark.usefixtures("on_path")
def test_a_study_takes_qualified_names(tmp_path, monkeypatch):
    names = ["dsv-taker:cutpaste", "cutpaste"]
    study = Study("train", "test", augmentation=",".join(names), grid={"thickness": [1], "patch_size": [0.1]})
    registry = build_registry()
    monkeypatch.setenv("DSV_RUNS", str(tmp_path))
    assert registry.identity(AugmentationPlugin, names[0]).startswith("dsv-taker 1.12 [")
    check_names(study, registry)
    assert study.folder().name.startswith("dsv-taker-cutpaste-cutpaste-")


@pytest.mark.usefixtures("on_path")
def test_a_name_that_disables_nothing_is_told(monkeypatch):
    monkeypatch.setenv(DISABLE_VARIABLE, "dsv-god, dsv-exits, nothing-like-it")
    first, second = (each for each in build_registry().advice if each.provider.name == DISABLE_VARIABLE)
    assert str(first) == ("DSV_DISABLE_PLUGINS: no package with plugins is named 'dsv-god'; did you mean 'dsv-good'?")
    assert "'nothing-like-it'; installed are " in str(second)
    monkeypatch.setenv(DISABLE_VARIABLE, "*")
    assert not [each for each in build_registry().advice if each.provider.name == DISABLE_VARIABLE]


@pytest.mark.usefixtures("on_path")
def test_who_knows_pluggy_finds_the_manager():
    registry = build_registry(plugins=[Given()])
    manager = registry.manager
    assert manager.get_plugin("dsv-good:good") is sys.modules["dsv_good"]
    assert {type(plugin) for plugin in manager.get_plugins()} >= {Given}
    found = [implementation.plugin_name for implementation in manager.hook.selector.get_hookimpls()]
    assert {"dsv-raises:raises", "dsv-asks:asks", "dsv-misspelled:misspelled"} <= set(found)
    # What cannot be called was left out, so that all others can be.
    assert "dsv-asks:asks" not in [each.plugin_name for each in manager.hook.augmentation.get_hookimpls()]
    assert [record.name for records in manager.hook.observer() for record in records] == ["given"]


class Given:
    @hookimpl(trylast=True)
    def observer(self):
        return [ObserverPlugin("given", Observer)]


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


def test_importing_the_package_loads_no_plugin_and_nothing_heavy(site):
    script = "import sys, dsv_plugins; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": search_path(site)}
    outcome = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    loaded = set(outcome.stdout.split())
    assert "dsv_plugins.plugins.registry" in loaded
    assert not loaded & {"torch", "torchvision", "numpy", "scipy", "sklearn", "lightning", "rich", "jsonargparse"}
    assert not {name for name in loaded if name.startswith("dsv_plugins.builtin.")}
    assert not loaded & {package.module for package in PACKAGES}
