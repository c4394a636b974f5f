"""An edited plugin is another plugin, in a script, in a package and in a single file."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from conftest import dsv, journal, tiny_select

import dsv_plugins
from dsv_plugins.plugins import fingerprint as module
from dsv_plugins.plugins.fingerprint import fingerprint


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """A process reads each file once; a test edits them."""
    module._source.cache_clear()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write files of a package, and import its factory anew."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(name: str, attribute: str = "Fog", **files: str):
        for file, content in files.items():
            target = tmp_path / f"{file.replace('__', '/')}.py"
            target.parent.mkdir(exist_ok=True, parents=True)
            target.write_text(content)
        for loaded in [each for each in sys.modules if each.partition(".")[0] in (name, "helper")]:
            del sys.modules[loaded]
        importlib.invalidate_caches()
        module._source.cache_clear()
        return getattr(importlib.import_module(name), attribute)

    return written


@dataclass
class Entry:
    number: int


FOG = "class Fog:\n    def __call__(self, images, *, generator):\n        return images * {}\n"


def test_an_edited_module_is_another_plugin_and_a_repeated_one_is_not(write):
    first = fingerprint(write("fog_a", fog_a=FOG.format(0.5)))
    assert fingerprint(write("fog_a", fog_a=FOG.format(0.5))) == first
    assert fingerprint(write("fog_a", fog_a=FOG.format(0.6))) != first


def test_a_neighbour_that_is_imported_counts_and_one_that_is_not_does_not(write):
    body = "def build():\n    import helper\n    return helper.build()\n"
    first = fingerprint(write("fog_b", "build", fog_b=body, helper="def build(): return 1\n", other="x = 1\n"))
    assert fingerprint(write("fog_b", "build", other="x = 2\n")) == first
    assert fingerprint(write("fog_b", "build", helper="def build(): return 2\n")) != first


def test_every_module_of_a_package_counts(write):
    files = {
        "fog_c____init__": "",
        "fog_c__hooks": "def build():\n    from fog_c import core\n",
        "fog_c__core": "x = 1\n",
    }
    write("fog_c", "__name__", **files)
    first = fingerprint(importlib.import_module("fog_c.hooks").build)
    write("fog_c", "__name__", fog_c__core="x = 2\n")
    assert fingerprint(importlib.import_module("fog_c.hooks").build) != first


def test_the_version_of_a_library_counts(write, monkeypatch):
    factory = write("fog_d", fog_d="import numpy\n" + FOG.format(0.5))
    first = fingerprint(factory)
    versions = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99" if name == "numpy" else versions(name))
    assert fingerprint(factory) != first


def test_two_of_one_name_in_one_file_differ():
    def made(value):
        class Fog:
            strength = value

            def __call__(self, images, *, generator):
                return images * self.strength

        return Fog

    assert fingerprint(made(1)) != fingerprint(made(2))
    assert fingerprint(made(1)) == fingerprint(made(1))
    assert fingerprint(functools.partial(made, 1)) != fingerprint(functools.partial(made, 2))
    assert fingerprint(functools.partial(made, value=1)) != fingerprint(functools.partial(made, value=2))
    assert fingerprint(functools.partial(made, Entry(1))) != fingerprint(functools.partial(made, Entry(2)))
    assert fingerprint(functools.partial(made, 1, 1)) != fingerprint(functools.partial(made, 1))


NOTEBOOK = {
    "a function": "def make(): return {}",
    "a lambda": "make = lambda: {}",
    "a method": "class make:\n    def f(self):\n        return {}",
    "a static method": "class make:\n    @staticmethod\n    def f():\n        return {}",
    "an inner function": "def make():\n    def f():\n        return {}\n    return f",
    "a set": "def make(x): return x in {{{}, 7, 8}}",
}


def test_what_is_bound_to_itself_has_an_end():
    def countdown(number):
        return number and countdown(number - 1)

    circle = Entry(1)
    circle.number = [circle]
    assert fingerprint(functools.partial(countdown, circle)) == fingerprint(functools.partial(countdown, circle))


@pytest.mark.parametrize("code", NOTEBOOK.values(), ids=NOTEBOOK)
def test_a_notebook_has_no_file_and_its_code_counts(code):
    def made(number):
        cell = {"__name__": "a_notebook"}
        exec(code.format(number), cell)
        return cell["make"]

    assert fingerprint(made(1)) == fingerprint(made(1))
    assert fingerprint(made(1)) != fingerprint(made(2))


def test_a_cache_that_fills_changes_nothing():
    class Fog:
        seen = []  # noqa: RUF012

        def __call__(self, images, *, generator):
            self.seen.append(len(images))
            return images

    first = fingerprint(Fog)
    Fog.seen.append(1)
    assert fingerprint(Fog) == first


def test_it_is_the_same_in_every_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from dsv_plugins.plugins.fingerprint import fingerprint\n"
        "class Fog:\n    names = {'a', 'b', 'c'}\n    def make(self): return 'x' in {'a', 'b', 'c'}\n"
        "print(fingerprint(Fog))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": str(seed)}
        ).stdout
        for seed in range(3)
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 12


OWN_IDENTITY = """
import functools
from dsv_plugins import AugmentationPlugin, build_registry
from dsv_plugins.builtin.augmentations.cut import CutPaste
from dsv_plugins.plugins.fingerprint import fingerprint
print(build_registry().identity(AugmentationPlugin, "cutout"))
print(*(fingerprint(functools.partial(CutPaste, angle=angle)) for angle in (1, 2)))
"""


def test_ours_count_with_all_their_files(tmp_path):
    shutil.copytree(Path(dsv_plugins.__file__).parent, tmp_path / "dsv_plugins")

    def identity() -> list[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", OWN_IDENTITY]
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        return ended.stdout.splitlines()

    first = identity()
    assert first[0].startswith(f"dsv-plugins {metadata.version('dsv-plugins')} [")
    one, other = first[1].split()
    assert one != other, "what is bound to a factory of ours counts as well"
    assert identity() == first
    with (tmp_path / "dsv_plugins/builtin/augmentations/patches.py").open("a") as file:
        file.write("# edited\n")
    assert identity()[0] != first[0]


def test_an_edited_built_in_is_trained_again_with_the_reason(finished, tmp_path):
    task, run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(Path(dsv_plugins.__file__).parent, tmp_path / "dsv_plugins")

    def select() -> str:
        ended = dsv(*tiny_select(task, tmp_path / "run"), cwd=tmp_path, PYTHONPATH=str(tmp_path))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    assert "trained again" not in select(), "a copy is the same code"
    edited = tmp_path / "dsv_plugins/builtin/detectors/cutpaste_resnet18/resnet18_settings.py"
    edited.write_text(edited.read_text() + "# edited\n")
    told = select()
    assert "3 of 3 trained before, trained again: the code of the detector cutpaste-resnet18 (dsv-plugins" in told
    assert len(journal(tmp_path / "run", "finished")) == 2 * 3
    assert "trained again" not in select()


def test_installed_ones_go_by_their_version(monkeypatch):
    import PIL.Image

    def unread(file):
        raise AssertionError(f"{file} of an installed package is read")

    first = fingerprint(PIL.Image.new)
    monkeypatch.setattr(module, "_source", unread)
    assert fingerprint(PIL.Image.new) == first
    versions = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99" if name == "pillow" else versions(name))
    assert fingerprint(PIL.Image.new) != first
