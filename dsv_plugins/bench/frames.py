"""Cells as data frames: a row for each augmentation, task and seed, and means of those rows.

A task is the unit of every statistic: seeds are averaged first, so that a task counts once however often it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from dsv_plugins.bench.cells import Cell

__all__ = ["BEST", "WORST", "auc_frame", "by_augmentation", "cell_frame", "method_aucs", "strict_means"]

BEST, WORST = "best", "worst"
"""The columns of the best and of the worst candidate, beside those of the methods."""


def cell_frame(cells: Sequence[Cell], values: Callable[[Cell], Mapping[str, float]]) -> pd.DataFrame:
    """A row of values for each cell, those of one augmentation together; NaN for a value that a cell lacks."""
    index = pd.MultiIndex.from_tuples(
        [(cell.augmentation, cell.task, cell.seed) for cell in cells], names=["augmentation", "task", "seed"]
    )
    rows = [values(cell) for cell in cells]
    frame = pd.DataFrame(rows, index=index)
    columns = dict.fromkeys([*max(rows, key=len), *frame.columns])  # in the order of the cell that has the most
    return pd.concat([group for _, group in by_augmentation(frame[list(columns)])])


def auc_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """The AUC of each method in each cell, and those of the best and of the worst candidate."""
    aucs = cell_frame(cells, lambda cell: cell.aucs)
    return aucs.join(cell_frame(cells, lambda cell: {BEST: cell.best, WORST: cell.worst}))


def method_aucs(aucs: pd.DataFrame) -> pd.DataFrame:
    """The AUCs without those of the best and of the worst candidate."""
    return aucs.drop(columns=[BEST, WORST])


def by_augmentation(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each augmentation, in the order in which the augmentations first appear."""
    yield from frame.groupby(level="augmentation", sort=False)


def strict_means(frame: pd.DataFrame, *levels: str) -> pd.DataFrame:
    """The mean of the rows that agree in these levels; NaN if one of them lacks the value.

    A method that has no AUC in some cells cannot be compared with the others on equal terms.
    """
    return frame.groupby(level=list(levels), sort=False).agg(lambda column: column.mean(skipna=False))
