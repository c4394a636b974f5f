"""The tables of a benchmark: what they show, and how to read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from dsv_plugins.bench.cells import DRAWS, FULL, POOLED, Cell
from dsv_plugins.bench.methods import (
    ABLATION,
    ALWAYS,
    AVERAGE,
    BEST,
    BEST_THREE,
    DEFAULT,
    ENSEMBLE,
    MAIN,
    SIDELINES,
    WEIGHTED,
    WORST,
)
from dsv_plugins.bench.output import Table
from dsv_plugins.bench.pixels import AUPRO, AUROC, PIMO
from dsv_plugins.bench.protocol import BenchResult
from dsv_plugins.bench.statistics import (
    CELL,
    TASK,
    compared_with,
    mean_ranks,
    p_values,
    quality,
    rank_correlation,
    strict_means,
    tidy,
    wide,
    with_means,
)

__all__ = ["tabulate"]

PIXELS = {AUROC: "pixel AUROC", AUPRO: "AUPRO to 30 % of the good pixels", PIMO: "PIMO"}
P_VALUE = ".2g"
P_VALUES = {f"p {rival}": P_VALUE for rival in (AVERAGE, MAIN)}
APPROXIMATED = {
    "L_dis ~ h_d": ("discordance", "h_d"),
    "L_dis ~ alignment": ("discordance", "alignment"),
    "L_sep ~ h_s": ("separability", "h_s"),
    "L_sep ~ alignment": ("separability", "alignment"),
    "alignment ~ AUC": ("alignment", "auc"),
}


def tabulate(result: BenchResult) -> list[Table]:
    """Return all tables, the summaries first."""
    return list(_tables(result))


def _tables(result: BenchResult) -> Iterator[Table]:
    frame = tidy(result.cells)
    full = frame[frame["test set"] == FULL]
    aucs = _main(wide(full))
    if result.rivals:
        yield _rivals_table(full, result)
    yield Table(
        "auc",
        "Average AUC",
        strict_means(strict_means(aucs, *TASK), "augmentation"),
        note="Mean over the tasks. Average is the mean of the candidates, Random a training that redraws the "
        "hyperparameters for every image; best and worst are the candidates with the highest and the lowest AUC.",
    )
    ensembles = [name for name in aucs if name.startswith((ENSEMBLE, WEIGHTED))]
    yield Table(
        "rank",
        "Average rank",
        mean_ranks(aucs.drop(columns=[*ensembles, BEST, WORST])),
        note=f"1 is the best; ties share the mean rank. {', '.join(SIDELINES)} are each ranked in place of {MAIN}.",
        form=".2f",
    )
    pools = quality(frame[frame["method"] != WORST])
    yield Table(
        "choices",
        "Quality of the choices",
        _headlines(pools.xs(FULL, level="test set"), list(aucs)),
        note="The seeds of a task are averaged first; ± is the standard deviation over the seeds of the mean AUC over "
        "the tasks. Better, worse and equal count the tasks in which the method's AUC is above, below or equal to that "
        f"of {AVERAGE}. p-values are those of the two-sided Wilcoxon signed-rank test against {AVERAGE} and {MAIN} "
        "over the tasks. Regret is the AUC of the best candidate minus that of the method, the mean over the tasks; "
        f"best chosen is how often it is 0, and the largest regret is that of a single task. {ALWAYS}… is the one "
        "candidate with the highest mean AUC, which nobody knows without labels.",
        forms=P_VALUES,
    )
    alone = aucs.drop(columns=[BEST, WORST]).drop(POOLED, level="augmentation", errors="ignore")
    yield Table(
        "wilcoxon",
        "p-values of the Wilcoxon signed-rank test",
        p_values(strict_means(alone, *TASK).dropna(axis=1)),  # not of the pooled cells: they are the same trainings
        note="Two-sided, over all augmentations; each task and augmentation is one pair of AUCs, the mean over the "
        "seeds. Pairs without a difference are left out.",
        form=P_VALUE,
    )
    yield from _pixels_tables(full)
    if len(full) < len(frame):
        yield _variations_table(frame)
    yield Table(
        "pools",
        "Quality of every method and of each candidate alone, on every test set",
        pools,
        note="The columns are those of the quality of the choices. On a changed test set, over the tasks that have it.",
        forms=P_VALUES,
    )
    yield Table("tasks", "AUC of each task", strict_means(aucs, *TASK), note="Mean over the seeds.")
    yield from _inner_tables(result.cells, aucs)


def _main(aucs: pd.DataFrame) -> pd.DataFrame:
    """Leave out constant candidates, and ensembles weighted by others than the two main selectors."""
    weighted = (f"{WEIGHTED}{DEFAULT}", f"{WEIGHTED}{MAIN}")
    return aucs[[name for name in aucs if name in weighted or not name.startswith((ALWAYS, WEIGHTED))]]


def _headlines(quality: pd.DataFrame, main: Sequence[str]) -> pd.DataFrame:
    """Return the rows of the main methods, and of the best constant candidate of each augmentation."""
    names = quality.index.get_level_values("method")
    best = quality.loc[names.str.startswith(ALWAYS), "AUC"].groupby(level="augmentation").idxmax()
    return quality[names.isin(main) | quality.index.isin(best)]


def _pixels_tables(frame: pd.DataFrame) -> Iterator[Table]:
    for measure, title in PIXELS.items():
        measured = frame.dropna(subset=measure)
        if len(measured):
            yield Table(
                f"pixels-{measure}",
                f"Average {title}",
                strict_means(strict_means(wide(measured, measure), *TASK), "augmentation"),
                note="Of the heatmaps of the same choices, over all pixels of the test images; mean over the "
                f"{measured['task'].nunique()} of {frame['task'].nunique()} tasks with masks. Average is the mean of "
                "the candidates, best the highest of one.",
            )


def _variations_table(frame: pd.DataFrame) -> Table:
    alone = frame[frame["augmentation"] != POOLED]
    aucs = _main(wide(alone, "auc", [*CELL, "test set"])).drop(columns=WORST)
    test_sets = frame["test set"].unique()
    # A task with too few anomalies for a share lacks that test set; only cells that have all are compared.
    complete = aucs.groupby(level=CELL).filter(lambda cell: len(cell) == len(test_sets)).dropna(axis=1)
    tasks = complete.groupby(level=[*TASK, "test set"]).mean()
    counts = [len(some.groupby(level=CELL)) for some in (complete, aucs)]
    return Table(
        "variations",
        "Average AUC on changed test sets",
        tasks.groupby(level="test set").mean().reindex(test_sets).T.dropna().rename_axis(index="method"),
        note=f"Mean over all tasks and augmentations that have every test set, {counts[0]} of {counts[1]} cells. With "
        f"fewer anomalies, selectors see only a part of them, in {DRAWS} draws, and a choice counts with its AUC on "
        "the full test set. With brighter normal images, it counts with its AUC on the changed test set.",
    )


def _rivals_table(frame: pd.DataFrame, result: BenchResult) -> Table:
    """Compare what a study delivers with what its candidates could deliver, and with the rivals, on the same tasks."""
    weighted, choice = f"{WEIGHTED}{DEFAULT}", f"choice of {DEFAULT}"
    delivered, other = (weighted, choice) if result.merges else (choice, weighted)
    ours = frame.replace({"method": {DEFAULT: choice}})
    ours["seconds"] = ours["seconds"].where(ours["method"] == delivered)
    rivals = [{**rival, AUPRO: rival["pixels"].get(AUPRO)} for rival in result.rivals]
    theirs = pd.DataFrame(rivals).rename(columns={"detector": "method"})

    def on_tasks(value: str) -> pd.DataFrame:
        mine = strict_means(wide(ours, value), *TASK)
        order = [name for name in (delivered, BEST, AVERAGE, other, BEST_THREE, ENSEMBLE) if name in mine]
        return mine[order].join(wide(theirs, value, ["task"]), on="task").astype(float)

    aucs = on_tasks("auc").dropna()
    rows = compared_with(delivered, aucs)
    for column, value in (("AUPRO", AUPRO), ("seconds", "seconds")):
        means = on_tasks(value).reindex(aucs.index).groupby(level="augmentation").mean()
        rows[column] = [means.loc[key] for key in rows.index]
    return Table(
        "rivals",
        "What a user gets",
        rows,
        note="Mean over the tasks that have all of them. The first row is what a study delivers. Better and worse "
        "count the tasks in which it has a higher or a lower AUC; p is from the two-sided Wilcoxon signed-rank test. "
        "Seconds are those of a whole study, on average; those of an interrupted one are not known. AUPRO is of the "
        "heatmaps, over the tasks with masks.",
        forms={"p": P_VALUE, "seconds": ".0f"},
    )


def _inner_tables(cells: Sequence[Cell], aucs: pd.DataFrame) -> Iterator[Table]:
    """Yield the tables that look inside DSV."""
    parts = aucs[[part for part in ABLATION if part in aucs]].dropna(axis=1)
    yield Table("ablation", "Ablation: AUC by the parts of DSV alone", with_means(strict_means(parts, *TASK)))
    names = [{"augmentation": cell.augmentation, "task": cell.task} for cell in cells]
    yield Table(
        "correlation",
        "Rank correlation of each loss with the AUC",
        _over_seeds({**name, **_correlations(cell)} for name, cell in zip(names, cells, strict=True)),
        note="Spearman's correlation of the negated loss: 1 if the loss ranks the candidates as their AUCs do.",
        form=".2f",
    )
    yield Table(
        "theory",
        "How well the losses follow what they approximate",
        _over_seeds({**name, **_theory(cell)} for name, cell in zip(names, cells, strict=True)),
        note="Spearman's correlations over the candidates. The theory predicts +, +, +, -, -; it assumes a "
        "concentration far below 1, of which the mean over the candidates is shown.",
        form=".2f",
    )


def _correlations(cell: Cell) -> dict[str, float]:
    return {name: rank_correlation([-loss for loss in losses], cell.pool) for name, losses in cell.losses.items()}


def _theory(cell: Cell) -> dict[str, float]:
    known = pd.DataFrame(cell.candidates)
    followed = {name: rank_correlation(known[one], known[other]) for name, (one, other) in APPROXIMATED.items()}
    return {**followed, "concentration": known["concentration"].mean()}


def _over_seeds(rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """Return the mean over the seeds of each task that have a value, and the mean over the tasks."""
    return with_means(pd.DataFrame(rows).groupby(TASK, sort=False).mean())
