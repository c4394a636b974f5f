"""The benchmark's statistics by independent paths, and its tables from cells whose answer is known."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY, make_task
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv_plugins import hookimpl
from dsv_plugins.bench.cells import POOLED, Cell, Measured, measure
from dsv_plugins.bench.figures import figures_page
from dsv_plugins.bench.methods import Method, installed_methods, losses_of
from dsv_plugins.bench.output import described_outcome, tabulate, write
from dsv_plugins.bench.protocol import Bench, Outcome
from dsv_plugins.bench.statistics import average_ranks, p_values, rank_correlation, signed_rank_p, spread
from dsv_plugins.bench.table import Table, as_csv, as_json, as_markdown
from dsv_plugins.bench.tasks import find_tasks
from dsv_plugins.bench.theory import Theory, theory_of
from dsv_plugins.bench.time_left import TimeLeft
from dsv_plugins.errors import InputError, TrainingError
from dsv_plugins.hooks.records import AugmentationPlugin, SelectorPlugin
from dsv_plugins.hooks.registry import DISABLE_VARIABLE, build_registry
from dsv_plugins.losses import discordance, separability
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Scores

# ---------------------------------------------------------------------------
# Statistics
# ---------------------------------------------------------------------------


def oracle_ranks(values: list[float]) -> list[Fraction]:
    """Average ranks of a row, the largest value first, by counting."""
    return [
        Fraction(sum(other > value for other in values)) + Fraction(sum(other == value for other in values) + 1, 2)
        for value in values
    ]


def oracle_signed_rank_p(differences: list[float]) -> float:
    """The exact two-sided p-value: every assignment of signs to the ranks is as likely as any other."""
    kept = [difference for difference in differences if difference]
    if not kept:
        return 1.0
    ranks = oracle_ranks([-abs(difference) for difference in kept])
    observed = sum(rank for rank, difference in zip(ranks, kept, strict=True) if difference > 0)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    lower, upper = sum(each <= observed for each in sums), sum(each >= observed for each in sums)
    return min(1.0, 2 * min(lower, upper) / len(sums))


def oracle_spearman(first: list[float], second: list[float]) -> float:
    """Pearson's correlation of the ranks."""
    ranks = np.array([[float(rank) for rank in oracle_ranks(each)] for each in (first, second)])
    return float(np.corrcoef(ranks)[0, 1])


def test_ranks_with_ties_by_hand() -> None:
    aucs = [[0.9, 0.8, 0.8, 0.7], [0.5, 0.5, 0.5, 0.6]]
    # First row: 1, 2.5, 2.5, 4; second row: 3, 3, 3, 1.
    assert average_ranks(aucs).tolist() == [2.0, 2.75, 2.75, 2.5]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=1, max_size=6))
def test_ranks_by_counting(rows: list[list[int]]) -> None:
    aucs = [[value / 7 for value in row] for row in rows]
    expected = np.mean([[float(rank) for rank in oracle_ranks(row)] for row in aucs], axis=0)
    assert average_ranks(aucs) == pytest.approx(expected)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_signed_rank_p_by_enumeration_with_ties_and_zeros(numerators: list[int]) -> None:
    first = [0.5 + numerator / 20 for numerator in numerators]
    expected = oracle_signed_rank_p([float(numerator) for numerator in numerators])
    assert signed_rank_p(first, [0.5] * len(first)) == pytest.approx(expected)


def test_signed_rank_p_without_a_difference_is_one() -> None:
    assert signed_rank_p([0.7, 0.8], [0.7, 0.8]) == 1.0


def test_differences_equal_but_for_rounding_are_tied() -> None:
    first, second = [0.9, 0.8, 0.5], [0.8, 0.7, 0.4]
    assert first[0] - second[0] != first[1] - second[1]
    assert signed_rank_p(first, second) == pytest.approx(oracle_signed_rank_p([1.0, 1.0, 1.0]))


def test_the_matrix_of_p_values_is_symmetric_with_ones_on_its_diagonal() -> None:
    matrix = p_values(np.random.default_rng(0).random((7, 4)))
    assert np.array_equal(matrix, matrix.T)
    assert np.diag(matrix).tolist() == [1.0] * 4


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12))
def test_rank_correlation_is_pearsons_of_the_ranks(pairs: list[tuple[int, int]]) -> None:
    first, second = ([float(pair[index]) for pair in pairs] for index in (0, 1))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(rank_correlation(first, second))
    else:
        assert rank_correlation(first, second) == pytest.approx(oracle_spearman(first, second), abs=1e-12)


def test_rank_correlation_leaves_out_what_is_not_finite() -> None:
    assert rank_correlation([1, 2, math.nan, 3, math.inf], [1, 2, 0, 3, 0]) == pytest.approx(1.0)
    assert math.isnan(rank_correlation([1, 2, math.nan], [1, 2, 3]))


def test_spread_is_the_sample_standard_deviation() -> None:
    assert spread([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert math.isnan(spread([1.0]))


# ---------------------------------------------------------------------------
# Theory
# ---------------------------------------------------------------------------


def clusters(seed: int = 0) -> tuple[Embeddings, list[bool]]:
    generator = torch.Generator().manual_seed(seed)
    train, normal = torch.randn(9, 4, generator=generator), torch.randn(5, 4, generator=generator)
    augmented, anomalous = torch.randn(9, 4, generator=generator) + 3, torch.randn(3, 4, generator=generator) + 2
    return Embeddings(train, augmented, torch.cat([normal, anomalous])), [False] * 5 + [True] * 3


def test_theory_against_loops_and_the_identity_that_joins_its_parts() -> None:
    embeddings, labels = clusters()
    theory = theory_of(embeddings, labels)

    def distance(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(np.mean([math.dist(x, y) for x in a.tolist() for y in b.tolist()]))

    train, augmented, anomalous = embeddings.train, embeddings.augmented, embeddings.test[5:]
    scale = distance(train, augmented)
    assert theory.alignment == pytest.approx(distance(augmented, anomalous), rel=1e-5)
    assert theory.h_s == pytest.approx(distance(train, anomalous) / scale, rel=1e-5)
    assert theory.alignment == pytest.approx(scale * (theory.h_d - theory.h_s + 1), rel=1e-5)
    assert theory.concentration == pytest.approx(distance(train, train) / scale, rel=1e-5)
    assert theory.discordance == float(discordance(train, augmented, embeddings.test))
    assert theory.separability == float(separability(train, augmented, embeddings.test))


def test_separability_is_the_stated_share_of_h_s_for_points() -> None:
    """Normals in one point, anomalies in another on the way to the augmented ones."""
    train, augmented = torch.zeros(4, 3), torch.ones(4, 3)
    test = torch.cat([torch.zeros(6, 3), torch.full((2, 3), 0.7)])
    theory = theory_of(Embeddings(train, augmented, test), [False] * 6 + [True] * 2)
    assert theory.h_s == pytest.approx(0.7)
    assert theory.h_d == pytest.approx(0.0, abs=1e-6)
    assert theory.separability == pytest.approx(math.sqrt(0.25 * 0.75) * theory.h_s)


def test_theory_where_augmentation_changes_nothing_is_not_a_number() -> None:
    points = torch.zeros(4, 3)
    theory = theory_of(Embeddings(points, points, torch.ones(2, 3)), [False, True])
    assert math.isnan(theory.h_d)
    assert math.isnan(theory.concentration)


# ---------------------------------------------------------------------------
# Tables from cells with a known answer
# ---------------------------------------------------------------------------


def cell(
    task: str,
    augmentation: str,
    aucs: list[float],
    losses: dict[str, list[float]],
    *,
    seed: int = 0,
    random: float | None = None,
) -> Cell:
    """A cell in which alignment falls and the parts of DSV follow their quantities as the AUC rises."""
    candidates = [
        Measured(augmentation, {"patch_size": 0.01 * 2**index}, auc, Theory(1 - auc, -auc, auc, -auc, auc, 0.25))
        for index, auc in enumerate(aucs)
    ]
    return Cell(task, augmentation, seed, candidates, losses, random, notes=["a note"])


PERFECT, SECOND, WORST = "dsv", "base", "mc"


def known_cells(seeds: int = 1) -> list[Cell]:
    """The loss of `dsv` is perfect, `base` takes the first candidate, `mc` the worst."""
    cells = []
    for seed in range(seeds):
        for task, aucs, random in (
            ("bolt", [0.6, 0.9, 0.3], 0.9),
            ("nut", [0.5, 0.7 + 0.1 * seed, 0.6], 0.55),
        ):
            losses = {
                SECOND: [0.0, 1.0, 2.0],
                WORST: list(aucs),
                PERFECT: [-auc for auc in aucs],
                "discordance": [-auc for auc in aucs],
                "separability": [math.nan, 1.0, 0.0],
                "dsv (reference)": [1.0, 1.0, 0.0],
            }
            cells.append(cell(task, "cutout", aucs, losses, seed=seed, random=random))
            cells.append(cell(task, POOLED, aucs, losses, seed=seed))
    return cells


def value(tables: list[Table], name: str, row: tuple[str, ...], column: str) -> float | str:
    table = next(table for table in tables if table.name == name)
    values = next(values for names, values in table.rows if names == row)
    return values[table.columns.index(column)]


def test_average_aucs_and_ranks() -> None:
    tables = tabulate(known_cells())
    row = ("cutout",)
    expected = {"Average": 0.6, "Random": 0.725, SECOND: 0.55, WORST: 0.4, PERFECT: 0.8, "best": 0.8, "worst": 0.4}
    for method, auc in expected.items():
        assert value(tables, "auc", row, method) == pytest.approx(auc), method
    # bolt: Random and dsv tie at .9, then Average and base at .6, then mc; nut: dsv, Average, Random, base and mc.
    ranks = {"Average": 2.75, "Random": 2.25, SECOND: 4.0, WORST: 4.75, PERFECT: 1.25}
    for method, rank in ranks.items():
        assert value(tables, "rank", row, method) == pytest.approx(rank), method
    # In the place of dsv: on bolt 3rd of five (.3 ties with mc for 4.5), on nut .6 ties with Average for 1.5.
    assert value(tables, "rank", row, "dsv (reference)") == pytest.approx((4.5 + 1.5) / 2)


def test_the_pool_of_all_has_no_random_run() -> None:
    tables = tabulate(known_cells())
    assert math.isnan(value(tables, "auc", (POOLED,), "Random"))
    assert value(tables, "rank", (POOLED,), PERFECT) == 1.0


def test_regret_the_worst_choice_and_the_share_of_best_ones() -> None:
    tables = tabulate(known_cells())
    assert value(tables, "choices", ("cutout", PERFECT), "regret") == 0.0
    assert value(tables, "choices", ("cutout", PERFECT), "best chosen") == 1.0
    assert value(tables, "choices", ("cutout", WORST), "regret") == pytest.approx(0.4)
    assert value(tables, "choices", ("cutout", WORST), "largest regret") == pytest.approx(0.6)
    assert value(tables, "choices", ("cutout", WORST), "on task") == "bolt"
    assert value(tables, "choices", ("cutout", "Random"), "best chosen") == 0.5
    assert math.isnan(value(tables, "choices", ("cutout", PERFECT), "± over seeds"))


def test_several_seeds_are_a_mean_and_a_spread() -> None:
    tables = tabulate(known_cells(seeds=2))
    # The best of nut is .7 with one seed and .8 with the other, that of bolt always .9.
    assert value(tables, "auc", ("cutout",), PERFECT) == pytest.approx(0.825)
    assert value(tables, "choices", ("cutout", PERFECT), "± over seeds") == pytest.approx(0.05 / math.sqrt(2))
    assert value(tables, "tasks", ("cutout", "nut"), PERFECT) == pytest.approx(0.75)


def test_p_values_leave_the_pool_of_all_out() -> None:
    tables = tabulate(known_cells())
    assert value(tables, "wilcoxon", (PERFECT,), WORST) == pytest.approx(oracle_signed_rank_p([0.6, 0.2]))
    assert value(tables, "wilcoxon", (PERFECT,), "Random") == pytest.approx(oracle_signed_rank_p([0.0, 0.15]))


def test_ablation_correlations_and_theory() -> None:
    tables = tabulate(known_cells())
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
    tables = tabulate([cell("bolt", "cutout", cells[0].pool, losses, random=0.9), cells[1]])
    assert math.isnan(value(tables, "auc", ("cutout",), PERFECT))
    assert value(tables, "auc", ("cutout",), WORST) == pytest.approx(0.4)
    assert value(tables, "tasks", ("cutout", "nut"), PERFECT) == pytest.approx(0.7)


def test_tables_as_text_agree_with_their_numbers(tmp_path: Path) -> None:
    cells = known_cells()
    tables = tabulate(cells)
    outcome = Outcome(cells, {"washer, cutout, seed 0": "no images"})
    write(tmp_path, outcome, tables, described_outcome(outcome, tables, {"seeds": 1}))
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
    table = Table("auc", "AUC", ("task",), ("dsv",), [(("a|b",), (math.nan,))])
    assert as_markdown([table]).splitlines()[-1] == "| a\\|b | - |"
    assert as_csv([table]).splitlines()[-1] == "auc,a|b,dsv,"
    assert as_json([table]) == {"auc": [{"task": "a|b", "dsv": None}]}


def test_the_figures_hold_the_library_once_and_escape_names() -> None:
    cells = [cell("<b>bold</b>", "cutout", [0.6, 0.9, 0.3], {"dsv": [1.0, 0.0, 2.0]}) for _ in range(1)]
    page = figures_page(cells, tabulate(cells))
    assert page.count("plotly.js v") == 1
    assert "<b>bold" not in page
    assert "bold" in page


# ---------------------------------------------------------------------------
# Methods and measuring
# ---------------------------------------------------------------------------


def evaluation(patch_size: float, seed: int) -> Evaluation:
    embeddings, _ = clusters(seed)
    generator = torch.Generator().manual_seed(seed)
    scores = Scores(torch.rand(9, generator=generator), torch.rand(8, generator=generator))
    return Evaluation(Candidate("cutout", {"patch_size": patch_size}), embeddings, scores)


class Failing:
    def losses(self, evaluations: list[Evaluation]) -> list[float]:
        raise RuntimeError("out of luck")


class Short:
    def losses(self, evaluations: list[Evaluation]) -> list[float]:
        return [0.0]


class Plugins:
    @hookimpl
    def selector(self) -> list[SelectorPlugin]:
        return [SelectorPlugin("failing", Failing), SelectorPlugin("short", Short)]


class Stripe:
    """An augmentation whose one hyperparameter has no range to draw from."""

    def __init__(self, shade: str) -> None:
        self.value = {"light": 1.0, "dark": 0.0}[shade]

    def __call__(self, images: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
        changed = images.clone()
        changed[..., :4, :] = self.value
        return changed


class StripePlugin:
    @hookimpl
    def augmentation(self) -> AugmentationPlugin:
        return AugmentationPlugin("stripe", Stripe, space={"shade": ["light", "dark"]})


def test_every_selector_takes_part_and_a_failing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE_VARIABLE, "*")  # whatever else is installed beside the tests
    registry = build_registry([Plugins()])
    methods = installed_methods(registry)
    labels = [method.label for method in methods]
    paper, ours = ["base", "mmd", "std", "mc", "select", "hits"], ["cosine", "energy"]
    assert labels == [*paper, *ours, "failing", "short", "dsv", "discordance", "separability", "dsv (reference)"]
    with_holdout = [method.label for method in installed_methods(registry, holdout=0.15)]
    assert set(with_holdout) - set(labels) == {"pu-auc"}
    losses, problems = losses_of(methods, [evaluation(0.01, 0), evaluation(0.02, 1)], registry)
    assert list(losses) == [label for label in labels if label not in ("failing", "short")]
    assert losses["dsv"] != losses["dsv (reference)"]
    assert "out of luck" in problems[0]
    assert "gave 1 losses for 2 candidates" in problems[1]


def test_a_candidate_without_finite_scores_is_left_out_and_named() -> None:
    registry = build_registry()
    good, bad = evaluation(0.01, 0), evaluation(0.02, 1)
    bad.scores.test[0] = math.nan
    labels = [False] * 5 + [True] * 3
    measured = measure(("a", "cutout", 0), [bad, good], labels, methods=[Method("dsv", "dsv")], registry=registry)
    assert [candidate.params["patch_size"] for candidate in measured.candidates] == [0.01]
    assert "patch_size=0.02" in measured.notes[0]
    with pytest.raises(TrainingError, match="no candidate has test scores"):
        measure(("a", "cutout", 0), [bad], labels, methods=[], registry=registry)


def test_an_augmentation_without_ranges_has_no_random_run_and_is_measured_all_the_same(task: Path, tmp_path) -> None:
    settings = {"plugins": (StripePlugin(),), "detector_params": TINY, "executor": "serial"}
    said: list[str] = []
    bench = Bench(find_tasks([task]), tmp_path / "out", ["stripe"], settings=settings)
    outcome = bench.run(conduct=lambda study: study.run(), report=said.append)
    assert not outcome.failures
    (measured,) = outcome.cells
    assert measured.random is None
    assert measured.notes == [
        "no Random run: shade has values that are no numbers, so there is no range to draw it from"
    ]
    assert said == ["parts, stripe, seed 0"]
    assert "shade=light" in figures_page(outcome.cells, tabulate(outcome.cells))


def test_the_time_left_is_judged_from_what_appears_on_the_disk(tmp_path: Path, monkeypatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("dsv_plugins.bench.time_left.time.monotonic", lambda: now[0])
    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("candidates/a-12", "candidates/.b-12.x.partial"):
        (first / name).mkdir(parents=True)
    pace = TimeLeft({first: 3, second: 3})
    assert pace.missing() == 5
    assert pace.time_left() == ""
    (first / "candidates/b-12").mkdir()
    now[0] += 60
    assert pace.time_left() == "about 4 min left"
    now[0] += 3600
    assert pace.time_left() == "about 4.1 h left"


# ---------------------------------------------------------------------------
# Tasks and settings
# ---------------------------------------------------------------------------


def test_tasks_and_folders_of_tasks_are_found(tmp_path: Path) -> None:
    for name in ("data/bolt", "data/nut", "washer"):
        make_task(tmp_path / name)
    (tmp_path / "data/readme").mkdir()
    tasks = find_tasks([tmp_path / "washer", tmp_path / "data", tmp_path / "data/bolt"])
    assert [task.name for task in tasks] == ["washer", "bolt", "nut"]
    assert tasks[0].train == tmp_path / "washer/train/good"


def test_folders_that_are_no_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no task and holds none"):
        find_tasks([tmp_path])
    with pytest.raises(InputError, match="is not a folder"):
        find_tasks([tmp_path / "missing"])
    make_task(tmp_path / "one/bolt")
    make_task(tmp_path / "two/bolt")
    with pytest.raises(InputError, match="are both of a task 'bolt'"):
        find_tasks([tmp_path / "one", tmp_path / "two"])


def test_labels_are_asked_for_before_anything_is_trained(tmp_path: Path) -> None:
    task = find_tasks([make_task(tmp_path / "bolt")])[0]
    task.check_labels()
    (task.test / "bar").rename(tmp_path / "bar")
    with pytest.raises(InputError, match="only normal images.*folders of other names"):
        task.check_labels()
    (task.test / "good").rename(task.test / "mixed")
    with pytest.raises(InputError, match="no folder named 'good'"):
        task.check_labels()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 0}, "seeds is 0"),
        ({"augmentations": []}, "at least one"),
        ({"augmentations": ["cutout", "cutout"]}, "each augmentation once"),
    ],
)
def test_wrong_settings_are_refused(task: Path, tmp_path: Path, settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Bench(find_tasks([task]), tmp_path / "out", **settings).run(conduct=None, report=print)
