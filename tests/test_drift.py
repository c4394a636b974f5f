"""Whether a change of a stream is told, and how rarely one is told that is none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dsv_plugins.drift import HORIZON, USUAL_ANOMALIES, Drift, ShiftTest


@pytest.mark.parametrize("count", [13, 20, 60])
@pytest.mark.parametrize("two_sided", [False, True])
def test_half_of_all_good_values_lie_within_the_limits_but_for_the_stated_chance(count: int, two_sided: bool):
    generator = np.random.default_rng(count)
    rate, draws, narrow = 0.02, 1500, 0
    for _ in range(draws):
        test = ShiftTest(generator.uniform(size=count), rate, two_sided=two_sided)
        narrow += min(test.highest, 1) - max(test.lowest, 0) < 0.5
        assert math.isfinite(test.highest)
        assert math.isfinite(test.lowest) == two_sided
    assert narrow / draws <= rate / 2 + 3 * math.sqrt(rate / 2 / draws)


def test_a_bet_wins_what_the_formula_says():
    """Every start and every bet on its own: the product of what each image brings, weighted."""
    generator = np.random.default_rng(0)
    test = ShiftTest(range(20), 0.01)
    stream = (generator.random(12) < 0.8) * 1000.0
    usual = 0.3 + 0.7 * 0.5
    bets = usual + (1 - usual) * (np.arange(50) + 0.5) / 50
    for count, value in enumerate(stream, 1):
        told = test.add(value)
        won = 0.0
        for start, bet in itertools.product(range(count), bets):
            product = np.prod([bet / usual if each else (1 - bet) / (1 - usual) for each in stream[start:count]])
            won += product * ((0.5 if start == 0 else 0) + 0.5 / HORIZON) / len(bets)
        assert told == (won >= 200)
    assert test._won.mean() == pytest.approx(won)


def test_false_alarms_are_as_rare_as_stated_if_as_many_lie_beyond_as_may():
    generator = np.random.default_rng(1)
    rate, streams = 0.2, 150
    told = 0
    for _ in range(streams):
        test = ShiftTest(range(100), rate)
        values = np.where(generator.random(400) < 0.65, math.inf, 0)
        told += any(map(test.add, values))
    assert told / streams <= rate / 2 + 3 * math.sqrt(rate / 2 / streams)


@pytest.mark.parametrize("before", [0, 500, 9_000])
def test_a_change_of_all_images_is_told_within_fifty_of_them_however_late(before: int):
    generator = np.random.default_rng(before)
    drift = Drift(generator.normal(size=20), generator.normal(100, 2, size=20))
    assert drift.add(generator.normal(size=before), generator.normal(100, 2, size=before)) is None
    told = [drift.add([score], [light]) for score, light in generator.normal((0, 75), (1, 1.5), (60, 2))]
    (line,) = filter(None, told)  # once
    assert "brightness" in line
    assert told.index(line) < 50
    assert drift.changed == line
    assert drift.images == before + 60


def test_a_usual_share_of_anomalies_is_no_change_and_few_images_say_nothing():
    generator = np.random.default_rng(2)
    anomalous = generator.random(2_000) < USUAL_ANOMALIES
    scores, light = generator.normal(size=(2, 2_000)) + 100 * anomalous
    assert Drift(*generator.normal(size=(2, 50))).add(scores, light) is None
    assert Drift(*generator.normal(size=(2, 5))).add(scores + 100, light + 100) is None
    assert Drift(generator.normal(size=50)).add(scores + 100, light) is not None


@pytest.mark.slow
def test_of_streams_of_ten_thousand_undisturbed_images_hardly_one_is_said_to_have_changed():
    told = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        held_out, stream = generator.normal(size=(2, 20)), generator.normal(size=(2, HORIZON))
        told += Drift(*held_out).add(*stream) is not None
    assert told <= 0.01 * 300 + 3 * math.sqrt(0.01 * 300)
