"""Tables on a terminal: methods are rows, and a table that is too wide is split by its columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pandas as pd
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from dsv_plugins.bench.table import Table
from dsv_plugins.errors import one_line

__all__ = ["fitted"]

GAP = 2
"""The spaces between two columns."""


def fitted(table: Table, width: int) -> Iterator[Group]:
    """The table in parts that are no wider than the terminal; together they have every value."""
    text = table.text().rename_axis(columns="method")
    if "method" not in text.index.names:
        text = text.T
    parts = {table.title: text}
    if text.index.nlevels > 1:
        parts = {f"{table.title}: {name}": group.droplevel(0) for name, group in text.groupby(level=0, sort=False)}
    for title, part in parts.items():
        for index, columns in enumerate(_split(part, width)):
            heading = Text(one_line(f"{title} (continued)" if index else title), style="italic")
            yield Group(heading, _rich(columns))


def _split(text: pd.DataFrame, width: int) -> Iterator[pd.DataFrame]:
    """Neighbouring columns that fit beside the names of the rows, at least one at a time."""
    available = width - max(map(cell_len, [text.index.name, *text.index]))
    first, used = 0, 0
    for place, column in enumerate(text):
        needed = GAP + _width(text[column])
        if place > first and used + needed > available:
            yield text.iloc[:, first:place]
            first, used = place, 0
        used += needed
    yield text.iloc[:, first:]


def _width(column: pd.Series) -> int:
    """The columns of the terminal that this one takes; its heading may be broken between words."""
    return max(map(cell_len, [*one_line(str(column.name)).split(), *map(one_line, column)]))


def _rich(text: pd.DataFrame) -> RichTable:
    rich = RichTable(box=None, pad_edge=False)
    rich.add_column(Text(text.index.name), overflow="fold")
    for name in text:
        heading = textwrap.wrap(one_line(name), _width(text[name]), break_long_words=False, break_on_hyphens=False)
        rich.add_column(Text("\n".join(heading)), justify="right", overflow="fold")
    for row in text.itertuples(name=None):
        rich.add_row(*(Text(one_line(value)) for value in row))
    return rich
