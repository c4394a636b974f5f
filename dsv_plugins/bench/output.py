"""The files of a benchmark: its tables as Markdown and CSV, everything as JSON, the figures as a page."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from dsv_plugins.bench.protocol import BenchResult
from dsv_plugins.errors import one_line
from dsv_plugins.run.folder import finite, write_json, write_text

__all__ = ["FILES", "Table", "as_csv", "as_json", "as_markdown", "as_text", "describe", "write"]

FILES = TABLES, SHEET, OBJECT, FIGURES = "tables.md", "tables.csv", "bench.json", "figures.html"
PACKAGES = ("dsv-plugins", "torch", "torchvision", "lightning", "scipy", "scikit-learn", "pandas")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table, independent of how it is written.

    Attributes:
        name: One word, for machines.
        title: What it shows.
        frame: Its values; the levels of the index name a row. NaN is a missing value.
        note: How to read it.
        form: The format of its numbers.
        forms: The format of the numbers of single columns, if it is another one.
    """

    name: str
    title: str
    frame: pd.DataFrame
    note: str = ""
    form: str = ".3f"
    forms: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> pd.DataFrame:
        """Return the values as they are shown."""
        return self.frame.apply(lambda column: column.map(lambda value: self._shown(value, column.name)))

    def _shown(self, value: object, column: str) -> str:
        if pd.isna(value):
            return "-"
        return format(value, self.forms.get(column, self.form)) if isinstance(value, float) else str(value)


def as_text(table: Table, width: int) -> str:
    """Return a table for a terminal of this width: methods are rows, and what is too wide is split by columns."""
    text = table.text().map(one_line).rename(index=one_line, columns=one_line)
    if "method" not in text.index.names:
        text = text.T
    parts = {table.title: text}
    if text.index.nlevels > 1:
        parts = {f"{table.title}: {name}": part.droplevel(0) for name, part in text.groupby(level=0, sort=False)}
    with pd.option_context("display.unicode.east_asian_width", True):
        return "\n".join(
            f"{one_line(title)}\n{part.rename_axis(index=None, columns='method').to_string(line_width=width)}\n"
            for title, part in parts.items()
        )


def as_markdown(tables: Iterable[Table]) -> str:
    """Return the tables as sections of a Markdown page."""
    sections = []
    for table in tables:
        text = table.text().reset_index(allow_duplicates=True)
        keys = table.frame.index.nlevels
        lines = [f"## {table.title}", "", *([table.note, ""] if table.note else [])]
        lines += [_line(text.columns), "|" + "---|" * keys + "---:|" * (len(text.columns) - keys)]
        lines += [_line(row) for row in text.itertuples(index=False, name=None)]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def _line(cells: Iterable[str]) -> str:
    # A folder's name may contain a bar, which would end the cell.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_csv(tables: Iterable[Table]) -> str:
    """Return all tables as one long one: a line for each value, in full precision; empty if it is missing."""
    lines = [
        (table.name, key if isinstance(key, str) else " / ".join(key), column, value)
        for table in tables
        for key, row in table.frame.iterrows()
        for column, value in row.items()
    ]
    long = pd.DataFrame(lines, columns=["table", "row", "column", "value"], dtype=object)
    text: str = long.to_csv(index=False, lineterminator="\n")
    return text


def as_json(tables: Iterable[Table]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table as objects; null for a missing value."""
    frames = {table.name: table.frame.reset_index(allow_duplicates=True).astype(object) for table in tables}
    return {name: frame.where(frame.notna(), None).to_dict("records") for name, frame in frames.items()}


def describe(result: BenchResult, tables: Sequence[Table], settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the benchmark as one JSON object, with the settings that are needed to run it again."""
    content = {
        "settings": dict(settings),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "tables": as_json(tables),
        "cells": [cell.as_json() for cell in result.cells],
        "rivals": list(result.rivals),
        "variations": [
            {"task": cell.task, "augmentation": cell.augmentation, "seed": cell.seed, "variation": name, "aucs": aucs}
            for cell in result.cells
            for name, aucs in cell.aucs.items()
            if len(cell.aucs) > 1
        ],
        "failures": dict(result.failures),
    }
    return finite(content)  # type: ignore[no-any-return]


def write(out: Path, result: BenchResult, tables: Sequence[Table], description: Mapping[str, object]) -> None:
    """Write the four files, each atomically."""
    from dsv_plugins.bench.figures import figures_page  # importing plotly is slow

    write_json(out / OBJECT, description)
    write_text(out / TABLES, f"{as_markdown(tables)}{_remarks(result)}")
    write_text(out / SHEET, as_csv(tables))
    write_text(out / FIGURES, figures_page(result.cells, tables))


def _remarks(result: BenchResult) -> str:
    """Return the failures, and the notes of the cells, as further sections."""
    failed = [f"- {part}: {reason}" for part, reason in result.failures.items()]
    notes = [
        f"- {cell.task}, {cell.augmentation}, seed {cell.seed}: {note}" for cell in result.cells for note in cell.notes
    ]
    sections = [("Failures", failed), ("Notes", notes)]
    return "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections if lines)
