"""The standard output is ours: plugins cannot write to it, nor end the command, and JSON has finite numbers only."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import hostile
import pytest
from brightness import SETTINGS, BrightnessPlugins, grey_images
from conftest import dsv, make_task

from dsv_plugins import (
    AugmentationPlugin,
    Observer,
    ObserverPlugin,
    PluginError,
    Search,
    SearchPlugin,
    SelectorPlugin,
    hookimpl,
    select,
)
from dsv_plugins.cli.output import output, own_output
from dsv_plugins.run.folder import finite

NOISY = """
import ctypes, subprocess
print("noise of an import")

def shout():
    print("noise of Python")
    print("noise of Python", file=sys.__stdout__)
    os.write(1, b"noise of a descriptor\\n")
    ctypes.CDLL(None).puts(b"noise of C")
    subprocess.run(["echo", "noise of a program"])
"""


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_what_plugins_print_does_not_reach_the_standard_output(tmp_path, executor):
    code = NOISY + hostile.AUGMENTATION.format(
        name="Noisy", body="shout(); return (images + self.strength).clamp(0, 1)"
    )
    environment = hostile.install(tmp_path / "plugin", code)
    arguments = ["--augmentation", "hostile-augmentation", "--executor", executor]
    task = make_task(tmp_path / "parts")
    completed = dsv(*hostile.select_arguments(task, tmp_path / "run", *arguments), **environment)
    assert completed.returncode == 0, completed.stderr
    assert len(json.loads(completed.stdout)["candidates"]) == 2
    for source in ("an import", "Python", "a descriptor", "C", "a program"):
        assert f"noise of {source}\n" in completed.stderr
    scored = dsv("score", tmp_path / "run", task / "test", **environment)
    assert scored.stdout.startswith("file,score,p_value,verdict\n")
    assert "noise" not in scored.stdout


def test_the_output_is_given_back(capfd):
    print("before")
    with own_output():
        print("noise")
        os.write(1, b"noise\n")
        print("answer", file=output())
    print("after")
    os.write(1, b"descriptor\n")
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["after", "answer", "before", "descriptor"]
    assert err.splitlines() == ["noise", "noise"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_output_without_room_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "dsv_plugins", "plugins", "--json"]
        completed = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert completed.returncode == 1
    (line,) = completed.stderr.splitlines()
    assert line == "dsv plugins: the output cannot be written (No space left on device); write it elsewhere"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "0<&-", "0<&- 2>&-"])
def test_the_answer_is_there_if_the_other_streams_are_not(tmp_path, redirection):
    (tmp_path / "loud.py").write_text(
        "import sys\nfor _ in range(9): print('noise' * 999, file=sys.stderr, flush=True)"
    )
    call = f"exec {sys.executable} -m dsv_plugins plugins --json --plugins {tmp_path / 'loud.py'} {redirection}"
    completed = subprocess.run(["bash", "-c", call], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert len(json.loads(completed.stdout)["plugins"]) > 9


def test_a_closed_output_is_no_error():
    completed = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -m dsv_plugins plugins >&-"], capture_output=True, text=True
    )
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
def test_little_memory_is_noted():
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 * 10**9,) * 2); "
    call = "os.execv(sys.executable, [sys.executable, '-m', 'dsv_plugins', 'plugins', '--json'])"
    completed = subprocess.run([sys.executable, "-c", limit + call], capture_output=True, text=True)
    assert completed.returncode == 0
    assert completed.stderr.startswith("note: memory is limited to 3.0 GB (ulimit -v)")


def leave(*_, **__):
    sys.exit(3)


class Leaving(Search, Observer):
    run = started = losses = leave


def exits(record):
    """The plugins of a study, with one more, whose object exits."""
    return type("Exits", (BrightnessPlugins,), {record.kind: hookimpl(lambda self: record)})()


@pytest.mark.parametrize(
    ("plugins", "settings", "told"),
    [
        (
            exits(AugmentationPlugin("exits", leave)),
            {"augmentation": "exits"},
            "augmentation 'exits' (Exits) called sys.exit(3)",
        ),
        (
            exits(SelectorPlugin("exits", Leaving)),
            {"selector": "exits"},
            "selector 'exits' (Exits) called sys.exit(3)",
        ),
        (
            exits(SearchPlugin("exits", Leaving)),
            {"search": "exits"},
            "search 'exits' (Exits) called sys.exit(3)",
        ),
        (
            exits(ObserverPlugin("exits", leave)),
            {"observers": "exits"},
            "observer 'exits' (Exits) called sys.exit(3)",
        ),
    ],
    ids=["factory", "selector", "search", "observer"],
)
def test_a_plugin_that_exits_is_blamed(tmp_path, plugins, settings, told):
    settings = {**SETTINGS, "out": tmp_path / "run", "plugins": (plugins,), **settings}
    with pytest.raises(PluginError) as caught:
        select(grey_images(12, 0), grey_images(6, 1), **settings)
    assert str(caught.value) == told


def test_an_observer_that_exits_later_is_left_out(tmp_path):
    plugins = exits(ObserverPlugin("exits", Leaving))
    settings = {**SETTINGS, "out": tmp_path / "run", "plugins": (plugins,), "observers": "exits"}
    select(grey_images(12, 0), grey_images(6, 1), **settings)


def test_json_has_finite_numbers_only():
    content = {"a": [1.0, float("nan"), {"b": float("inf")}], "c": "text", "d": (1, None, True)}
    assert finite(content) == {"a": [1.0, None, {"b": None}], "c": "text", "d": [1, None, True]}


def test_an_image_without_a_score_is_named(tmp_path):
    body = "def score(self, images):\n        return super().score(images) / (1 if len(images) > 1 else 0)"
    environment = hostile.install(tmp_path / "plugin", hostile.DETECTOR.format(name="Odd", body=body))
    task = make_task(tmp_path / "parts")
    arguments = ["--detector", "hostile-detector", "--selector", "separability,cosine"]
    completed = dsv(*hostile.select_arguments(task, tmp_path / "run", *arguments), **environment)
    assert completed.returncode == 0, completed.stderr
    image = task / "test/bar/200.png"
    completed = dsv("score", tmp_path / "run", image, "--json", **environment)
    assert completed.returncode == 1
    assert completed.stdout == ""
    assert completed.stderr.splitlines()[-1] == (
        f"dsv score: the detector gives {image} the score inf, which no verdict can be made of"
    )


def test_what_is_left_open_is_told_by_nobody_at_the_end(tmp_path):
    """Sockets and pipes of workers are closed: Python would name one that is not, as an error here."""
    task = make_task(tmp_path / "parts")
    arguments = ["--grid", "patch_size=0.1,0.3", "--image-size", 64, "--workers", 2, "--out", tmp_path / "run"]
    completed = dsv("select", task, *arguments, PYTHONWARNINGS="error::ResourceWarning", PYTHONTRACEMALLOC="0")
    assert completed.returncode == 0, completed.stderr
    assert "ResourceWarning" not in completed.stderr
    assert "Traceback" not in completed.stderr
