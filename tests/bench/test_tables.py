"""The tables, from cells whose answer is known and against plain loops."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from known_cells import PERFECT, SECOND, WORST, cell, known_cells, oracle_ranks, oracle_signed_rank_p
from scipy import stats

from dsv_plugins.bench.cells import FULL, POOLED, Cell
from dsv_plugins.bench.figures import figures_page
from dsv_plugins.bench.output import Table, as_csv, as_json, as_markdown, describe, write
from dsv_plugins.bench.protocol import BenchResult
from dsv_plugins.bench.tables import tabulate


def value(tables: list[Table], name: str, row: tuple[str, ...], column: str) -> float | str:
    frame = next(table.frame for table in tables if table.name == name)
    return frame.loc[row if len(row) > 1 else row[0], column]


def test_average_aucs_and_ranks() -> None:
    tables = tabulate(BenchResult(known_cells()))
    row = ("cutout",)
    expected = {"Average": 0.6, "Random": 0.725, SECOND: 0.55, WORST: 0.4, PERFECT: 0.8, "best": 0.8, "worst": 0.4}
    for method, auc in expected.items():
        assert value(tables, "auc", row, method) == pytest.approx(auc), method
    # bolt: Random and dsv tie at .9, then Average and base at .6, then mc; nut: dsv, Average, Random, base and mc.
    ranks = {"Average": 2.75, "Random": 2.25, SECOND: 4.0, WORST: 4.75, PERFECT: 1.25}
    for method, rank in ranks.items():
        assert value(tables, "rank", row, method) == pytest.approx(rank), method
    # In the place of dsv: on bolt 3rd of five (.3 ties with mc for 4.5), on nut .6 ties with Average for 1.5.
    assert value(tables, "rank", row, "dsv-reference") == pytest.approx((4.5 + 1.5) / 2)


def test_the_pool_of_all_has_no_random_run() -> None:
    tables = tabulate(BenchResult(known_cells()))
    assert math.isnan(value(tables, "auc", (POOLED,), "Random"))
    assert value(tables, "rank", (POOLED,), PERFECT) == 1.0


def test_regret_the_worst_choice_and_the_share_of_best_ones() -> None:
    tables = tabulate(BenchResult(known_cells()))
    assert value(tables, "choices", ("cutout", PERFECT), "regret") == 0.0
    assert value(tables, "choices", ("cutout", PERFECT), "best chosen") == 1.0
    assert value(tables, "choices", ("cutout", WORST), "regret") == pytest.approx(0.4)
    assert value(tables, "choices", ("cutout", WORST), "largest regret") == pytest.approx(0.6)
    assert value(tables, "choices", ("cutout", WORST), "on task") == "bolt"
    assert value(tables, "choices", ("cutout", "Random"), "best chosen") == 0.5
    assert math.isnan(value(tables, "choices", ("cutout", PERFECT), "± over seeds"))


def test_several_seeds_are_a_mean_and_a_spread() -> None:
    tables = tabulate(BenchResult(known_cells(seeds=2)))
    # The best of nut is .7 with one seed and .8 with the other, that of bolt always .9.
    assert value(tables, "auc", ("cutout",), PERFECT) == pytest.approx(0.825)
    assert value(tables, "choices", ("cutout", PERFECT), "± over seeds") == pytest.approx(0.05 / math.sqrt(2))
    assert value(tables, "tasks", ("cutout", "nut"), PERFECT) == pytest.approx(0.75)


def test_p_values_leave_the_pool_of_all_out() -> None:
    tables = tabulate(BenchResult(known_cells()))
    assert value(tables, "wilcoxon", (PERFECT,), WORST) == pytest.approx(oracle_signed_rank_p([0.6, 0.2]))
    assert value(tables, "wilcoxon", (PERFECT,), "Random") == pytest.approx(oracle_signed_rank_p([0.0, 0.15]))


def test_ablation_correlations_and_theory() -> None:
    tables = tabulate(BenchResult(known_cells()))
    # An unusable loss ranks last, so separability chooses the third candidate.
    assert value(tables, "ablation", ("cutout", "bolt"), "separability") == 0.3
    assert value(tables, "ablation", ("cutout", "(mean)"), "dsv") == pytest.approx(0.8)
    assert value(tables, "correlation", ("cutout", "bolt"), PERFECT) == pytest.approx(1.0)
    assert value(tables, "correlation", ("cutout", "bolt"), WORST) == pytest.approx(-1.0)
    assert math.isnan(value(tables, "correlation", ("cutout", "bolt"), "separability"))
    signs = {"L_dis ~ h_d": 1, "L_dis ~ alignment": 1, "L_sep ~ h_s": 1, "L_sep ~ alignment": -1, "alignment ~ AUC": -1}
    for column, sign in signs.items():
        assert value(tables, "theory", ("cutout", "(mean)"), column) == pytest.approx(sign), column
    assert value(tables, "theory", ("cutout", "nut"), "concentration") == 0.25


def test_a_method_that_lacks_a_choice_somewhere_is_not_compared_there() -> None:
    cells = [each for each in known_cells() if each.augmentation != POOLED]
    losses = {name: losses for name, losses in cells[0].losses.items() if name != PERFECT}
    tables = tabulate(BenchResult([cell("bolt", "cutout", cells[0].pool, losses, random=0.9), cells[1]]))
    assert math.isnan(value(tables, "auc", ("cutout",), PERFECT))
    assert value(tables, "auc", ("cutout",), WORST) == pytest.approx(0.4)
    assert value(tables, "tasks", ("cutout", "nut"), PERFECT) == pytest.approx(0.7)


def test_tables_as_text_agree_with_their_numbers(tmp_path: Path) -> None:
    cells = known_cells()
    tables = tabulate(BenchResult(cells))
    result = BenchResult(cells, {"washer, cutout, seed 0": "no images"})
    write(tmp_path, result, tables, describe(result, tables, {"seeds": [0]}))
    page = (tmp_path / "tables.md").read_text()
    assert "| cutout | 0.600 | 0.725 | 0.550 | 0.400 | 0.800 |" in page
    assert "washer, cutout, seed 0: no images" in page
    assert "bolt, cutout, seed 0: a note" in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables.csv").read_text())))
    found = next(row for row in rows if (row["table"], row["row"], row["column"]) == ("auc", "cutout", PERFECT))
    assert float(found["value"]) == pytest.approx(0.8)
    stored = json.loads((tmp_path / "bench.json").read_text())
    assert stored["tables"]["auc"][0]["best"] == pytest.approx(0.8)
    assert stored["tables"]["auc"][1]["Random"] is None
    assert stored["cells"][0]["losses"]["separability"] == [None, 1.0, 0.0]
    assert stored["cells"][0]["choices"][PERFECT] == 1
    assert (tmp_path / "figures.html").read_text().startswith("<!doctype html>")


def test_bars_in_names_do_not_break_a_markdown_table() -> None:
    table = Table("auc", "AUC", pd.DataFrame({"dsv": [math.nan]}, index=pd.Index(["a|b"], name="task")))
    assert as_markdown([table]).splitlines()[-1] == "| a\\|b | - |"
    assert as_csv([table]).splitlines()[-1] == "auc,a|b,dsv,"
    assert as_json([table]) == {"auc": [{"task": "a|b", "dsv": None}]}


def test_the_figures_hold_the_library_once_and_escape_names() -> None:
    cells = [cell("<b>bold</b>", "cutout", [0.6, 0.9, 0.3], {"dsv": [1.0, 0.0, 2.0]})]
    page = figures_page(cells, tabulate(BenchResult(cells)))
    assert page.count("plotly.js v") == 1
    assert "\\u003cb\\u003ebold" not in page  # as plotly writes the text <b>bold, which it would show in bold
    assert "&lt;b&gt;bold" in page


# ---------------------------------------------------------------------------
# Several seeds, against plain loops
# ---------------------------------------------------------------------------


def random_cells(seed: int, *, tasks: int, seeds: int) -> list[Cell]:
    """Cells with ties, with a seed that failed in one task, and with a method that lacks one choice."""
    generator = np.random.default_rng(seed)
    cells = []
    for task in range(tasks):
        for trained in range(seeds):
            if (task, trained) == (1, 1):
                continue
            aucs = (generator.integers(10, 20, 4) / 20).tolist()
            losses = {name: generator.random(4).tolist() for name in ("base", "mc", "discordance", "dsv")}
            if (task, trained) == (0, 0):
                del losses["mc"]
            random = float(generator.integers(10, 20)) / 20
            cells.append(cell(f"task{task}", "cutout", aucs, losses, seed=trained, random=random))
    return cells


def oracle_means(cells: list[Cell], method: str) -> dict[str, float]:
    """The mean AUC over the seeds of each task."""
    by_task: dict[str, list[float]] = {}
    for each in cells:
        by_task.setdefault(each.task, []).append(each.aucs[FULL][method])
    return {task: sum(aucs) / len(aucs) for task, aucs in by_task.items()}


def oracle_p(first: dict[str, float], second: dict[str, float]) -> float:
    differences = [round(first[task] - second[task], 10) for task in first]
    differences = [difference for difference in differences if difference != 0]
    return stats.wilcoxon(differences).pvalue if differences else 1.0


COMPARED = ["Average", "Random", "base", "dsv", "discordance"]


@pytest.mark.parametrize(
    ("seed", "tasks", "seeds"), [(0, 2, 2), (1, 3, 2), (2, 7, 3), (3, 7, 3), (4, 7, 2), (5, 8, 3), (6, 10, 2)]
)
def test_choices_against_plain_loops(seed: int, tasks: int, seeds: int) -> None:
    cells = random_cells(seed, tasks=tasks, seeds=seeds)
    rows = {row["method"]: row for row in as_json(tabulate(BenchResult(cells)))["choices"]}
    constants = [f"Always {index}" for index in range(4)]
    best_constant = max(constants, key=lambda name: sum(oracle_means(cells, name).values()))
    assert sorted(rows) == sorted([*COMPARED, "best", best_constant])  # mc has no choice in one cell
    pools = {row.pop("method"): row for row in as_json(tabulate(BenchResult(cells)))["pools"]}
    assert sorted(pools) == sorted([*COMPARED, "best", *constants])
    assert {row.pop("test set") for row in pools.values()} == {"full"}
    rows |= {name: {"method": name, **pools[name]} for name in constants}
    best, average, dsv = (oracle_means(cells, method) for method in ("best", "Average", "dsv"))
    for method, row in rows.items():
        means = oracle_means(cells, method)
        regrets = {task: best[task] - auc for task, auc in means.items()}
        better = worse = equal = 0
        for task, auc in means.items():
            if abs(auc - average[task]) < 1e-10:
                equal += 1
            elif auc > average[task]:
                better += 1
            else:
                worse += 1
        chosen_best: dict[str, list[bool]] = {}
        for each in cells:
            chosen_best.setdefault(each.task, []).append(max(each.pool) - each.aucs[FULL][method] < 1e-10)
        seed_means = [
            np.mean([each.aucs[FULL][method] for each in cells if each.seed == trained and each.task != "task1"])
            for trained in range(seeds)
        ]
        assert row["AUC"] == pytest.approx(sum(means.values()) / tasks)
        assert row["± over seeds"] == pytest.approx(np.std(seed_means, ddof=1))
        assert (row["better"], row["worse"], row["equal"]) == (better, worse, equal)
        assert row["p Average"] == (None if method == "Average" else pytest.approx(oracle_p(means, average)))
        assert row["p dsv"] == (None if method == "dsv" else pytest.approx(oracle_p(means, dsv)))
        assert row["regret"] == pytest.approx(sum(regrets.values()) / tasks)
        assert row["best chosen"] == pytest.approx(np.mean([np.mean(each) for each in chosen_best.values()]))
        assert row["largest regret"] == pytest.approx(max(regrets.values()))
        assert regrets[row["on task"]] == pytest.approx(max(regrets.values()))


@pytest.mark.parametrize("seed", range(3))
def test_ranks_and_p_values_of_several_seeds_against_plain_loops(seed: int) -> None:
    cells = random_cells(seed, tasks=9, seeds=3)
    tables = tabulate(BenchResult(cells))
    means = {method: oracle_means(cells, method) for method in COMPARED}
    ranked = [method for method in COMPARED if method != "discordance"]
    ranks = [oracle_ranks([round(means[method][task], 10) for method in ranked]) for task in means["dsv"]]
    for place, method in enumerate(ranked):
        expected = float(sum(row[place] for row in ranks)) / len(ranks)
        assert value(tables, "rank", ("cutout",), method) == pytest.approx(expected)
        assert value(tables, "wilcoxon", (method,), "dsv") == pytest.approx(oracle_p(means[method], means["dsv"]))
    assert math.isnan(value(tables, "rank", ("cutout",), "mc"))


def test_seeds_that_change_nothing_change_no_statistic() -> None:
    """Three seeds are not three times as many tasks."""
    once = [each for each in random_cells(0, tasks=8, seeds=1) if each.task != "task0"]
    again = [
        Cell(each.task, each.augmentation, seed, each.candidates, each.losses, each.aucs)
        for each in once
        for seed in range(3)
    ]
    one, three = (as_json(tabulate(BenchResult(cells))) for cells in (once, again))
    for name, rows in one.items():
        for row, repeated in zip(rows, three[name], strict=True):
            for column, expected in row.items():
                if column == "± over seeds":
                    assert expected is None
                    assert repeated[column] == pytest.approx(0)
                elif isinstance(expected, float):
                    assert repeated[column] == pytest.approx(expected), (name, column)
                else:
                    assert repeated[column] == expected, (name, column)


def test_a_task_counts_once_however_many_of_its_seeds_succeeded() -> None:
    losses = {"dsv": [0.0, 1.0]}
    cells = [cell("bolt", "cutout", [0.9, 0.5], losses, seed=seed) for seed in range(3)]
    cells.append(cell("nut", "cutout", [0.5, 0.6], losses))
    tables = tabulate(BenchResult(cells))
    assert value(tables, "auc", ("cutout",), "dsv") == pytest.approx((0.9 + 0.5) / 2)
    assert value(tables, "choices", ("cutout", "dsv"), "regret") == pytest.approx((0.0 + 0.1) / 2)
