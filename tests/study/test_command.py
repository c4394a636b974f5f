"""The command in the journal and in the report: that of `dsv`, and never that of the process which runs a study."""

from __future__ import annotations

import html
import shlex
import sys

from brightness import SETTINGS, BrightnessPlugins, grey_images
from conftest import journal, tiny_select

from dsv_plugins import report, select


def test_a_study_from_python_has_no_command_whatever_the_process_was_called_with(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/kernel_launcher.py", "-f", "/tmp/kernel-77.json"])
    result = select(
        *(grey_images(6, seed) for seed in (0, 1)), out=tmp_path / "run", plugins=(BrightnessPlugins(),), **SETTINGS
    )
    (started,) = journal(result.path, "started")
    assert started["command"] == ""
    page = report.build(result).read_text()
    assert "kernel" not in page[page.index("<header") : page.index("</header>")]
    for file in ("journal.jsonl", "study.json", "selection.json"):
        assert "kernel" not in (result.path / file).read_text()


def test_a_study_of_the_command_line_has_its_command(finished):
    task, run, _ = finished
    command = shlex.join(["dsv", *map(str, tiny_select(task, run))])
    (started,) = journal(run, "started")
    assert started["command"] == command
    assert command.startswith(f"dsv select {task} ")
    assert command in html.unescape((run / "report.html").read_text())
