"""The tables that compare the methods, as the paper's Table 1 does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsv_plugins.bench.cells import POOLED, Cell
from dsv_plugins.bench.grouping import (
    all_methods,
    auc_matrix,
    by_augmentation,
    by_task,
    compared,
    grouped,
    mean,
    mean_aucs,
)
from dsv_plugins.bench.methods import MAIN, SIDELINES
from dsv_plugins.bench.statistics import average_ranks, p_values, spread
from dsv_plugins.bench.table import Row, Table

__all__ = ["aucs_table", "choices_table", "p_values_table", "ranks_table", "tasks_table"]

NEGLIGIBLE = 1e-12
"""Regrets below it are rounding."""


def aucs_table(cells: Sequence[Cell]) -> Table:
    """The average AUC of each method, with the augmentations below each other."""
    methods = all_methods(cells)
    rows: list[Row] = [((augmentation,), _values(group, methods)) for augmentation, group in by_augmentation(cells)]
    return Table(
        "auc",
        "Average AUC",
        ("augmentation",),
        (*methods, "best", "worst"),
        rows,
        note="Over the tasks. Average is the mean of the candidates, Random one training that redraws the "
        "hyperparameters for every image, best and worst the candidates that labels would tell.",
    )


def tasks_table(cells: Sequence[Cell]) -> Table:
    """The AUC of each method on each task."""
    methods = all_methods(cells)
    rows: list[Row] = [(key, _values(group, methods)) for key, group in by_task(cells)]
    return Table("tasks", "AUC of each task", ("augmentation", "task"), (*methods, "best", "worst"), rows)


def ranks_table(cells: Sequence[Cell]) -> Table:
    """The average rank of each method."""
    methods = all_methods(cells)
    rows: list[Row] = []
    for augmentation, group in by_augmentation(cells):
        ranks = _ranks(group)
        rows.append(((augmentation,), tuple(ranks.get(method, np.nan) for method in methods)))
    return Table(
        "rank",
        "Average rank",
        ("augmentation",),
        tuple(methods),
        rows,
        note=f"1 is the best; ties share the mean rank. {', '.join(SIDELINES)} are each ranked in the place of {MAIN}.",
        form=".2f",
    )


def choices_table(cells: Sequence[Cell]) -> Table:
    """The regret of each method, how often it is the best candidate, its worst choice, and its spread over seeds."""
    rows: list[Row] = []
    for augmentation, group in by_augmentation(cells):
        for method in compared(group):
            regrets = [cell.best - cell.aucs[method] for cell in group]
            at = int(np.argmax(regrets))
            by_seed = [mean(cell.aucs[method] for cell in same) for _, same in grouped(group, lambda cell: cell.seed)]
            values = (
                float(np.mean(by_seed)),
                spread(by_seed),
                float(np.mean(regrets)),
                float(np.mean([regret <= NEGLIGIBLE for regret in regrets])),
                regrets[at],
                group[at].task,
            )
            rows.append(((augmentation, method), values))
    return Table(
        "choices",
        "Regret and spread",
        ("augmentation", "method"),
        ("AUC", "± over seeds", "regret", "best chosen", "largest regret", "on task"),
        rows,
        note="Regret is the AUC of the best candidate less that of the method; its largest is the worst choice made.",
    )


def p_values_table(cells: Sequence[Cell]) -> Table:
    """The p-value between every two methods. The pooled cells hold the same trainings again, and stay out."""
    alone = [cell for cell in cells if cell.augmentation != POOLED]
    methods = compared(alone)
    matrix = p_values(list(mean_aucs(alone, methods).values())) if methods else np.empty((0, 0))
    rows: list[Row] = [((method,), tuple(map(float, row))) for method, row in zip(methods, matrix, strict=True)]
    return Table(
        "wilcoxon",
        "p-values of the Wilcoxon signed-rank test",
        ("method",),
        tuple(methods),
        rows,
        note="Two-sided; every augmentation and task is a pair of AUCs, the mean over the seeds; pairs that do not "
        "differ are left out.",
        form=".2g",
    )


def _values(group: Sequence[Cell], methods: Sequence[str]) -> tuple[float, ...]:
    """The mean AUC of each method, of the best candidate and of the worst."""
    known = compared(group)
    aucs = [mean(cell.aucs[method] for cell in group) if method in known else np.nan for method in methods]
    return (*aucs, mean(cell.best for cell in group), mean(cell.worst for cell in group))


def _ranks(group: Sequence[Cell]) -> dict[str, float]:
    """The average rank of each method; parts and variants of DSV are ranked in its place, one at a time."""
    known = compared(group)
    ranked = [method for method in known if method not in SIDELINES]
    ranks = dict(zip(ranked, map(float, average_ranks(auc_matrix(group, ranked))), strict=True))
    for method in known:
        if method in SIDELINES:
            others = [*(each for each in ranked if each != MAIN), method]
            ranks[method] = float(average_ranks(auc_matrix(group, others))[-1])
    return ranks
