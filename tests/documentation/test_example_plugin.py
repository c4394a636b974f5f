"""Our wheel, the example package's and those of `dsv new`, built and installed for real into an environment."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from conftest import dsv_here

from dsv_plugins.plugins.records import RECORDS

ROOT = Path(__file__).parents[2]
KINDS = [kind.replace("_", "-") for kind in RECORDS]
EXAMPLE = ROOT / "docs" / "examples" / "dsv-example-plugin"


def uv(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else [shutil.which("uv") or "uv"]
    subprocess.run([*command, *arguments], check=True, env=clean_environment())


def clean_environment() -> dict[str, str]:
    """The variables of this process, without those that would lead to other packages than the installed ones."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "DSV_DISABLE_PLUGINS")
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Environment:
    """A virtual environment with both wheels in it, and a folder to work in."""

    folder: Path
    wheels: Path

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run a program of the environment, which must succeed; its output."""
        ended = subprocess.run(
            [self.folder / "env" / "bin" / program, *arguments],
            cwd=self.folder,
            env=clean_environment(),
            text=True,
            capture_output=True,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("installed")
    wheels = folder / "wheels"
    for kind in KINDS:
        assert dsv_here("new", f"my-{kind}", "--kind", kind, "--out", folder).returncode == 0
    for project in (ROOT, EXAMPLE, *(folder / f"dsv-my-{kind}" for kind in KINDS)):
        uv("build", "--quiet", "--wheel", "--out-dir", wheels, project)

    # The versions at hand: they are in uv's cache, and the tests then see the same libraries inside and outside.
    here = {distribution.name: distribution.version.partition("+")[0] for distribution in metadata.distributions()}
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in here.items() if name != "dsv-plugins"))

    uv("venv", "--quiet", "--python", sys.executable, folder / "env")
    python = folder / "env" / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", python, "--constraints", constraints, *wheels.glob("*.whl"), "pytest")
    yield Environment(folder, wheels)
    shutil.rmtree(folder)  # gigabytes, which pytest would keep for three more runs


def test_our_wheel_carries_the_package_and_its_types(environment: Environment) -> None:
    (wheel,) = environment.wheels.glob("dsv_plugins-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "dsv_plugins/py.typed" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "dsv_plugins").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}


def test_the_environment_uses_the_installed_package(environment: Environment) -> None:
    location = environment.run("python", "-c", "import dsv_plugins; print(dsv_plugins.__file__)")
    assert Path(location).is_relative_to(environment.folder)


def test_both_plugins_are_listed_with_their_provider(environment: Environment) -> None:
    listing = json.loads(environment.run("dsv", "plugins", "--json"))
    found = {
        (plugin["kind"], plugin["name"]): (plugin["version"], plugin["space"])
        for plugin in listing["plugins"]
        if plugin["provider"] == "dsv-example-plugin"
    }
    assert found == {
        ("augmentation", "scar"): ("0.1.0", {"length": [0.1, 0.2, 0.4, 0.8]}),
        ("selector", "score-gap"): ("0.1.0", {}),
    }
    assert listing["failures"] == []
    assert "dsv-plugins" in {plugin["provider"] for plugin in listing["plugins"]}


def test_the_table_names_them(environment: Environment) -> None:
    table = environment.run("dsv", "plugins")
    assert "scar" in table
    assert "score-gap" in table


@pytest.mark.parametrize("name", ["scar", "score-gap"])
def test_they_pass_the_check_command(environment: Environment, name: str) -> None:
    checked = json.loads(environment.run("dsv", "check", name, "--json"))
    assert checked["name"] == name
    assert {check["status"] for check in checked["checks"]} == {"passed"}


def test_the_example_passes_its_own_test(environment: Environment) -> None:
    # A copy, since pytest would otherwise find our settings above it.
    tests = shutil.copytree(EXAMPLE / "tests", environment.folder / "tests", dirs_exist_ok=True)
    output = environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-config", tests)
    assert " passed" in output
    assert not set(output.split()) & {"skipped", "xfailed", "deselected"}


def test_new_packages_pass_their_own_tests(environment: Environment) -> None:
    folders = [environment.folder / f"dsv-my-{kind}" / "tests" for kind in KINDS]
    told = environment.run("python", "-m", "pytest", "-q", "--import-mode=importlib", *folders)
    assert " failed" not in told
    listing = json.loads(environment.run("dsv", "plugins", "--json"))
    found = {(plugin["kind"], plugin["name"]) for plugin in listing["plugins"] if plugin["name"].startswith("my-")}
    assert found == {(kind.replace("-", "_"), f"my-{kind}") for kind in KINDS}


def test_new_packages_keep_the_list_of_plugins_quick(environment: Environment) -> None:
    told = environment.run(
        "python", "-c", "import sys; from dsv_plugins.cli import main; main(['plugins']); print('torch' in sys.modules)"
    )
    assert told.splitlines()[-1] == "False"
