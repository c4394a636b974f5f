"""P-values, thresholds and the share of anomalies, against brute force and many seeded draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dsv_plugins import InputError
from dsv_plugins.calibration import Calibration, check_promise, discoveries, findings, images_to_keep_out


def test_a_p_value_counts_the_held_out_scores_that_are_at_least_as_large():
    generator = np.random.default_rng(0)
    held_out, scores = generator.integers(0, 8, 30).astype(float), generator.integers(-1, 9, 50).astype(float)
    expected = [(1 + sum(other >= score for other in held_out)) / 31 for score in scores]
    assert np.allclose(Calibration(held_out).p_values(scores), expected)


@pytest.mark.parametrize("count", [19, 20, 57, 99, 100])
@pytest.mark.parametrize("rate", [0.05, 0.07, 0.1, 0.29, 0.5])
def test_an_alarm_is_a_p_value_of_at_most_the_rate(count: int, rate: float):
    generator = np.random.default_rng(count)
    calibration = Calibration(generator.integers(0, 40, count))  # with ties
    scores = np.arange(-1, 42)
    p_values = calibration.p_values(scores)
    assert (calibration.alarms(scores, rate) == [p * (count + 1) <= rate * (count + 1) + 1e-9 for p in p_values]).all()


@pytest.mark.parametrize("count", [20, 60, 200, 500])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
def test_the_promise_holds_for_exchangeable_images(count: int, rate: float):
    """Over many draws, good images are called anomalous at the rate that was asked for, and not far below it."""
    generator = np.random.default_rng(count)
    found = []
    for _ in range(2000):
        scores = generator.standard_t(2, count + 20)  # heavy tails: any distribution will do
        found.append(Calibration(scores[:count]).alarms(scores[count:], rate).mean())
    exact = math.floor(rate * (count + 1) + 1e-9) / (count + 1)
    error = 4 * np.std(found) / math.sqrt(len(found))
    assert exact <= rate
    assert exact - error <= np.mean(found) <= exact + error


def test_p_values_of_good_images_are_uniform_or_larger():
    generator = np.random.default_rng(1)
    drawn = [generator.integers(0, 12, 31) for _ in range(4000)]  # ties make them larger
    p_values = np.array([Calibration(each[:30]).p_values(each[30:])[0] for each in drawn])
    for level in np.linspace(0.05, 0.95, 19):
        assert (p_values <= level).mean() <= level + 3 * math.sqrt(level * (1 - level) / len(p_values))


def test_false_discoveries_are_as_rare_as_asked_for():
    generator = np.random.default_rng(2)
    shares, power = [], []
    for _ in range(500):
        calibration = Calibration(generator.normal(size=200))
        scores = np.concatenate([generator.normal(size=80), generator.normal(4, 1, 20)])
        flagged = discoveries(calibration.p_values(scores), 0.1)
        shares.append(flagged[:80].sum() / max(1, flagged.sum()))
        power.append(flagged[80:].mean())
    assert np.mean(shares) <= 0.1 + 3 * np.std(shares) / math.sqrt(len(shares))
    assert np.mean(power) > 0.5


def test_a_rate_that_cannot_be_promised_names_the_images_it_needs():
    calibration = Calibration(np.arange(19.0))
    assert calibration.threshold(0.05) == 18.0
    with pytest.raises(InputError, match=r"19 held-out images cannot promise .* 0\.01, only 0\.05 .* with 99 good"):
        calibration.threshold(0.01)
    assert Calibration(np.arange(9.0)).default_rate == pytest.approx(0.1)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 2, math.nan])
def test_a_rate_is_between_0_and_1(rate: float):
    with pytest.raises(InputError, match="give a rate between 0 and 1"):
        Calibration(np.arange(30.0)).threshold(rate)
    with pytest.raises(InputError, match="give a rate between 0 and 1"):
        discoveries(np.array([0.5]), rate)


@pytest.mark.parametrize("scores", [[], [1.0, math.nan], [math.inf]])
def test_scores_that_cannot_decide_are_refused(scores: list[float]):
    with pytest.raises(InputError, match="at least one score"):
        Calibration(np.array(scores))


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_the_share_of_anomalies_lies_in_its_interval(share: float):
    generator = np.random.default_rng(3)
    inside = 0
    for seed in range(60):
        anomalies = generator.random(150) < share
        scores = generator.normal(size=150) + 8 * anomalies
        found = findings(Calibration(generator.normal(size=60)), scores, seed=seed)
        inside += found.lowest_share <= anomalies.mean() <= found.highest_share
    assert inside >= 52  # 95 % of 60 are 57


def test_good_images_alone_are_told_by_a_warning_in_nearly_all_draws():
    generator = np.random.default_rng(4)
    draws = [findings(Calibration(generator.normal(size=40)), generator.normal(size=100)) for _ in range(100)]
    assert 88 <= sum(found.by_chance for found in draws) <= 100
    assert all((found.warning is not None) == found.by_chance for found in draws)


def test_few_flagged_images_among_many_that_look_unlike_good_ones_are_told_without_contradiction():
    """Most scores are in the upper half of the good ones, and none is above all of them."""
    generator = np.random.default_rng(6)
    held_out = generator.normal(size=40)
    shifted = findings(Calibration(held_out), np.quantile(held_out, generator.uniform(0.55, 0.9, 200)))
    assert shifted.flagged == 0
    assert "are anomalous" in str(shifted)
    assert "no anomalies" not in (shifted.warning or "")
    usual = findings(Calibration(held_out), generator.normal(size=100))
    assert "no anomalies" in (usual.warning or "")
    assert "are anomalous" not in str(usual)


@pytest.mark.parametrize(("share", "warns"), [(0.3, False), (0.9, True)])
def test_a_change_of_most_images_is_told_by_a_warning(share: float, warns: bool):
    generator = np.random.default_rng(5)
    scores = generator.normal(size=200) + 6 * (np.arange(200) < share * 200)
    found = findings(Calibration(generator.normal(size=60)), scores)
    assert not found.by_chance
    assert (found.warning is not None and "recalibrate" in found.warning) == warns
    assert (found.warning is None) == (not warns)


@pytest.mark.parametrize("images", [2, 14, 15, 30, 57, 200])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_a_rate_is_refused_beforehand_if_the_images_kept_out_cannot_promise_it(images, rate):
    kept_out = images_to_keep_out(images)
    try:
        Calibration(np.arange(kept_out, dtype=float)).threshold(rate)
    except InputError:
        with pytest.raises(InputError, match=f"{kept_out} of the {images} good images are kept out"):
            check_promise(rate, images)
    else:
        check_promise(rate, images)
