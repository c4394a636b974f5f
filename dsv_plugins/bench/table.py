"""A table, and how it is written to files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

__all__ = ["Table", "as_csv", "as_json", "as_markdown"]


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
        """The values as they are shown."""
        return self.frame.apply(lambda column: column.map(lambda value: self._shown(value, column.name)))

    def _shown(self, value: object, column: str) -> str:
        if pd.isna(value):
            return "-"
        return format(value, self.forms.get(column, self.form)) if isinstance(value, float) else str(value)


def as_markdown(tables: Iterable[Table]) -> str:
    """The tables as sections of a Markdown page."""
    sections = []
    for table in tables:
        text = table.text().reset_index(allow_duplicates=True)
        keys = table.frame.index.nlevels
        lines = [f"## {table.title}", ""]
        if table.note:
            lines += [table.note, ""]
        lines += [_line(text.columns), "|" + "---|" * keys + "---:|" * (len(text.columns) - keys)]
        lines += [_line(row) for row in text.itertuples(index=False, name=None)]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def as_csv(tables: Iterable[Table]) -> str:
    """All tables in one long table: a line for each value, in full precision; empty if it is missing."""
    lines = [
        (table.name, " / ".join([key] if isinstance(key, str) else key), column, value)
        for table in tables
        for key, row in zip(table.frame.index, table.frame.itertuples(index=False, name=None), strict=True)
        for column, value in zip(table.frame.columns, row, strict=True)
    ]
    long = pd.DataFrame(lines, columns=["table", "row", "column", "value"], dtype=object)
    text: str = long.to_csv(index=False, lineterminator="\n")
    return text


def as_json(tables: Iterable[Table]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table as objects; null for a missing value."""
    frames = {table.name: table.frame.reset_index(allow_duplicates=True).astype(object) for table in tables}
    return {name: frame.where(frame.notna(), None).to_dict("records") for name, frame in frames.items()}


def _line(cells: Sequence[str]) -> str:
    # A folder's name may contain a bar, which would end the cell.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
