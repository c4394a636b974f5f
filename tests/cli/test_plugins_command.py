"""`dsv plugins`: one plugin's page, strictness, slow hooks and traces."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess

import pytest
from conftest import dsv, dsv_here, tiny_select

from dsv_plugins import DetectorEncoderPlugin, build_registry

PLUGIN = """
import functools
from dsv_plugins import AugmentationPlugin, hookimpl

class Fog:
    '''A veil.

    Args:
        density: How thick it is.
        colour: What it is
            made of.
    '''

    def __init__(self, density: float, colour: str = "white", *, soft=False):
        self.density = density

    def __call__(self, images, *, generator):
        return images

@hookimpl
def augmentation():
    return [
        AugmentationPlugin("fog", Fog, "A veil", {"density": [0.1, 0.5]}),
        AugmentationPlugin("black-fog", functools.partial(Fog, colour="black"), space={"density": [0.1]}),
    ]
"""


@pytest.fixture
def fog(tmp_path):
    file = tmp_path / "fog.py"
    file.write_text(PLUGIN)
    return file


def test_a_page_has_every_setting_with_type_default_space_and_meaning(fog):
    shown = dsv_here("plugins", "fog", "--plugins", fog)
    assert shown.returncode == 0
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "augmentation fog"
    assert "A veil" in lines
    assert f"file: {fog}" in lines
    assert "density float How thick it is." in lines
    assert "searched: 0.1, 0.5" in lines
    assert "colour str 'white' What it is made of." in lines
    assert "soft False" in lines
    assert "black-fog" not in shown.stdout
    (page,) = json.loads(dsv_here("plugins", "black-fog", "--plugins", fog, "--json").stdout)["plugins"]
    assert [setting["name"] for setting in page["settings"]] == ["density", "colour", "soft"]
    assert page["settings"][1]["default"] == "'black'"


PASSING_ON = """
import functools
from dsv_plugins import AugmentationPlugin, hookimpl

class Veil:
    '''A veil.

    Args:
        density: How thick it is.
        colour: What it is made of.
    '''

    def __init__(self, density: float = 0.5, colour="white"):
        pass

    def __call__(self, images, *, generator):
        return images

class Fog(Veil):
    def __init__(self, width, height: int = 8, **budget):
        '''Make a fog.

        Args:
            width: How wide it is.
            colour: As grey as it is.
        '''
        super().__init__(**budget)

class Settings:
    '''Settings.

    Args:
        depth: How deep it is.
    '''

    def __init__(self, depth: int = 1):
        self.depth = depth

@hookimpl
def augmentation():
    return [
        AugmentationPlugin("fog", Fog, space={"width": [1]}),
        AugmentationPlugin("mist", functools.partial(Fog, 3)),
        AugmentationPlugin("haze", lambda **settings: Fog(settings), settings=Settings(4)),
    ]
"""


def test_what_a_factory_passes_on_can_be_set_as_well(tmp_path):
    file = tmp_path / "fog.py"
    file.write_text(PASSING_ON)

    def settings(name: str) -> list[list[str]]:
        (page,) = json.loads(dsv_here("plugins", name, "--plugins", file, "--json").stdout)["plugins"]
        return [[each[key] for key in ("name", "type", "default", "meaning")] for each in page["settings"]]

    inherited = [["density", "float", "0.5", "How thick it is."], ["colour", "", "'white'", "As grey as it is."]]
    height = ["height", "int", "8", ""]
    assert settings("fog") == [["width", "", "", "How wide it is."], height, *inherited]
    assert settings("mist") == [height, *inherited]
    assert settings("haze") == [["depth", "int", "4", "How deep it is."]]


SELECTOR = """
from dsv_plugins import SelectorPlugin, hookimpl

class Fixed:
    def __init__(self, losses{default}):
        self.fixed = losses

    def losses(self, evaluations):
        return self.fixed[:len(evaluations)]

@hookimpl
def selector():
    return SelectorPlugin("fixed", Fixed{space})
"""


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ("", "the factory needs 'losses'; give it a default"),
        (
            ', space={"losses": [[1.0]]}',
            "its space is never searched; leave it out, and let users set --selector-params",
        ),
    ],
)
def test_a_selector_that_a_study_could_not_make_fails_its_check(space, told, tmp_path):
    (tmp_path / "fixed.py").write_text(SELECTOR.format(default="", space=space))
    ended = dsv_here("check", "fixed", "--plugins", tmp_path / "fixed.py")
    assert ended.returncode == 2
    assert ended.stderr.endswith(f"{told}\n")


def test_a_selector_is_set_on_the_command_line(finished, tmp_path):
    task, run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "fixed.py").write_text(SELECTOR.format(default="=(3.0, 2.0, 1.0)", space=""))

    def select(*options: object) -> subprocess.CompletedProcess[str]:
        arguments = tiny_select(task, tmp_path / "run", "--plugins", tmp_path / "fixed.py", *options, "--json")
        return dsv_here(*arguments)

    ended = select("--selector", "fixed", "--selector-params", "{losses: [3.0, 1.0, 2.0]}")
    assert json.loads(ended.stdout)["selected"]["fixed"]["params"] == {"patch_size": 0.08}, ended.stderr
    several = select("--selector", "fixed,dsv", "--selector-params", "{fixed: {losses: [0.5, 1, 2]}}")
    assert json.loads(several.stdout)["selected"]["fixed"]["loss"] == 0.5
    wrong = select("--selector", "fixed", "--selector-params", "{loses: [1]}")
    assert wrong.returncode == 2
    assert "the factory does not take 'loses' (did you mean 'losses'?)" in wrong.stderr


@pytest.mark.parametrize("name", ["patch-fusion", "patch-memory", "cutpaste-resnet18"])
def test_the_defaults_of_detectors_are_those_of_the_detector_that_is_made(name):
    (page,) = json.loads(dsv_here("plugins", name, "--json").stdout)["plugins"]
    registry = build_registry()
    made = registry.create(DetectorEncoderPlugin, name).settings
    accepted = set(inspect.signature(registry.get(DetectorEncoderPlugin, name).factory).parameters)
    assert {setting["name"] for setting in page["settings"]} == accepted
    for setting in page["settings"]:
        if setting["name"] != "preset":
            assert setting["default"] == repr(getattr(made, setting["name"]))
            assert setting["meaning"]


def test_an_unknown_name_is_one_line():
    ended = dsv_here("plugins", "cutpast")
    assert ended.returncode == 2
    assert "did you mean 'cutpaste'?" in ended.stderr


def test_strict_ends_with_1_if_something_failed(tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0")
    assert dsv_here("plugins", "--strict").returncode == 0
    relaxed = dsv_here("plugins", "--plugins", tmp_path / "bad.py")
    strict = dsv_here("plugins", "--plugins", tmp_path / "bad.py", "--strict")
    assert (relaxed.returncode, strict.returncode) == (0, 1)
    assert "ZeroDivisionError" in strict.stdout
    assert strict.stderr == "dsv plugins: 1 failed to load, as said above\n"


def test_slow_hooks_are_named_and_quick_ones_are_not(fog, tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text(f"import torch\n{PLUGIN.replace('fog', 'mist')}")
    ended = dsv("plugins", "--plugins", f"{fog},{slow}")
    told = [line for line in ended.stdout.splitlines() if line.startswith("advice ")]
    assert told == ["advice slow.py: imports torch with its hooks; import it in the factory instead"]


def test_a_trace_names_every_hook_with_its_provider_and_time(fog):
    ended = dsv("plugins", "--plugins", fog, DSV_TRACE_PLUGINS="1")
    assert ended.returncode == 0
    traced = [re.fullmatch(r"(.+): (\w+) ([0-9.]+) ms", line) for line in ended.stderr.splitlines()]
    assert all(traced)
    assert ("fog.py", "augmentation") in {(line[1], line[2]) for line in traced}
    assert dsv("plugins", "--plugins", fog).stderr == ""
