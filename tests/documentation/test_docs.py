"""Every snippet of the README and of the documentation is run.

Python blocks of one page share their names, as a reader would type them in; `dsv` lines of shell blocks run as written,
but for a small training budget. Both find a folder `parts` with images, as the pages presume.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DETECTOR, TINY, dsv_here, make_task

ROOT = Path(__file__).parents[2]
# The pages on adapters are run by the tests of the adapters, which need not be installed here.
ELSEWHERE = {*(ROOT / "docs/examples").rglob("*.md"), *(ROOT / "docs/how-to").glob("use-with-*.md")}
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - ELSEWHERE)]
REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# They set up environments, and are themselves what runs these tests.
SET_UP = ("make ", "pip ", "git ", "cd ")
SMALL = ["--detector", DETECTOR, "--detector-params", json.dumps(TINY), "--executor", "serial"]
WITH_THE_DEFAULT_DETECTOR = ("check-your-images.md", "decide-without-labels.md", "run-on-a-line.md")
SMALL_WITH_HEATMAPS = ["--detector-params", '{"image_size": 64}', "--executor", "serial"]
ENDLESS = {"serve": 0, "watch": 130}
"""Commands that run until Ctrl-C, and their exit codes."""
GOOD_IMAGES = 60
"""Enough to keep 19 out of training, which a false-alarm rate of 5 % needs."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(kind == "python" for kind, _ in blocks(page))], ids=name
)
def test_python_snippets_run(page, tmp_path):
    make_task(tmp_path / "parts", train=GOOD_IMAGES)
    code = "\n".join(body for kind, body in blocks(page) if kind == "python")
    (tmp_path / "snippets.py").write_text(code)
    completed = subprocess.run(
        [sys.executable, "snippets.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "bash" for kind, _ in blocks(page))], ids=name)
def test_shell_snippets_run(page, tmp_path, monkeypatch):
    make_task(tmp_path / "parts", train=GOOD_IMAGES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for kind, body in blocks(page):
        if kind == "yaml" and (title := re.match(r"# (\S+\.yaml)\n", body)):
            (tmp_path / title[1]).write_text(body)
    for line in (line for kind, body in blocks(page) if kind == "bash" for line in body.splitlines()):
        if line.startswith(SET_UP):
            continue
        command, *arguments = shlex.split(line, comments=True)
        assert command == "dsv", f"{line!r} is no command that these tests know how to run"
        if arguments[0] in ("select", "bench"):
            small = SMALL_WITH_HEATMAPS if page.name in WITH_THE_DEFAULT_DETECTOR else SMALL
            arguments += small + ([] if {"--grid", "--config"} & set(arguments) else ["--grid", "patch_size=0.1"])
        if arguments[0] in ENDLESS:
            interrupted(arguments)
            continue
        completed = dsv_here(*arguments)
        assert completed.returncode == 0, f"{line}: {completed.stderr}"


def interrupted(arguments: list[str]) -> None:
    """Run a command that ends only when it is interrupted, until it says that it is ready."""
    port = ["--port", "0"] if arguments[0] == "serve" else []  # another process may have the one of the page
    process = subprocess.Popen(
        [sys.executable, "-m", "dsv_plugins", *arguments, *port], stderr=subprocess.PIPE, text=True
    )
    try:
        assert "Ctrl-C ends it" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == ENDLESS[arguments[0]]
    finally:
        process.kill()


def test_every_block_says_what_it_is():
    kinds = {kind for page in PAGES for kind, _ in blocks(page)}
    assert kinds <= {"python", "bash", "yaml", "toml", "json", "text"}
    assert {"python", "bash"} <= kinds


@pytest.mark.parametrize("page", [page for page in REFERENCE if "\n::: " in page.read_text()], ids=name)
def test_a_page_of_docstrings_says_in_the_repository_where_they_are(page):
    """Who reads the Markdown sees `:::` in their place."""
    (note,) = re.findall(r"^Lines with `:::` stand for docstrings.*", page.read_text(), re.MULTILINE)
    built, *sources = re.findall(r"`([\w/.-]+[./][\w/.-]*)`", note)
    assert built == f"site/reference/{page.stem}/index.html"
    assert sources
    for source in sources:
        file = ROOT / source if "/" in source else (ROOT / sources[0]).parent / source  # beside the first one
        assert file.is_dir() or ast.get_docstring(ast.parse(file.read_text()))


def test_the_packaging_guide_shows_the_example_as_it_is():
    example = (ROOT / "docs/examples/dsv-example-plugin/pyproject.toml").read_text()
    shown = next(body for kind, body in blocks(ROOT / "docs/how-to/package-a-plugin.md") if kind == "toml")
    for line in filter(None, shown.splitlines()):
        assert line in example
