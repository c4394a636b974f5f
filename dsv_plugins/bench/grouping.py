"""Cells put together: by augmentation, by task, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.statistics import Matrix

__all__ = ["all_methods", "auc_matrix", "by_augmentation", "by_task", "compared", "grouped", "mean", "mean_aucs"]

Key = TypeVar("Key")


def grouped(cells: Iterable[Cell], key: Callable[[Cell], Key]) -> list[tuple[Key, list[Cell]]]:
    """The cells by what they have in common, in the order in which it first appears."""
    groups: dict[Key, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.items())


def by_augmentation(cells: Iterable[Cell]) -> list[tuple[str, list[Cell]]]:
    """The tasks and seeds of each augmentation."""
    return grouped(cells, lambda cell: cell.augmentation)


def by_task(cells: Iterable[Cell]) -> list[tuple[tuple[str, str], list[Cell]]]:
    """The seeds of each augmentation and task, those of one augmentation together."""
    return [
        pair
        for _, same in by_augmentation(cells)
        for pair in grouped(same, lambda cell: (cell.augmentation, cell.task))
    ]


def compared(cells: Iterable[Cell]) -> list[str]:
    """The methods that have an AUC in each of these cells: only they can be compared on equal terms."""
    shared: list[str] | None = None
    for cell in cells:
        shared = list(cell.aucs) if shared is None else [method for method in shared if method in cell.aucs]
    return shared or []


def all_methods(cells: Sequence[Cell]) -> list[str]:
    """The methods that have an AUC anywhere, in the order of the cell that has the most."""
    fullest = max(cells, key=lambda cell: len(cell.aucs))
    return list(dict.fromkeys([*fullest.aucs, *(method for cell in cells for method in cell.aucs)]))


def auc_matrix(cells: Sequence[Cell], methods: Sequence[str]) -> Matrix:
    """A row for each cell, a column for each method."""
    return np.array([[cell.aucs[method] for method in methods] for cell in cells])


def mean_aucs(cells: Sequence[Cell], methods: Sequence[str]) -> dict[tuple[str, str], list[float]]:
    """The AUCs of the methods for each augmentation and task, as the mean over the seeds."""
    return {key: [float(auc) for auc in auc_matrix(group, methods).mean(axis=0)] for key, group in by_task(cells)}


def mean(values: Iterable[float]) -> float:
    """The mean of the values that there are; NaN where there is none."""
    numbers = [value for value in values if not np.isnan(value)]
    return float(np.mean(numbers)) if numbers else float("nan")
