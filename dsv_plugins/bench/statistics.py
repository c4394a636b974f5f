"""The frame of all measurements, and the statistics of the methods in it.

A task is the unit of every statistic: seeds are averaged first, so that a task counts once however often it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.methods import AVERAGE, BEST, MAIN, SIDELINES
from dsv_plugins.bench.pixels import MEASURES

__all__ = [
    "CELL",
    "MEAN",
    "TASK",
    "compared_with",
    "mean_ranks",
    "p_values",
    "quality",
    "rank_correlation",
    "signed_rank_p",
    "strict_means",
    "tidy",
    "wide",
    "with_means",
]

TASK, CELL = ["augmentation", "task"], ["augmentation", "task", "seed"]
MEAN = "(mean)"
"""In place of a task's name."""
DECIMALS = 12
"""AUCs are compared to this many: 0.9 - 0.8 and 0.8 - 0.7 are the same difference, and tied."""
ENUMERATED_PAIRS = 13
"""Up to this many pairs, the p-value is exact even if differences are tied, as in `scipy.stats.wilcoxon`."""
LEAST_PAIRS = 3
"""The rank correlation of two points is always 1 or -1 and says nothing."""


def tidy(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return a row for each pool, task, seed, test set and method; those of one augmentation come together."""
    frame = pd.DataFrame(
        {
            **dict(zip(CELL, (cell.augmentation, cell.task, cell.seed), strict=True)),
            "test set": test_set,
            "method": method,
            "auc": auc,
            "seconds": np.nan if cell.seconds is None else cell.seconds,
            **{measure: cell.pixels.get(measure, {}).get(method, np.nan) for measure in MEASURES},
        }
        for cell in cells
        for test_set, aucs in cell.aucs.items()
        for method, auc in aucs.items()
    )
    return pd.concat([pool for _, pool in frame.groupby("augmentation", sort=False)])


def wide(frame: pd.DataFrame, value: str = "auc", index: Sequence[str] = CELL) -> pd.DataFrame:
    """Return a column for each method and a row for each cell, in the order of the frame; NaN for a missing value."""
    rows = frame.set_index(list(index)).index.unique()
    table = frame.set_index([*index, "method"])[value].unstack()
    return table.reindex(index=rows, columns=frame["method"].unique())


def strict_means(frame: pd.DataFrame, *levels: str) -> pd.DataFrame:
    """Return the mean of the rows that agree in these levels; NaN if one of them lacks the value.

    A method that has no AUC in some cells cannot be compared with the others on equal terms.
    """
    return frame.groupby(level=list(levels), sort=False).agg(lambda column: column.mean(skipna=False))


def with_means(tasks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, with the mean over the tasks after those of each augmentation."""
    return _by_augmentation(tasks, lambda pool: pd.concat([pool, pool.mean().to_frame(MEAN).T]).rename_axis("task"))


def _by_augmentation(frame: pd.DataFrame, rows: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """Return the rows made of each augmentation's."""
    pools = frame.groupby(level="augmentation", sort=False)
    return pd.concat({name: rows(pool.droplevel("augmentation")) for name, pool in pools}, names=["augmentation"])


def mean_ranks(aucs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean rank of each method over the tasks, 1 for the best, for each augmentation.

    Parts and variants of DSV are ranked in its place, one at a time.
    """

    def ranks(pool: pd.DataFrame) -> pd.DataFrame:
        tasks = strict_means(pool, "task").dropna(axis=1).round(DECIMALS)
        sidelines = [name for name in SIDELINES if name in tasks]
        ranked = tasks.drop(columns=sidelines)
        others = ranked.drop(columns=MAIN, errors="ignore")
        means = ranked.rank(axis=1, ascending=False).mean()
        for name in sidelines:
            means[name] = others.join(tasks[name]).rank(axis=1, ascending=False)[name].mean()
        return means.to_frame().T

    return _by_augmentation(aucs, ranks).droplevel(1).reindex(columns=aucs.columns)


def quality(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row of statistics for each augmentation, test set and method, from the rows of `tidy`."""
    pools = frame.groupby(["augmentation", "test set"], sort=False)
    parts = {name: _statistics(wide(pool, index=["task", "seed"]).dropna(axis=1)) for name, pool in pools}
    return pd.concat(parts, names=["augmentation", "test set", "method"])


def _statistics(aucs: pd.DataFrame) -> pd.DataFrame:
    """Return a row of statistics for each method, from the AUCs of one augmentation in each task and seed."""
    regrets = -aucs.sub(aucs[BEST], axis=0)
    tasks, task_regrets = strict_means(aucs, "task"), strict_means(regrets, "task")
    gains = tasks.sub(tasks[AVERAGE], axis=0).round(DECIMALS)
    return pd.DataFrame(
        {
            "AUC": tasks.mean(),
            "± over seeds": _seed_spread(aucs),
            "better": (gains > 0).sum(),
            "worse": (gains < 0).sum(),
            "equal": (gains == 0).sum(),
            **{f"p {rival}": _p_against(rival, tasks) for rival in (AVERAGE, MAIN)},
            "regret": task_regrets.mean(),
            "best chosen": strict_means(regrets.round(DECIMALS) <= 0, "task").mean(),
            "largest regret": task_regrets.max(),
            "on task": task_regrets.idxmax(),
        },
        index=aucs.columns,
    )


def _seed_spread(aucs: pd.DataFrame) -> pd.Series:
    """Return the deviation over the seeds of each method's mean AUC, over the tasks that have every seed."""
    seeds = aucs.index.unique("seed")
    complete = aucs.groupby(level="task").filter(lambda task: len(task) == len(seeds))
    return complete.groupby(level="seed").mean().std()


def compared_with(delivered: str, aucs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each method and augmentation that says how often what is delivered is better, and p."""

    def rows(tasks: pd.DataFrame) -> pd.DataFrame:
        gains = tasks.rsub(tasks[delivered], axis=0).round(DECIMALS)
        columns = {"AUC": tasks.mean(), "better": (gains > 0).sum(), "worse": (gains < 0).sum()}
        return pd.DataFrame({**columns, "p": _p_against(delivered, tasks)}, index=tasks.columns)

    return _by_augmentation(aucs, rows).rename_axis(["augmentation", "method"])


def _p_against(rival: str, tasks: pd.DataFrame) -> pd.Series:
    """Return the p-value of each method against one; NaN for that one, and for all if it was not measured."""
    others = tasks.columns.drop(rival) if rival in tasks else []
    return pd.Series({name: signed_rank_p(tasks[name], tasks[rival]) for name in others}, dtype=float)


def p_values(tasks: pd.DataFrame) -> pd.DataFrame:
    """Return the p-value between every two columns; 1 on the diagonal."""
    matrix = {one: {other: signed_rank_p(tasks[one], tasks[other]) for other in tasks} for one in tasks}
    return pd.DataFrame(matrix).rename_axis("method")


def signed_rank_p(first: ArrayLike, second: ArrayLike) -> float:
    """Return the two-sided p-value of the Wilcoxon signed-rank test on pairs.

    Pairs without a difference are left out, as Wilcoxon did; if no pair differs, the p-value is 1.
    """
    differences = np.round(np.asarray(first, dtype=float) - np.asarray(second, dtype=float), DECIMALS)
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    ranks = stats.rankdata(np.abs(differences))
    if len(set(ranks)) == len(ranks) or len(ranks) > ENUMERATED_PAIRS:
        return float(stats.wilcoxon(differences).pvalue)
    # `wilcoxon` takes five seconds to enumerate the signs of 13 tied ranks, and a table has hundreds of such tests.
    signs = np.arange(2 ** len(ranks))[:, None] >> np.arange(len(ranks)) & 1
    sums, observed = signs @ ranks, ranks[differences > 0].sum()
    return float(min(1.0, 2 * min(np.mean(sums <= observed), np.mean(sums >= observed))))


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's correlation over the pairs that are finite; NaN for too few, or if one side is constant."""
    pairs = pd.DataFrame({"first": np.asarray(first, dtype=float), "second": np.asarray(second, dtype=float)})
    pairs = pairs.replace([np.inf, -np.inf], np.nan).dropna().round(DECIMALS)
    if len(pairs) < LEAST_PAIRS or (pairs.nunique() == 1).any():
        return float("nan")
    return float(stats.spearmanr(pairs["first"], pairs["second"]).statistic)
