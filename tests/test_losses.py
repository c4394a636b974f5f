"""The losses against an oracle that shares no code with them: loops in double precision over the paper's formulas."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import fmean, pstdev
from typing import ClassVar

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsv_plugins.errors import EmbeddingError
from dsv_plugins.losses import (
    Estimate,
    concentration,
    discordance,
    distance_std,
    distance_to_test,
    dsv,
    energy_distance,
    relative_energy,
    separability,
    set_distance,
    shift_cosine,
    squared_mmd,
)

Points = list[list[float]]
Loss = Callable[..., Tensor]

thorough = settings(deadline=None, max_examples=150)
brief = settings(deadline=None, max_examples=40)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Sets this small are slower on several threads, and far slower beside other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def oracle_distances(a: Points, b: Points) -> list[float]:
    return [math.dist(x, y) for x, y in product(a, b)]


def oracle_distance(a: Points, b: Points) -> float:
    return fmean(oracle_distances(a, b))


def oracle_mean(points: Points) -> list[float]:
    return [fmean(coordinates) for coordinates in zip(*points, strict=True)]


def oracle_projection(origin: list[float], towards: list[float], point: list[float]) -> float:
    length = math.dist(origin, towards)
    if length == 0:
        return 0.0
    return math.fsum((p - o) * (t - o) / length for o, t, p in zip(origin, towards, point, strict=True))


def oracle_discordance(train: Points, augmented: Points, test: Points) -> float:
    scale = oracle_distance(train, augmented)
    return oracle_distance(train + augmented, test) / scale if scale else math.inf


def oracle_separability(train: Points, augmented: Points, test: Points) -> float:
    scale = oracle_distance(train, augmented)
    origin = oracle_mean(train)
    projections = [oracle_projection(origin, towards, point) for towards, point in product(augmented, test)]
    return pstdev(projections) / scale if scale else 0.0


def oracle_dsv(train: Points, augmented: Points, test: Points, factor: float) -> float:
    l_dis = oracle_discordance(train, augmented, test)
    return l_dis - min(factor * oracle_separability(train, augmented, test), 0.5) / l_dis


def oracle_rbf(a: Points, b: Points, bandwidth: float) -> float:
    def kernel(x: Points, y: Points) -> float:
        return fmean(math.exp(-(distance**2) / (2 * bandwidth**2)) for distance in oracle_distances(x, y))

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


@dataclass(frozen=True)
class Sets:
    train: Tensor
    augmented: Tensor
    test: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.train, self.augmented, self.test

    @property
    def points(self) -> tuple[Points, Points, Points]:
        train, augmented, test = (each.tolist() for each in self.tensors)
        return train, augmented, test

    def map(self, function: Callable[[Tensor], Tensor]) -> Sets:
        return Sets(*(function(each) for each in self.tensors))


@st.composite
def sets(draw: st.DrawFn, *, offsets: tuple[float, ...] = (0.0, 1.0, -1e3, 1e3)) -> Sets:
    """Three sets of float32 embeddings: scattered, or on a coarse grid, where rows coincide and lie on one line."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    width = draw(st.integers(1, 9))
    offset = draw(st.sampled_from(offsets))
    scale = draw(st.sampled_from([0.01, 1.0, 50.0]))
    on_grid = draw(st.booleans())

    def one() -> Tensor:
        points = torch.randn(draw(st.integers(1, 12)), width, generator=generator)
        return points.round() + offset if on_grid else points * scale + offset

    return Sets(one(), one(), one())


def clusters(train: int, augmented: int, test: int, width: int = 8, seed: int = 0) -> Sets:
    """Three clusters apart, so that no loss degenerates."""
    generator = torch.Generator().manual_seed(seed)
    shapes = zip((0.0, 1.0, 0.4), (train, augmented, test), strict=True)
    return Sets(*(torch.randn(rows, width, generator=generator) * (1 + shift) + shift for shift, rows in shapes))


class TestAgainstTheOracle:
    @thorough
    @given(sets())
    def test_set_distance(self, sets: Sets) -> None:
        estimate = set_distance(sets.train, sets.test)
        assert float(estimate) == pytest.approx(oracle_distance(sets.points[0], sets.points[2]), rel=1e-5)
        assert estimate.standard_error == 0
        assert estimate.value.dtype == estimate.standard_error.dtype == torch.float64

    @thorough
    @given(sets())
    def test_distance_std(self, sets: Sets) -> None:
        distances = oracle_distances(sets.points[0], sets.points[2])
        expected = pytest.approx(pstdev(distances), rel=1e-5, abs=1e-7 * fmean(distances))
        assert float(distance_std(sets.train, sets.test)) == expected

    @thorough
    @given(sets())
    def test_discordance(self, sets: Sets) -> None:
        assert float(discordance(*sets.tensors)) == pytest.approx(oracle_discordance(*sets.points), rel=1e-5)

    @thorough
    @given(sets())
    def test_separability(self, sets: Sets) -> None:
        expected = oracle_separability(*sets.points)
        # Where it vanishes, what is left is rounding of the projections, which are of the size of the distances.
        rounding = 1e-7 * max(1.0, min(oracle_discordance(*sets.points), 1e6))
        assert float(separability(*sets.tensors)) == pytest.approx(expected, rel=1e-5, abs=rounding)

    @thorough
    @given(sets())
    def test_dsv_in_both_variants(self, sets: Sets) -> None:
        paper, reference = dsv(*sets.tensors), dsv(*sets.tensors, variant="reference")
        assert float(paper) == pytest.approx(oracle_dsv(*sets.points, factor=1.0), rel=1e-5, abs=1e-6)
        assert float(reference) == pytest.approx(oracle_dsv(*sets.points, factor=2.0), rel=1e-5, abs=1e-6)
        assert paper.ndim == 0
        assert paper.dtype == torch.float64

    @brief
    @given(sets())
    def test_concentration(self, sets: Sets) -> None:
        train, augmented, _ = sets.points
        assume(oracle_distance(train, augmented) > 0)
        expected = oracle_distance(train, train) / oracle_distance(train, augmented)
        assert float(concentration(sets.train, sets.augmented)) == pytest.approx(expected, rel=1e-5, abs=1e-7)

    @brief
    @given(sets(offsets=(0.0, 1e3)))
    def test_linear_mmd(self, sets: Sets) -> None:
        expected = math.dist(oracle_mean(sets.points[0]), oracle_mean(sets.points[2])) ** 2
        assert float(squared_mmd(sets.train, sets.test)) == pytest.approx(expected, rel=1e-5, abs=1e-12)

    @brief
    @given(sets(), st.sampled_from([0.3, 1.0, 20.0]))
    def test_rbf_mmd(self, sets: Sets, bandwidth: float) -> None:
        expected = oracle_rbf(sets.points[0], sets.points[2], bandwidth)
        result = squared_mmd(sets.train, sets.test, kernel="rbf", bandwidth=bandwidth)
        assert float(result) == pytest.approx(expected, rel=1e-5, abs=1e-9)

    @pytest.mark.parametrize("offset", [0.0, 1e3])
    @pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
    def test_wide_embeddings(self, offset: float, spread: float) -> None:
        """Of the width of a ResNet18; train is tight or loose beside the others, and holds every row twice."""
        generator = torch.Generator().manual_seed(0)
        train = torch.randn(10, 512, generator=generator) * spread
        augmented, test = torch.randn(2, 15, 512, generator=generator)
        sets = Sets(train.repeat(2, 1), augmented + 1, test).map(lambda each: each + offset)
        points = sets.points[0]
        assert float(dsv(*sets.tensors)) == pytest.approx(oracle_dsv(*sets.points, factor=1.0), rel=1e-5)
        assert float(set_distance(sets.train, sets.train)) == pytest.approx(oracle_distance(points, points), rel=1e-5)

    def test_the_bandwidth_is_the_median_distance_between_distinct_rows(self) -> None:
        a, b = torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([[4.0]])
        assert squared_mmd(a, b, kernel="rbf") == squared_mmd(a, b, kernel="rbf", bandwidth=3.0)

    @pytest.mark.parametrize("elements", [1, 60, 100])
    def test_any_partition_into_blocks_gives_the_same(self, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
        sets = clusters(17, 16, 23, width=3)
        losses: list[Loss] = [discordance, separability, dsv]
        whole = [float(loss(*sets.tensors)) for loss in losses]
        whole += [float(distance_std(sets.train, sets.test)), float(squared_mmd(sets.train, sets.test, kernel="rbf"))]
        monkeypatch.setattr("dsv_plugins.distances.BLOCK_ELEMENTS", elements)
        blocks = [float(loss(*sets.tensors)) for loss in losses]
        blocks += [float(distance_std(sets.train, sets.test)), float(squared_mmd(sets.train, sets.test, kernel="rbf"))]
        assert blocks == pytest.approx(whole, rel=1e-12)

    def test_the_spread_of_distances_far_larger_than_it(self) -> None:
        """The mean square less the squared mean would leave nothing here: the spread is 1e-9 of the distances."""
        a = torch.zeros(1, 1, dtype=torch.float64)
        b = 1e9 + torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        assert float(distance_std(a, b)) == pytest.approx(1.0, rel=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
    def test_any_real_dtype(self, dtype: torch.dtype) -> None:
        sets = clusters(5, 6, 7).map(lambda each: (each * 4).to(dtype))
        assert float(dsv(*sets.tensors)) == pytest.approx(oracle_dsv(*sets.points, factor=1.0), rel=1e-5)


class TestResamples:
    """One loss for each resample of the test rows, against the oracles on those rows."""

    rows = torch.randint(23, (4, 9), generator=torch.Generator().manual_seed(0))

    @pytest.mark.parametrize("offset", [0.0, 1e3])
    @pytest.mark.parametrize("width", [3, 40])
    def test_each_resample_has_the_loss_of_its_rows(self, width: int, offset: float) -> None:
        sets = clusters(17, 16, 23, width=width).map(lambda each: each + offset)
        train, augmented, test = sets.points
        within, both = oracle_distance(train, train), train + augmented
        to_augmented = oracle_distance(train, augmented)
        shift = 2 * to_augmented - within - oracle_distance(augmented, augmented)
        expected: dict[str, list[float]] = {}
        for rows in self.rows.tolist():
            drawn = [test[row] for row in rows]
            to_test, spread = oracle_distance(train, drawn), oracle_distance(drawn, drawn)
            energy = 2 * to_test - within - spread
            inner = to_test + to_augmented - oracle_distance(augmented, drawn) - within
            for name, loss in {
                "dsv": oracle_dsv(train, augmented, drawn, factor=1.0),
                "discordance": oracle_discordance(train, augmented, drawn),
                "separability": oracle_separability(train, augmented, drawn),
                "distance_to_test": oracle_distance(both, drawn),
                "distance_std": pstdev(oracle_distances(both, drawn)),
                "relative_energy": energy / within,
                "shift_cosine": inner / math.sqrt(energy * shift),
                "linear": math.dist(oracle_mean(both), oracle_mean(drawn)) ** 2,
                "rbf": oracle_rbf(both, drawn, 2.0),
            }.items():
                expected.setdefault(name, []).append(loss)
        seen = torch.cat([sets.train, sets.augmented])
        resamples = self.rows
        result = {
            "dsv": dsv(*sets.tensors, resamples=resamples),
            "discordance": discordance(*sets.tensors, resamples=resamples),
            "separability": separability(*sets.tensors, resamples=resamples),
            "distance_to_test": distance_to_test(*sets.tensors, resamples=resamples),
            "distance_std": distance_std(seen, sets.test, resamples=resamples),
            "relative_energy": relative_energy(sets.train, sets.test, resamples=resamples),
            "shift_cosine": shift_cosine(*sets.tensors, resamples=resamples),
            "linear": squared_mmd(seen, sets.test, resamples=resamples),
            "rbf": squared_mmd(seen, sets.test, kernel="rbf", bandwidth=2.0, resamples=resamples),
        }
        for name, losses in expected.items():
            assert result[name].tolist() == pytest.approx(losses, rel=1e-6), name

    def test_few_resamples_of_many_rows(self) -> None:
        train, _, test = clusters(40, 40, 900).tensors
        rows = torch.randint(900, (2, 30), generator=torch.Generator().manual_seed(0))
        together = relative_energy(train, test, resamples=rows)
        for loss, drawn in zip(together.tolist(), test[rows].tolist(), strict=True):
            within = oracle_distance(train.tolist(), train.tolist())
            energy = 2 * oracle_distance(train.tolist(), drawn) - within - oracle_distance(drawn, drawn)
            assert loss == pytest.approx(energy / within, rel=1e-6)


class TestInvariances:
    @brief
    @given(sets(), st.integers(0, 2**32))
    def test_order_does_not_matter(self, sets: Sets, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shuffled = sets.map(lambda each: each[torch.randperm(len(each), generator=generator)])
        assert float(dsv(*shuffled.tensors)) == pytest.approx(float(dsv(*sets.tensors)), rel=1e-6)

    @brief
    @given(st.integers(0, 100), st.sampled_from([2.0**-20, 0.3, 7.0, 2.0**20]))
    def test_scale_does_not_matter(self, seed: int, scale: float) -> None:
        sets = clusters(9, 8, 11, seed=seed)
        scaled = sets.map(lambda each: each * scale)
        assert float(dsv(*scaled.tensors)) == pytest.approx(float(dsv(*sets.tensors)), rel=1e-5)

    @brief
    @given(st.integers(0, 100), st.sampled_from([-1e3, 0.5, 1e3, 1e6]))
    def test_translation_does_not_matter(self, seed: int, offset: float) -> None:
        sets = clusters(9, 8, 11, seed=seed)
        moved = sets.map(lambda each: each.double() + offset)
        assert float(dsv(*moved.tensors)) == pytest.approx(float(dsv(*sets.tensors)), rel=1e-5)

    @brief
    @given(st.integers(0, 100))
    def test_rotation_does_not_matter(self, seed: int) -> None:
        sets = clusters(9, 8, 11, seed=seed)
        rotation, _ = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)).double())
        rotated = sets.map(lambda each: each.double() @ rotation)
        assert float(dsv(*rotated.tensors)) == pytest.approx(float(dsv(*sets.tensors)), rel=1e-9)

    def test_a_distance_is_symmetric(self) -> None:
        sets = clusters(30, 20, 10)
        assert float(set_distance(sets.train, sets.test)) == pytest.approx(float(set_distance(sets.test, sets.train)))

    def test_inputs_and_the_global_random_state_are_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dsv_plugins.losses.MAX_PAIRS", 10)
        monkeypatch.setattr("dsv_plugins.losses.SAMPLE", 4)
        sets = clusters(30, 20, 10)
        copies = [each.clone() for each in sets.tensors]
        torch.manual_seed(1)
        state = torch.get_rng_state()
        set_distance(sets.train, sets.test, max_pairs=10, sample=4)
        dsv(*sets.tensors)
        squared_mmd(sets.train, sets.test, kernel="rbf")
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(*pair) for pair in zip(sets.tensors, copies, strict=True))

    def test_embeddings_that_require_grad_are_taken(self) -> None:
        sets = clusters(5, 5, 5).map(Tensor.requires_grad_)
        assert not dsv(*sets.tensors).requires_grad


class TestDegenerateSets:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_equal_points_are_at_distance_exactly_zero(self, dtype: torch.dtype) -> None:
        point = torch.tensor([[0.1, 1e3 + 0.3, -7e-5]], dtype=dtype)
        a, b = point.repeat(7, 1), point.repeat(3, 1)
        assert float(set_distance(a, b)) == 0
        assert float(distance_std(a, b)) == 0
        assert float(squared_mmd(a, b)) == 0
        assert float(squared_mmd(a, b, kernel="rbf")) == 0

    @pytest.mark.parametrize("variant", ["paper", "reference"])
    @pytest.mark.parametrize("test_offset", [0.0, 1.0])
    def test_an_augmentation_that_changes_nothing_ranks_last(self, variant: str, test_offset: float) -> None:
        train = torch.full((4, 3), 0.1)
        test = train + test_offset
        assert float(discordance(train, train, test)) == math.inf
        assert float(separability(train, train, test)) == 0
        assert float(dsv(train, train, test, variant=variant)) == math.inf  # type: ignore[arg-type]
        assert float(concentration(train, train)) == math.inf

    def test_an_augmented_row_at_the_mean_of_train_projects_to_zero(self) -> None:
        train, augmented = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.0], [2.0]])
        test = torch.tensor([[3.0]])
        # Projections 0 and 3; distances 1, 3, 1, 1.
        assert float(separability(train, augmented, test)) == pytest.approx(1.5 / 1.5)

    def test_tight_train_sets_concentrate(self) -> None:
        train = torch.zeros(5, 2)
        assert float(concentration(train, train + 1)) == 0


class TestCap:
    # Train at 0 and augmented at 1, so d(train, augmented) = 1; test at ±spread: L_sep = spread.
    train, augmented = torch.zeros(2, 1), torch.ones(2, 1)

    @pytest.mark.parametrize(
        ("spread", "paper", "reference"), [(0.2, 0.2, 0.4), (0.3, 0.3, 0.5), (0.5, 0.5, 0.5), (0.7, 0.5, 0.5)]
    )
    def test_separability_counts_up_to_one_half(self, spread: float, paper: float, reference: float) -> None:
        test = torch.tensor([[0.5 - spread], [0.5 + spread]])
        l_dis = float(discordance(self.train, self.augmented, test))
        assert float(separability(self.train, self.augmented, test)) == pytest.approx(spread)
        assert float(dsv(self.train, self.augmented, test)) == pytest.approx(l_dis - paper / l_dis)
        loss = dsv(self.train, self.augmented, test, variant="reference")
        assert float(loss) == pytest.approx(l_dis - reference / l_dis)

    def test_the_best_case(self) -> None:
        """Half the test rows where train is, half where the augmented are: L_dis = L_sep = 1/2, so L_DSV = -1/2."""
        assert float(dsv(self.train, self.augmented, torch.tensor([[0.0], [1.0]]))) == pytest.approx(-0.5)


class TestErrors:
    losses: tuple[Loss, ...] = (discordance, separability, dsv)

    @pytest.mark.parametrize("loss", losses)
    @pytest.mark.parametrize("name", ["train", "augmented", "test"])
    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            (torch.empty(0, 3), "{} is empty"),
            (torch.empty(5, 0), "{} is empty"),
            (torch.zeros(3), r"{} has shape \(3,\)"),
            (torch.zeros(2, 3, 1), r"{} has shape \(2, 3, 1\)"),
            (torch.tensor(1.0), r"{} has shape \(\)"),
            (torch.zeros(2, 4), "widths of the embeddings differ: .*{} 4"),
            (torch.tensor([[0.0, math.nan, math.nan], [0.0, 0.0, 0.0]]), "{} is NaN or infinite in 1 of 2 rows"),
            (torch.tensor([[0.0, -math.inf, 0.0], [math.inf, 0.0, 0.0]]), "{} is NaN or infinite in 2 of 2 rows"),
        ],
    )
    def test_the_set_is_named(self, loss: Loss, name: str, broken: Tensor, message: str) -> None:
        sets = {"train": torch.randn(4, 3), "augmented": torch.randn(4, 3), "test": torch.randn(4, 3), name: broken}
        with pytest.raises(EmbeddingError, match=message.format(name)) as raised:
            loss(**sets)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("function", [set_distance, distance_std, squared_mmd])
    @pytest.mark.parametrize("name", ["a", "b"])
    def test_functions_of_two_sets_name_them_a_and_b(self, function: Loss, name: str) -> None:
        sets = {"a": torch.randn(4, 3), "b": torch.randn(4, 3), name: torch.empty(0, 3)}
        with pytest.raises(EmbeddingError, match=f"^{name} is empty"):
            function(**sets)

    def test_concentration_names_its_sets(self) -> None:
        with pytest.raises(EmbeddingError, match=r"^augmented is empty"):
            concentration(torch.randn(4, 3), torch.empty(0, 3))

    def test_large_finite_values_are_no_error(self) -> None:
        assert float(set_distance(torch.full((2, 4), 3e38), torch.full((1, 4), -3e38))) == pytest.approx(1.2e39)

    def test_unknown_names_list_the_known_ones(self) -> None:
        sets = clusters(3, 3, 3)
        with pytest.raises(ValueError, match=r"'papre'.*paper, reference"):
            dsv(*sets.tensors, variant="papre")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"'cubic'.*linear, rbf"):
            squared_mmd(sets.train, sets.test, kernel="cubic")  # type: ignore[arg-type]

    def test_settings_without_meaning(self) -> None:
        sets = clusters(3, 3, 3)
        with pytest.raises(ValueError, match="bandwidth must be positive"):
            squared_mmd(sets.train, sets.test, kernel="rbf", bandwidth=0.0)
        with pytest.raises(ValueError, match="at least 2 rows"):
            set_distance(sets.train, sets.test, sample=1)


class TestSampling:
    sets = clusters(700, 700, 600, width=4)

    def z_scores(self, sample: int, seeds: int = 60) -> Tensor:
        exact = set_distance(self.sets.train, self.sets.test).value
        estimates = [
            set_distance(self.sets.train, self.sets.test, max_pairs=1000, sample=sample, seed=seed)
            for seed in range(seeds)
        ]
        return torch.stack([(estimate.value - exact) / estimate.standard_error for estimate in estimates])

    @pytest.mark.parametrize("sample", [20, 150, 550])
    def test_the_standard_error_is_calibrated(self, sample: int) -> None:
        """A sample of 550 leaves out little: without the correction for that, z would be far too small."""
        z = self.z_scores(sample)
        assert (z.abs() < 3).double().mean() > 0.95
        assert 0.75 < z.square().mean().sqrt() < 1.3
        assert abs(z.mean()) < 0.5

    def test_the_standard_error_falls_with_the_sample(self) -> None:
        small, large = (
            set_distance(self.sets.train, self.sets.test, max_pairs=1, sample=sample).standard_error
            for sample in (30, 500)
        )
        assert 0 < large < small / 3

    def test_a_sample_of_everything_is_exact(self) -> None:
        exact = set_distance(self.sets.train, self.sets.test)
        estimate = set_distance(self.sets.train, self.sets.test, max_pairs=1, sample=700)
        assert estimate.standard_error == 0
        assert float(estimate) == pytest.approx(float(exact), rel=1e-12)

    def test_a_single_row_against_many(self) -> None:
        estimate = set_distance(self.sets.train[:1], self.sets.test, max_pairs=1, sample=300)
        exact = set_distance(self.sets.train[:1], self.sets.test)
        assert abs(float(estimate) - float(exact)) < 3 * float(estimate.standard_error)

    def test_a_seed_fixes_the_draw(self) -> None:
        def estimate(seed: int) -> Estimate:
            return set_distance(self.sets.train, self.sets.test, max_pairs=1, sample=50, seed=seed)

        assert float(estimate(3)) == float(estimate(3)) != float(estimate(4))

    @pytest.fixture
    def few_pairs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lower the limit past which the losses sample, which is that of 23,000 rows."""
        monkeypatch.setattr("dsv_plugins.losses.MAX_PAIRS", 1000)
        monkeypatch.setattr("dsv_plugins.losses.SAMPLE", 400)

    losses: ClassVar[dict[str, Loss]] = {
        "discordance": discordance,
        "separability": separability,
        "dsv": dsv,
        "distance_to_test": distance_to_test,
        "concentration": lambda train, augmented, _: concentration(train, augmented),
        "distance_std": lambda train, _, test: distance_std(train, test),
        "squared_mmd": lambda train, _, test: squared_mmd(train, test, kernel="rbf"),
        "energy_distance": lambda train, _, test: energy_distance(train, test),
        "relative_energy": lambda train, _, test: relative_energy(train, test),
        "shift_cosine": shift_cosine,
    }

    @pytest.mark.parametrize("name", losses)
    def test_the_losses_of_large_sets_are_those_of_samples(self, name: str, request: pytest.FixtureRequest) -> None:
        loss = self.losses[name]
        exact = float(loss(*self.sets.tensors))
        request.getfixturevalue("few_pairs")
        sampled = float(loss(*self.sets.tensors))
        assert sampled != exact
        assert sampled == pytest.approx(exact, rel=0.25)
        assert float(loss(*self.sets.tensors)) == sampled, "the draw is seeded"

    @pytest.mark.usefixtures("few_pairs")
    def test_resamples_name_their_rows_so_test_is_never_sampled(self) -> None:
        train, augmented, test = self.sets.tensors
        every_row = torch.arange(len(test))[None]
        distances = oracle_distances((train.tolist() + augmented.tolist())[::7], test.tolist())
        loss = distance_to_test(train[::7], augmented[::7], test, resamples=every_row)
        assert float(loss) == pytest.approx(fmean(distances), rel=1e-9)

    def test_a_set_against_itself_has_no_bias(self) -> None:
        """The two samples are drawn apart: a row meets itself as often as in the exact mean."""
        points = self.sets.train[:40]
        exact = float(set_distance(points, points))
        estimates = [float(set_distance(points, points, max_pairs=1, sample=8, seed=seed)) for seed in range(300)]
        assert fmean(estimates) == pytest.approx(exact, abs=4 * pstdev(estimates) / math.sqrt(300))


class TestLemma1:
    """The paper's bounds of L_dis by the discordance of the test anomalies, which no one can observe.

    Let the test set be normal rows N and anomalies A, a share γ of it; D = d(train, augmented), σ̂ = d(train, N), and
    h_d = (d(train, A) + d(augmented, A)) / D - 1, which is 0 where the anomalies lie between train and augmented.
    With as many augmented rows as train rows,

        c2·h_d + c2 + c3  ≤  L_dis  ≤  c2·h_d + c2 + c3 + (c1 + c3)·σ̂ / D,    c1 = c3 = (1 - γ)/2,  c2 = γ/2.

    For then L_dis is c1·d(train, N)/D + c3·d(augmented, N)/D + c2·(h_d + 1), and d(augmented, N) is within σ̂ of D by
    the triangle inequality, taken in the mean over all triples. The lower bound needs c1 ≥ c3, hence the equal sizes.
    """

    @staticmethod
    def terms(train: Tensor, augmented: Tensor, normal: Tensor, anomalous: Tensor) -> tuple[float, float, float]:
        share = len(anomalous) / (len(normal) + len(anomalous))
        c1, c2, c3 = (1 - share) / 2, share / 2, (1 - share) / 2
        d = float(set_distance(train, augmented))
        h_d = (float(set_distance(train, anomalous)) + float(set_distance(augmented, anomalous))) / d - 1
        lower = c2 * h_d + c2 + c3
        upper = lower + (c1 + c3) * float(set_distance(train, normal)) / d
        return lower, float(discordance(train, augmented, torch.cat([normal, anomalous]))), upper

    @thorough
    @given(
        seed=st.integers(0, 2**32),
        width=st.integers(1, 6),
        rows=st.integers(1, 10),
        normal=st.integers(1, 10),
        anomalous=st.integers(1, 10),
        spread=st.sampled_from([0.0, 0.01, 0.3, 2.0]),
        shift=st.sampled_from([0.0, 0.5, 5.0]),
    )
    def test_the_bounds_hold(
        self, seed: int, width: int, rows: int, normal: int, anomalous: int, spread: float, shift: float
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def cloud(count: int, scale: float, centre: float) -> Tensor:
            return torch.randn(count, width, generator=generator) * scale + centre

        sets = cloud(rows, spread, 0), cloud(rows, 1.0, shift), cloud(normal, spread, 0), cloud(anomalous, 1.0, -shift)
        lower, l_dis, upper = self.terms(*sets)
        assert lower - 1e-6 * abs(lower) <= l_dis <= upper * (1 + 1e-6)

    @pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
    def test_the_bounds_meet_as_the_normals_concentrate(self, spread: float) -> None:
        generator = torch.Generator().manual_seed(0)
        train, augmented, normal, anomalous = (
            torch.randn(rows, 5, generator=generator) * scale + centre
            for rows, scale, centre in ((20, spread, 0), (20, 1.0, 2), (15, spread, 0), (5, 1.0, 1))
        )
        lower, l_dis, upper = self.terms(train, augmented, normal, anomalous)
        assert lower <= l_dis <= upper
        assert upper - lower < 2 * spread

    def test_either_bound_is_attained(self) -> None:
        """On a line: test normals towards the augmented rows attain the lower bound, those away from them the upper."""
        train, augmented, anomalous = torch.zeros(3, 1), torch.ones(3, 1), torch.full((2, 1), 0.8)
        lower, l_dis, _ = self.terms(train, augmented, torch.full((4, 1), 0.25), anomalous)
        assert l_dis == pytest.approx(lower)
        _, l_dis, upper = self.terms(train, augmented, torch.full((4, 1), -0.25), anomalous)
        assert l_dis == pytest.approx(upper)


def peak_growth(setup: str, work: str) -> float:
    """MiB that the work adds to the peak memory of a process of its own, which has made its inputs and warmed up."""
    script = f"""
import resource
import torch
from dsv_plugins.losses import *
torch.set_num_threads(2)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
dsv(*torch.randn(3, 64, 32))
{textwrap.dedent(setup)}
before = peak()
{textwrap.dedent(work)}
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(run.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of the peak memory differs")
class TestMemory:
    def test_no_matrix_of_all_pairs(self) -> None:
        """For 6,000 × 6,000 pairs of width 512, where that matrix alone would take 275 MiB."""
        growth = peak_growth("a, b = torch.randn(2, 6000, 512)", "set_distance(a, b)")
        assert growth < 200

    @pytest.mark.slow
    def test_twenty_thousand_rows(self) -> None:
        growth = peak_growth("sets = torch.randn(3, 20_000, 512)", "assert dsv(*sets).isfinite()")
        assert growth < 1024

    @pytest.mark.slow
    def test_a_million_rows(self) -> None:
        """Sampled within seconds: of processor time, since other work may keep the machine busy."""
        setup = "import time\na = torch.randn(1_000_000, 512)\nb = a.flip(1)"
        work = """
        start = time.process_time()
        estimate = set_distance(a, b)
        assert 0 < estimate.standard_error < 1e-3 * estimate.value
        assert time.process_time() - start < 60
        """
        assert peak_growth(setup, work) < 1024
