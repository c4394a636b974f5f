"""Writes the tables of the documentation that are made of data: the plugins, and the checks of the conformance kit.

    make pages

A table stands between two lines such as `<!-- table: checks -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from dsv_plugins import build_registry
from dsv_plugins.plugins.discovery import DISTRIBUTION
from dsv_plugins.plugins.records import RECORDS
from dsv_plugins.testing._suite import names_of

__all__ = ["PAGES", "packages", "with_tables"]

DOCS = Path(__file__).parents[1]
DATA = DOCS / "generated" / "plugins.yaml"
PAGES = (DOCS / "plugins.md", DOCS / "reference" / "testing.md")
TABLE = re.compile(r"^(<!-- table: (.+?) -->)$.*?^(<!-- end of table -->)$", re.MULTILINE | re.DOTALL)


def with_tables(markdown: str) -> str:
    """A page with its tables as they are now."""
    return TABLE.sub(lambda found: f"{found[1]}\n\n{TABLES[found[2]]()}\n\n{found[3]}", markdown)


def packages(where: str) -> list[dict[str, Any]]:
    """The packages of the data file that are of one sort."""
    listed: list[dict[str, Any]] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return [package for package in listed if package["where"] == where]


def _builtins() -> str:
    found = [each.record for each in build_registry().plugins if each.provider.name == DISTRIBUTION]
    return _table(
        ("name", "kind", "what it does"),
        ((f"`{record.name}`", f"`{record.kind}`", record.summary) for record in found),
    )


def _packages(where: str) -> str:
    return _table(
        ("package", "kinds", "what it does", "install", "tested with"),
        (
            (
                f"[`{package['name']}`]({package['link']})" if "link" in package else f"`{package['name']}`",
                ", ".join(f"`{kind}`" for kind in package["kinds"]),
                package["does"],
                f"`{package['install']}`",
                package["tested"],
            )
            for package in packages(where)
        ),
    )


def _checks() -> str:
    parts = []
    for kind in RECORDS:
        suite = importlib.import_module(f"dsv_plugins.testing._{kind}").Checks
        rows = (
            (f"`{name}`", " ".join((inspect.getdoc(getattr(suite, name)) or "").split())) for name in names_of(suite)
        )
        parts.append(f"### `{kind}`\n\n{_table(('check', 'what it wants'), rows)}")
    return "\n\n".join(parts)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


TABLES: dict[str, Callable[[], str]] = {
    "built-in plugins": _builtins,
    "adapters": lambda: _packages("adapter"),
    "examples": lambda: _packages("example"),
    "third-party packages": lambda: _packages("third-party") if packages("third-party") else "None yet.",
    "checks": _checks,
}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
