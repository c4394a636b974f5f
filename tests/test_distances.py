"""Sums of distances against scipy, which subtracts row from row in float64: where float32 would lose every digit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from dsv_plugins.distances import distance_blocks, distance_means, distance_moments
from dsv_plugins.losses import energy_distance, set_distance

ROWS, WIDTH = 300, 512
Pair = tuple[Tensor, Tensor]


def normal(rows: int = ROWS, width: int = WIDTH, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def clusters() -> Pair:
    """Both sets in the same two dense clusters, far apart: half of the pairs are near, whatever the centre."""
    places = torch.tensor([-50.0, 50.0]).repeat(ROWS // 2)[:, None]
    return normal(seed=1) * 1e-2 + places, normal(seed=2) * 1e-2 + places


def outlier() -> Pair:
    """One row so far away that the mean is nowhere near the others."""
    a = normal()
    a[7] = 1e6
    return a, normal(seed=1)


SETS: dict[str, Callable[[], Pair]] = {
    "ordinary": lambda: (normal(), normal(seed=1) + 0.5),
    "tiny patches": lambda: (normal(), normal() + normal(seed=1) * 1e-5),
    "a set and itself": lambda: (normal(), normal()),
    "every row twice": lambda: (normal(150).repeat(2, 1), normal(150, seed=1).repeat(2, 1)),
    "dense beside loose": lambda: (normal() * 1e-4, torch.cat([normal(150) * 1e-4, normal(150, seed=1) + 1])),
    "clusters": clusters,
    "an outlier": outlier,
    "a line": lambda: (torch.linspace(0, 1, ROWS)[:, None] * normal(1), torch.linspace(0, 2, 400)[:, None] * normal(1)),
    "wide": lambda: (normal(width=5000), normal(width=5000, seed=1)),
    "narrow": lambda: (normal(width=2), normal(width=2, seed=1)),
    "huge": lambda: (normal() * 1e25, normal(seed=1) * 1e25),
    "tiny": lambda: (normal() * 1e-25, normal(seed=1) * 1e-25),
}


@pytest.fixture(params=SETS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return SETS[request.param]()


def expected(a: Tensor, b: Tensor) -> np.ndarray:
    return cdist(a.double().numpy(), b.double().numpy())


def all_distances(a: Tensor, b: Tensor) -> np.ndarray:
    return torch.cat(list(distance_blocks(a, b))).numpy()


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e5])
class TestPrecision:
    def test_every_distance_is_right(self, pair: Pair, offset: float) -> None:
        a, b = (each + offset for each in pair)
        oracle = expected(a, b)
        # A near pair is right to √ε of its distance from the centre.
        np.testing.assert_allclose(all_distances(a, b), oracle, rtol=1e-9, atol=1e-7 * oracle.mean())

    def test_every_mean_is_right(self, pair: Pair, offset: float) -> None:
        a, b = (each + offset for each in pair)
        oracle, (of_rows, of_columns) = expected(a, b), distance_means(a, b)
        np.testing.assert_allclose(of_rows, oracle.mean(axis=1), rtol=1e-9, atol=1e-7 * oracle.mean())
        np.testing.assert_allclose(of_columns, oracle.mean(axis=0), rtol=1e-9, atol=1e-7 * oracle.mean())
        assert float(set_distance(a, b)) == pytest.approx(oracle.mean(), rel=1e-8)

    def test_every_variance_is_right(self, pair: Pair, offset: float) -> None:
        a, b = (each + offset for each in pair)
        oracle = expected(a, b)
        means, variances = distance_moments(a, b)
        np.testing.assert_allclose(means, oracle.mean(axis=0), rtol=1e-9, atol=1e-7 * oracle.mean())
        np.testing.assert_allclose(variances.sqrt(), oracle.std(axis=0), rtol=1e-9, atol=1e-6 * oracle.mean())


def test_blocks_of_any_size_cover_every_pair_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(201, 20), normal(333, 20, seed=1)
    monkeypatch.setattr("dsv_plugins.distances.BLOCK_ELEMENTS", 333 * 64)
    assert [len(block) for block in distance_blocks(a, b)] == [64, 64, 64, 9]
    np.testing.assert_allclose(all_distances(a, b), expected(a, b), rtol=1e-9)
    _, variances = distance_moments(a, b)
    np.testing.assert_allclose(variances, expected(a, b).var(axis=0), rtol=1e-9)


def test_what_is_left_of_distances_that_cancel() -> None:
    """Two sets of one distribution: their energy distance is a thousandth of the distances that it is made of."""
    a, b = normal(1500, 64) + 1000, normal(1500, 64, seed=1) + 1000
    oracle = 2 * expected(a, b).mean() - expected(a, a).mean() - expected(b, b).mean()
    assert oracle < 2e-3 * expected(a, b).mean()
    assert float(energy_distance(a, b)) == pytest.approx(oracle, rel=1e-8)


def test_many_equal_rows_are_at_distance_exactly_zero() -> None:
    point = normal(1) + 1000.1
    assert float(set_distance(point.repeat(400, 1), point.repeat(300, 1))) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_products_are_in_float64_whatever_the_dtype_and_what_the_user_permits(dtype: torch.dtype) -> None:
    """Autocast, and short products in float32, which Lightning advises on many GPUs, change nothing."""
    a, b = normal().to(dtype), normal(seed=1).to(dtype)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            distances = all_distances(a, b)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert distances.dtype == np.float64
    np.testing.assert_allclose(distances, expected(a, b), rtol=1e-9)
