"""The walks on the architecture page are what a trace of the commands sees, module by module."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_task

PAGE = Path(__file__).parents[2] / "docs/explanation/architecture.md"
MOST_MODULES = {"select": 45, "score": 20}
"""What one person can hold."""
TRACER = """
import itertools, json, sys
from pathlib import Path
import dsv_plugins
from dsv_plugins.cli.main import main

package, entered = Path(dsv_plugins.__file__).parent, []

def trace(frame, event, argument):
    code = frame.f_code
    is_function = code.co_flags & 0x2  # the bodies of modules and classes are run by imports
    if event == "call" and is_function and code.co_filename.startswith(str(package)):
        entered.append(".".join(Path(code.co_filename).relative_to(package).with_suffix("").parts))

sys.setprofile(trace)
exit_code = main(sys.argv[1:])
sys.setprofile(None)
print(json.dumps([module for module, _ in itertools.groupby(entered)]))
sys.exit(exit_code)
"""


def section(title: str) -> str:
    """The text of the page below a heading."""
    return re.split(r"^#+ ", PAGE.read_text().split(f"\n### {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def walk(title: str) -> list[str]:
    """The modules that a section of the page lists by number."""
    return re.findall(r"^\d+\. `([\w.]+)`", section(title), re.MULTILINE)


def beside_the_walk() -> list[str]:
    """What the page says is entered too, though no image passes through it: patterns of modules."""
    return re.findall(r"`([\w.*]+)`", section("Beside the walk"))


def traced(*arguments: object) -> list[str]:
    """The modules of the package whose functions a command calls, one after the other."""
    command = [sys.executable, "-c", TRACER, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("walk")
    task, run = make_task(folder / "parts", train=24), folder / "run"
    small = ["--image-size", 64, "--grid", "patch_size=0.1,0.3", "--executor", "serial"]
    return {"select": traced("select", task, *small, "--out", run), "score": traced("score", run, task / "test")}


@pytest.mark.parametrize(
    ("command", "title"),
    [("select", "From an image file to the kept model"), ("score", "From an image file to a verdict")],
)
def test_the_walk_of_the_page_is_the_walk_of_the_command(entered, command, title):
    listed, calls = walk(title), entered[command]
    assert 0 < len(listed) <= MOST_MODULES[command]
    # What comes before the first module is set-up, what comes after the last one is the report.
    first, last = calls.index(listed[0]), len(calls) - calls[::-1].index(listed[-1])
    on_the_way = list(dict.fromkeys(calls[first:last]))
    assert [module for module in on_the_way if module in listed] == listed, "in the order of the first call"
    patterns = [re.compile(pattern.replace(".", r"\.").replace("*", ".*")) for pattern in beside_the_walk()]
    others = [module for module in on_the_way if module not in listed]
    assert [module for module in others if not any(pattern.fullmatch(module) for pattern in patterns)] == []
