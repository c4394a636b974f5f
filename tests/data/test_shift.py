"""The warning of test images that look unlike the train images."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv_plugins import report, select
from dsv_plugins.data.shift import CRITICAL, FEW, photometric_shift, shift_warning


def images(brightness) -> torch.Tensor:
    """One grey image for each number."""
    return torch.tensor(brightness, dtype=torch.float32)[:, None, None, None].expand(-1, 3, 2, 2)


def largest_difference(train, test) -> float:
    """Between the shares of the two in an interval, by trying every interval."""
    places = sorted({*train, *test})
    intervals = [(low, high) for low, high in itertools.product(places, repeat=2) if low <= high]

    def share(values, low, high):
        return sum(low <= value <= high for value in values) / len(values)

    return max(abs(share(train, *interval) - share(test, *interval)) for interval in intervals)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=10, max_size=30), st.lists(st.integers(0, 9), min_size=10, max_size=30))
def test_it_is_the_largest_difference_over_intervals_less_what_chance_makes_of_it(train, test):
    chance = CRITICAL * (1 / len(train) + 1 / len(test)) ** 0.5
    expected = max(0.0, largest_difference(train, test) - chance)
    assert photometric_shift(images(train), images(test)) == pytest.approx(expected, abs=1e-6)


def test_it_seldom_exceeds_zero_without_a_shift_and_never_the_share_that_is_changed():
    generator = np.random.default_rng(0)
    shifts = [photometric_shift(*(images(generator.normal(100, 5, size)) for size in (120, 60))) for _ in range(100)]
    assert sum(shift > 0 for shift in shifts) <= 10  # one of twenty, and some luck
    for share in (0.2, 0.5, 0.9):
        changed = generator.random(300) < share
        test = np.where(changed, 200, generator.normal(100, 5, 300))
        shift = photometric_shift(images(generator.normal(100, 5, 300)), images(test))
        assert share - 0.25 < shift < share


def test_what_goes_both_ways_is_seen():
    """Darker normals and brighter anomalies leave the mean and the AUROC where they were."""
    generator = np.random.default_rng(0)
    train = generator.normal(100, 5, 200)
    test = np.concatenate([generator.normal(80, 2, 50), generator.normal(120, 2, 50)])
    assert photometric_shift(images(train), images(test)) > 0.7


def test_a_shift_of_one_channel_is_seen_and_named_in_one_line():
    generator = torch.Generator().manual_seed(0)
    train = torch.randint(90, 110, (80, 3, 4, 4), generator=generator, dtype=torch.uint8)
    test = torch.randint(90, 110, (60, 3, 4, 4), generator=generator, dtype=torch.uint8)
    assert shift_warning(train, test) is None
    test[:, 2] += 40
    warning = shift_warning(train, test)
    assert warning is not None
    assert "\n" not in warning
    assert f"at least {photometric_shift(train, test):.0%} of the test images" in warning


def test_a_few_anomalies_and_few_images_are_no_shift():
    generator = np.random.default_rng(0)
    train, test = generator.normal(100, 5, 200), generator.normal(100, 5, 100)
    test[:25] = 255
    assert photometric_shift(images(train), images(test)) <= FEW
    assert shift_warning(images([100.0] * 8), images([200.0] * 8)) is None


def test_a_study_and_its_report_warn_of_it(tmp_path):
    generator = torch.Generator().manual_seed(0)
    train = torch.randint(90, 110, (60, 3, 8, 8), generator=generator, dtype=torch.uint8)
    test = torch.randint(120, 140, (60, 3, 8, 8), generator=generator, dtype=torch.uint8)
    result = select(
        train,
        test,
        grid={"patch_size": [0.1]},
        detector="cutpaste-resnet18",
        detector_params={"image_size": 8, "width": 2, "updates": 2, "batch_size": 4},
        executor="serial",
        out=tmp_path / "run",
    )
    assert any("another mean colour" in note for note in result.notes)
    assert result.as_json()["notes"] == list(result.notes)
    text = report.build(result).read_text()
    assert "<b>Mind:</b> At least " in text
    assert "comparing test with train misleads.</p>" in text
