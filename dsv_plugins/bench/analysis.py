"""The tables that look inside DSV: its parts, what its losses order, and what they stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.grouping import all_methods, by_task, compared, mean, mean_aucs
from dsv_plugins.bench.methods import ABLATION, AVERAGE, RANDOM
from dsv_plugins.bench.statistics import rank_correlation
from dsv_plugins.bench.table import Row, Table

__all__ = ["MEAN", "ablation_table", "correlations_table", "theory_table"]

MEAN = "(mean)"
"""In the place of a task's name."""

STANDS_FOR = (
    ("discordance", "h_d"),
    ("discordance", "alignment"),
    ("separability", "h_s"),
    ("separability", "alignment"),
)
SYMBOLS = {"discordance": "L_dis", "separability": "L_sep"}


def ablation_table(cells: Sequence[Cell]) -> Table:
    """What the halves of DSV choose alone, and what both of its variants choose."""
    known = compared(cells)
    parts = tuple(part for part in ABLATION if part in known)
    rows: list[Row] = [(key, tuple(values)) for key, values in mean_aucs(cells, parts).items()]
    return Table(
        "ablation", "Ablation: AUC by the parts of DSV alone", ("augmentation", "task"), parts, _with_means(rows)
    )


def correlations_table(cells: Sequence[Cell]) -> Table:
    """How well each loss orders the candidates."""
    selectors = [method for method in all_methods(cells) if method not in (AVERAGE, RANDOM)]

    def agreement(cell: Cell, selector: str) -> float:
        return rank_correlation(-np.asarray(cell.losses.get(selector, [np.nan] * len(cell.pool))), cell.pool)

    rows: list[Row] = []
    for key, group in by_task(cells):
        rows.append((key, tuple(mean(agreement(cell, selector) for cell in group) for selector in selectors)))
    return Table(
        "correlation",
        "Rank correlation of each loss with the AUC",
        ("augmentation", "task"),
        tuple(selectors),
        _with_means(rows),
        note="Spearman's, of the negated loss: 1 where the loss orders the candidates as their AUCs do.",
        form=".2f",
    )


def theory_table(cells: Sequence[Cell]) -> Table:
    """How well L_dis and L_sep follow the quantities that only labels show, and whether the presumption holds."""

    def values(cell: Cell) -> list[float]:
        def column(name: str) -> list[float]:
            return [getattr(candidate.theory, name) for candidate in cell.candidates]

        followed = [rank_correlation(column(loss), column(target)) for loss, target in STANDS_FOR]
        return [*followed, rank_correlation(column("alignment"), cell.pool), mean(column("concentration"))]

    rows: list[Row] = []
    for key, group in by_task(cells):
        per_seed = [values(cell) for cell in group]
        rows.append((key, tuple(mean(each) for each in zip(*per_seed, strict=True))))
    return Table(
        "theory",
        "How well the losses follow what they stand for",
        ("augmentation", "task"),
        (
            *(f"{SYMBOLS[loss]} ~ {target}" for loss, target in STANDS_FOR),
            "alignment ~ AUC",
            "concentration",
        ),
        _with_means(rows),
        note="Spearman's correlations over the candidates. The theory says +, +, +, -, -; it presumes a concentration "
        "far below 1, of which the mean over the candidates is shown.",
        form=".2f",
    )


def _with_means(rows: Sequence[Row]) -> list[Row]:
    """The rows, with the mean over the tasks after those of each augmentation."""
    complete: list[Row] = []
    for augmentation in dict.fromkeys(names[0] for names, _ in rows):
        same = [row for row in rows if row[0][0] == augmentation]
        columns = zip(*(values for _, values in same), strict=True)
        means = tuple(mean(float(value) for value in column) for column in columns)
        complete += [*same, ((augmentation, MEAN), means)]
    return complete
