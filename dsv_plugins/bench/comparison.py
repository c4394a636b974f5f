"""The tables that compare the methods, as the paper's Table 1 does."""

from __future__ import annotations

import pandas as pd

from dsv_plugins.bench.cells import BEST_THREE, ENSEMBLE, POOLED, WEIGHTED
from dsv_plugins.bench.frames import BEST, by_augmentation, method_aucs, strict_means
from dsv_plugins.bench.methods import AVERAGE, MAIN, SIDELINES
from dsv_plugins.bench.statistics import DECIMALS, average_ranks, p_values, signed_rank_p, spread
from dsv_plugins.bench.table import Table

__all__ = ["aucs_table", "choices_table", "p_values_table", "ranks_table", "tasks_table"]

NEGLIGIBLE = 1e-12
"""Regrets below it are rounding errors."""
P_VALUE = ".2g"


def aucs_table(aucs: pd.DataFrame) -> Table:
    """The mean AUC of each method over the tasks, for each augmentation."""
    return Table(
        "auc",
        "Average AUC",
        strict_means(_over_seeds(aucs), "augmentation"),
        note="Mean over the tasks. Average is the mean of the candidates, Random a training that redraws the "
        "hyperparameters for every image; best and worst are the candidates with the highest and the lowest AUC.",
    )


def tasks_table(aucs: pd.DataFrame) -> Table:
    """The AUC of each method on each task."""
    return Table("tasks", "AUC of each task", _over_seeds(aucs), note="Mean over the seeds.")


def ranks_table(aucs: pd.DataFrame) -> Table:
    """The mean rank of each method over the tasks, for each augmentation."""
    choices = aucs.drop(columns=[ENSEMBLE, BEST_THREE, *WEIGHTED], errors="ignore")  # which choose nothing
    tasks = method_aucs(_over_seeds(choices))
    ranks = pd.DataFrame({augmentation: _ranks(group.dropna(axis=1)) for augmentation, group in by_augmentation(tasks)})
    return Table(
        "rank",
        "Average rank",
        ranks.T.reindex(columns=tasks.columns).rename_axis("augmentation"),
        note=f"1 is the best; ties share the mean rank. {', '.join(SIDELINES)} are each ranked in place of {MAIN}.",
        form=".2f",
    )


def choices_table(aucs: pd.DataFrame) -> Table:
    """The regret of each method, its gain over Average and `dsv`, and its spread over seeds."""
    return Table(
        "choices",
        "Quality of the choices",
        pd.concat(
            {augmentation: _choices(group.droplevel("augmentation")) for augmentation, group in by_augmentation(aucs)},
            names=["augmentation", "method"],
        ),
        note="The seeds of a task are averaged first; ± is the standard deviation over the seeds of the mean AUC over "
        "the tasks. Better, worse and equal count the tasks in which the method's AUC is above, below or equal to that "
        f"of {AVERAGE}. p-values are those of the two-sided Wilcoxon signed-rank test against {AVERAGE} and {MAIN} "
        "over the tasks. Regret is the AUC of the best candidate minus that of the method, the mean over the tasks; "
        "best chosen is how often it is 0, and the largest regret is that of a single task.",
        forms={f"p {AVERAGE}": P_VALUE, f"p {MAIN}": P_VALUE},
    )


def p_values_table(aucs: pd.DataFrame) -> Table:
    """The p-value between every two methods. The pooled cells are left out: they contain the same trainings."""
    alone = aucs[aucs.index.get_level_values("augmentation") != POOLED]
    tasks = method_aucs(_over_seeds(alone)).dropna(axis=1)
    return Table(
        "wilcoxon",
        "p-values of the Wilcoxon signed-rank test",
        pd.DataFrame(p_values(tasks), index=tasks.columns.rename("method"), columns=tasks.columns),
        note="Two-sided, over all augmentations; each task and augmentation is one pair of AUCs, the mean over the "
        "seeds. Pairs without a difference are left out.",
        form=P_VALUE,
    )


def _over_seeds(aucs: pd.DataFrame) -> pd.DataFrame:
    return strict_means(aucs, "augmentation", "task")


def _ranks(tasks: pd.DataFrame) -> dict[str, float]:
    """The mean rank of each method; parts and variants of DSV are ranked in its place, one at a time."""
    sidelines = [method for method in SIDELINES if method in tasks]
    ranked = tasks.drop(columns=sidelines)
    others = ranked.drop(columns=MAIN, errors="ignore")
    return {
        **dict(zip(ranked, average_ranks(ranked), strict=True)),
        **{method: average_ranks(others.join(tasks[method]))[-1] for method in sidelines},
    }


def _choices(aucs: pd.DataFrame) -> pd.DataFrame:
    """A row of statistics for each method, from the AUCs of one augmentation in each task and seed."""
    methods = method_aucs(aucs).dropna(axis=1)
    regrets = -methods.sub(aucs[BEST], axis=0)
    tasks, task_regrets = strict_means(methods, "task"), strict_means(regrets, "task")
    gains = tasks.sub(tasks[AVERAGE], axis=0).round(DECIMALS)
    return pd.DataFrame(
        {
            "AUC": tasks.mean(),
            "± over seeds": _seed_spread(methods),
            "better": (gains > 0).sum(),
            "worse": (gains < 0).sum(),
            "equal": (gains == 0).sum(),
            **{f"p {rival}": _p_against(rival, tasks) for rival in (AVERAGE, MAIN)},
            "regret": task_regrets.mean(),
            "best chosen": strict_means(regrets <= NEGLIGIBLE, "task").mean(),
            "largest regret": task_regrets.max(),
            "on task": task_regrets.idxmax(),
        },
        index=methods.columns,
    )


def _p_against(rival: str, tasks: pd.DataFrame) -> pd.Series:
    """The p-value of each method against one of them; NaN for the rival itself, and for all if it was not measured."""
    others = tasks.columns.drop(rival) if rival in tasks else []
    return pd.Series({method: signed_rank_p(tasks[method], tasks[rival]) for method in others}, dtype=float)


def _seed_spread(methods: pd.DataFrame) -> pd.Series:
    """The standard deviation over the seeds of each method's mean AUC, over the tasks that have every seed."""
    seeds = methods.index.unique("seed")
    complete = methods.groupby(level="task").filter(lambda task: len(task) == len(seeds))
    return complete.groupby(level="seed").mean().apply(spread)
