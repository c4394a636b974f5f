"""`dsv new`: a plugin to start from."""

from __future__ import annotations

import pytest
from conftest import dsv_here

SPELLINGS = ("augmentation", "detector", "selector", "search", "executor", "observer")


@pytest.mark.parametrize("kind", SPELLINGS)
def test_a_new_file_passes_the_kit_untouched(tmp_path, kind):
    written = dsv_here("new", "film-grain", "--kind", kind, "--file", "--out", tmp_path)
    file = tmp_path / "film_grain.py"
    assert written.returncode == 0
    assert f"dsv check film-grain --plugins {file}" in written.stdout.replace("\n", "")
    checked = dsv_here("check", "film-grain", "--plugins", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "passed" in checked.stdout


def test_the_next_step_names_the_file_that_has_the_space(tmp_path):
    for form, place in (([], "dsv-film-grain/src/dsv_film_grain/__init__.py"), (["--file"], "film_grain.py")):
        written = dsv_here("new", "film-grain", *form, "--out", tmp_path)
        (edit,) = [line for line in written.stdout.splitlines() if line.strip().startswith("edit ")]
        assert str(tmp_path / place) in edit
        assert "space=" in (tmp_path / place).read_text()


def test_a_new_package_has_everything(tmp_path):
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    assert dsv_here("new", "film-grain", "--out", tmp_path).returncode == 0
    folder = tmp_path / "dsv-film-grain"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {
        *("pyproject.toml", "README.md", "LICENSE", ".github/workflows/test.yml", "tests/test_plugin.py"),
        *("src/dsv_film_grain/__init__.py", "src/dsv_film_grain/plugin.py"),
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "dsv-film-grain"
    assert project["entry-points"] == {"dsv_plugins": {"film-grain": "dsv_film_grain"}}
    assert project["dependencies"] == ["dsv-plugins>=0.1,<0.2"]
    assert not any("{{" in (folder / file).read_text() for file in files if not file.endswith(".yml"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["cutout"], "augmentation 'cutout' is there already, from dsv-plugins"),
        (["dsv", "--kind", "selector"], "selector 'dsv' is there already"),
        (["Fog"], "lower-case letters"),
        (["film grain"], "lower-case letters"),
        (["../fog"], "lower-case letters"),
        (["fog", "--kind", "sorcery"], "kind"),
    ],
)
def test_wrong_names_are_one_line_and_nothing_is_written(tmp_path, arguments, reason):
    ended = dsv_here("new", *arguments, "--out", tmp_path)
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", [[], ["--file"]])
def test_nothing_is_overwritten(tmp_path, form):
    assert dsv_here("new", "fog", *form, "--out", tmp_path).returncode == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for file in before:
        file.write_text("mine")
    again = dsv_here("new", "fog", "--kind", "selector", *form, "--out", tmp_path)
    assert again.returncode == 2
    assert "is there already; nothing was written" in again.stderr
    assert {file.read_text() for file in tmp_path.rglob("*") if file.is_file()} == {"mine"}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    ended = dsv_here("new", "fog", "--out", tmp_path / "file")
    assert ended.returncode == 2
    assert "cannot be written" in ended.stderr


def test_a_kind_has_several_spellings_and_a_wrong_one_is_one_line(tmp_path):
    for place, spelling in enumerate(("detector-encoder", "detector_encoder")):
        assert dsv_here("new", f"net-{place}", "--kind", spelling, "--file", "--out", tmp_path).returncode == 0
    ended = dsv_here("new", "fog", "--kind", "sorter", "--out", tmp_path)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "'sorter' is no kind of plugin; give one of augmentation, detector_encoder, selector" in ended.stderr
