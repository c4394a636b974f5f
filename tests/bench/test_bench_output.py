"""Tables on a terminal: no line is wider than it, and no value is lost."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from known_cells import known_cells

from dsv_plugins.bench.output import Table, as_text
from dsv_plugins.bench.protocol import BenchResult
from dsv_plugins.bench.tables import tabulate


def rendered(table: Table, width: int) -> list[str]:
    return as_text(table, width).splitlines()


@pytest.mark.parametrize("width", [*range(30, 51), 80, 200])
def test_wide_tables_are_split_and_have_every_value(width: int) -> None:
    methods = [f"method-{letter}" for letter in "abcdefghijkl"]
    values = [[row + column / 1000 for column in range(len(methods))] for row in range(len(methods))]
    table = Table("wilcoxon", "p-values", pd.DataFrame(values, index=pd.Index(methods, name="method"), columns=methods))
    lines = rendered(table, width)
    assert max(map(len, lines)) <= width
    # Each name has eight letters, each column a space more, and a line that goes on three for its mark.
    parts = math.ceil(len(methods) / ((width - 11) // 9))
    assert sum(line.startswith("method ") for line in lines) <= parts
    headings = [heading for line in lines if line.startswith("method ") for heading in line.rstrip("\\").split()[1:]]
    assert headings == methods
    for method, row in zip(methods, values, strict=True):
        shown = [cell for line in lines if line.startswith(f"{method} ") for cell in line.split()[1:]]
        assert shown == [f"{number:.3f}" for number in row]


def test_methods_are_rows_and_augmentations_columns() -> None:
    table = next(table for table in tabulate(BenchResult(known_cells())) if table.name == "auc")
    assert [line.split() for line in rendered(table, 80)[:5]] == [
        ["Average", "AUC"],
        ["method", "cutout", "all", "together"],
        ["Average", "0.600", "0.600"],
        ["Random", "0.725", "-"],
        ["base", "0.550", "0.550"],
    ]


def test_each_augmentation_has_its_own_part_of_the_choices() -> None:
    table = next(table for table in tabulate(BenchResult(known_cells())) if table.name == "choices")
    lines = [line.strip() for line in rendered(table, 200)]
    assert lines.index("Quality of the choices: cutout") < lines.index("Quality of the choices: all together")
    (row,) = (line.split() for line in lines if line.startswith("Random "))
    assert row == ["Random", "0.725", "-", "1", "1", "0", "1", "1", "0.075", "0.500", "0.150", "nut"]


def test_text_that_would_steer_the_terminal_is_spelled_out() -> None:
    frame = pd.DataFrame({"on task": ["\x1b[31mred"], "AUC": [math.nan]}, index=pd.Index(["dsv"], name="method"))
    assert rendered(Table("choices", "Choices", frame), 80)[-1].split() == ["dsv", "\\x1b[31mred", "-"]
