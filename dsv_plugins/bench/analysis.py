"""The tables that look inside DSV: its parts, how its losses rank candidates, and what they approximate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.frames import by_augmentation, cell_frame, strict_means
from dsv_plugins.bench.methods import ABLATION
from dsv_plugins.bench.statistics import rank_correlation
from dsv_plugins.bench.table import Table

__all__ = ["MEAN", "ablation_table", "correlations_table", "theory_table"]

MEAN = "(mean)"
"""In place of a task's name."""

APPROXIMATED = (
    ("discordance", "h_d"),
    ("discordance", "alignment"),
    ("separability", "h_s"),
    ("separability", "alignment"),
)
SYMBOLS = {"discordance": "L_dis", "separability": "L_sep"}


def ablation_table(aucs: pd.DataFrame) -> Table:
    """The AUC of what the parts of DSV choose alone, and of what both of its variants choose."""
    parts = aucs[[part for part in ABLATION if part in aucs]].dropna(axis=1)
    means = _with_means(strict_means(parts, "augmentation", "task"))
    return Table("ablation", "Ablation: AUC by the parts of DSV alone", means)


def correlations_table(cells: Sequence[Cell]) -> Table:
    """The rank correlation of each loss with the AUC over the candidates of each task."""
    correlations = cell_frame(
        cells,
        lambda cell: {name: rank_correlation(-np.asarray(losses), cell.pool) for name, losses in cell.losses.items()},
    )
    return Table(
        "correlation",
        "Rank correlation of each loss with the AUC",
        _over_tasks(correlations),
        note="Spearman's correlation of the negated loss: 1 if the loss ranks the candidates as their AUCs do.",
        form=".2f",
    )


def theory_table(cells: Sequence[Cell]) -> Table:
    """How well L_dis and L_sep follow the quantities that they approximate, and whether the assumption holds."""
    return Table(
        "theory",
        "How well the losses follow what they approximate",
        _over_tasks(cell_frame(cells, _theory)),
        note="Spearman's correlations over the candidates. The theory predicts +, +, +, -, -; it assumes a "
        "concentration far below 1, of which the mean over the candidates is shown.",
        form=".2f",
    )


def _theory(cell: Cell) -> dict[str, float]:
    quantities = pd.DataFrame([candidate.theory for candidate in cell.candidates])
    followed = {
        f"{SYMBOLS[loss]} ~ {target}": rank_correlation(quantities[loss], quantities[target])
        for loss, target in APPROXIMATED
    }
    return {
        **followed,
        "alignment ~ AUC": rank_correlation(quantities["alignment"], cell.pool),
        "concentration": _mean(quantities["concentration"]),
    }


def _over_tasks(frame: pd.DataFrame) -> pd.DataFrame:
    """The mean over the seeds of each task that have a value, and the mean over the tasks."""
    return _with_means(frame.groupby(level=["augmentation", "task"], sort=False).agg(_mean))


def _with_means(tasks: pd.DataFrame) -> pd.DataFrame:
    """The rows, with the mean over the tasks after those of each augmentation."""
    parts = []
    for augmentation, group in by_augmentation(tasks):
        index = pd.MultiIndex.from_tuples([(augmentation, MEAN)], names=tasks.index.names)
        parts += [group, pd.DataFrame([group.apply(_mean)], index=index)]
    return pd.concat(parts)


def _mean(column: pd.Series) -> float:
    """The mean of the values that there are, rounded as if there were no others; NaN if there are none."""
    return float(column.dropna().mean())
