"""The tables on pages that are made of data."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml

from dsv_plugins import build_registry
from dsv_plugins.plugins.records import RECORDS
from dsv_plugins.testing import run_checks

ROOT = Path(__file__).parents[2]
LISTED = {entry["name"]: entry for entry in yaml.safe_load((ROOT / "docs/generated/plugins.yaml").read_text())}


def rendered(page: str) -> str:
    """A page, which must have its tables as they are now."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/generated/pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    written = (ROOT / "docs" / page).read_text()
    assert pages.with_tables(written) == written, "run `make pages`"
    return written


def rows(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]


def test_every_package_of_the_repository_is_listed() -> None:
    projects = [*ROOT.glob("adapters/*/pyproject.toml"), *ROOT.glob("docs/examples/*/pyproject.toml")]
    names = {
        re.search(r'^name = "(.+)"$', project.read_text(), re.MULTILINE)[1]: project.parent for project in projects
    }
    assert set(names) <= set(LISTED)
    for name, folder in names.items():
        assert LISTED[name]["install"] == f"pip install ./{folder.relative_to(ROOT)}"


@pytest.mark.parametrize("name", LISTED)
def test_a_package_provides_the_kinds_that_the_page_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ROOT / "docs/examples" / name / "src"
    if source.exists():
        monkeypatch.setattr(sys, "path", [str(source), *sys.path])
        provider = name.replace("-", "_")
        registry = build_registry(plugins=[provider])
    else:
        provider, registry = name, build_registry()
    kinds = {each.record.kind for each in registry.plugins if each.provider.name == provider}
    if not kinds:
        pytest.skip(f"{name} is not installed here")
    assert set(LISTED[name]["kinds"]) == kinds


def test_the_page_has_every_built_in_and_every_package() -> None:
    page = rendered("plugins.md")
    first_cells = {re.sub(r"[`\[\]]|\(.*\)", "", row[0]) for row in rows(page)}
    own = {each.record.name for each in build_registry().plugins if each.provider.name == "dsv-plugins"}
    assert own | set(LISTED) <= first_cells


def test_the_page_of_the_kit_has_every_check() -> None:
    sections = rendered("reference/testing.md").split("\n### ")[1:]
    assert [section.split("`")[1] for section in sections] == list(RECORDS)
    for section, kind in zip(sections, RECORDS.values(), strict=True):
        told = {row[0].strip("`"): row[1] for row in rows(section)[2:]}
        assert list(told) == [result.check for result in run_checks(kind("broken", dict))]
        assert all(meaning.endswith(".") for meaning in told.values())
