"""A table, and what it is written as."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from dsv_plugins.study.serialise import finite_or_none

__all__ = ["Row", "Table", "as_csv", "as_json", "as_markdown", "as_rich"]

Row = tuple[tuple[str, ...], tuple[float | str, ...]]
"""The names of a row, and its values."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, whatever it is written as.

    Attributes:
        name: One word, for machines.
        title: What it shows.
        keys: Headings of the columns that name a row.
        columns: Headings of the values.
        rows: The names of each row, and its values; NaN where there is none.
        note: How to read it.
        form: How its numbers are written.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Sequence[Row]
    note: str = ""
    form: str = ".3f"

    def shown(self, value: float | str) -> str:
        """A value as text."""
        if isinstance(value, str):
            return value
        return "-" if math.isnan(value) else format(value, self.form)


def as_markdown(tables: Iterable[Table]) -> str:
    """The tables as sections of a Markdown page."""
    sections = []
    for table in tables:
        lines = [f"## {table.title}", ""]
        if table.note:
            lines += [table.note, ""]
        lines.append(_line([*table.keys, *table.columns]))
        lines.append("|" + "---|" * len(table.keys) + "---:|" * len(table.columns))
        lines += [_line([*names, *map(table.shown, values)]) for names, values in table.rows]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def as_csv(tables: Iterable[Table]) -> str:
    """All tables in one long one: a line for each value, in full precision; empty where there is none."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value"])
    for table in tables:
        for names, values in table.rows:
            for column, value in zip(table.columns, values, strict=True):
                missing = not isinstance(value, str) and math.isnan(value)
                writer.writerow([table.name, " / ".join(names), column, "" if missing else value])
    return text.getvalue()


def as_json(tables: Iterable[Table]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table as objects; null where there is no value."""
    return {
        table.name: [
            {
                **dict(zip(table.keys, names, strict=True)),
                **{
                    column: value if isinstance(value, str) else finite_or_none(value)
                    for column, value in zip(table.columns, values, strict=True)
                },
            }
            for names, values in table.rows
        ]
        for table in tables
    }


def as_rich(table: Table) -> RichTable:
    """The table for a terminal."""
    rich = RichTable(title=table.title, title_justify="left", box=None, pad_edge=False)
    for key in table.keys:
        rich.add_column(Text(key), no_wrap=True)
    for column in table.columns:
        rich.add_column(Text(column), justify="right", overflow="fold")
    for names, values in table.rows:
        rich.add_row(*map(Text, names), *(Text(table.shown(value)) for value in values))
    return rich


def _line(cells: Sequence[str]) -> str:
    # A folder's name may have a bar in it, which would end the cell.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
