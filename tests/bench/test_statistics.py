"""Ranks, signed-rank tests and rank correlations against counting and enumeration."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_cells import oracle_ranks, oracle_signed_rank_p
from scipy import stats

from dsv_plugins.bench.statistics import mean_ranks, p_values, rank_correlation, signed_rank_p


def oracle_spearman(first: list[float], second: list[float]) -> float:
    """Pearson's correlation of the ranks."""
    ranks = np.array([[float(rank) for rank in oracle_ranks(each)] for each in (first, second)])
    return float(np.corrcoef(ranks)[0, 1])


def ranks_of(aucs: list[list[float]]) -> list[float]:
    """The mean rank of each column over the rows, as tasks of one augmentation."""
    index = pd.MultiIndex.from_product([["cutout"], range(len(aucs))], names=["augmentation", "task"])
    columns = [f"method{column}" for column in range(len(aucs[0]))]
    return mean_ranks(pd.DataFrame(aucs, index=index, columns=columns)).loc["cutout"].tolist()


def test_ranks_with_ties_by_hand() -> None:
    # First row: 1, 2.5, 2.5, 4; second row: 3, 3, 3, 1.
    assert ranks_of([[0.9, 0.8, 0.8, 0.7], [0.5, 0.5, 0.5, 0.6]]) == [2.0, 2.75, 2.75, 2.5]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=1, max_size=6))
def test_ranks_by_counting(rows: list[list[int]]) -> None:
    aucs = [[value / 7 for value in row] for row in rows]
    expected = np.mean([[float(rank) for rank in oracle_ranks(row)] for row in aucs], axis=0)
    assert ranks_of(aucs) == pytest.approx(expected)


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
    matrix = p_values(pd.DataFrame(np.random.default_rng(0).random((7, 4)))).to_numpy()
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


@pytest.mark.parametrize("pairs", [12, 13, 14, 40])
def test_signed_rank_p_is_scipys_with_ties_and_without(pairs: int) -> None:
    generator = np.random.default_rng(pairs)
    without_ties, with_ties = generator.normal(0.2, 1, pairs), generator.choice([-3, -2, -1, 1, 2, 3, 4], pairs) / 8
    for differences in (without_ties, with_ties):
        expected = stats.wilcoxon(differences).pvalue
        assert signed_rank_p(differences, np.zeros(pairs)) == pytest.approx(expected, rel=1e-9)
