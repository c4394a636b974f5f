"""The scores of the CutPaste ResNet18, against sklearn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from detectors import textures, trained, with_defects
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf

from dsv_plugins.toolkit.densities import Gaussian, Kernel

pytestmark = pytest.mark.usefixtures("one_thread")


def test_gaussian_score_is_sklearns_mahalanobis_distance(finished_detector):
    train, test = textures(), with_defects(textures(7, seed=4))
    estimate = LedoitWolf().fit(finished_detector.encode(train).double().numpy())
    expected = np.sqrt(estimate.mahalanobis(finished_detector.encode(test).double().numpy()))
    assert finished_detector.score(test).numpy() == pytest.approx(expected, rel=1e-5)


def test_kernel_score_is_the_negative_log_density():
    train, test = textures(), with_defects(textures(7, seed=4))
    found = trained(train, density="kde")
    rows, others = (found.encode(images).double().numpy() for images in (train, test))
    squared = ((others[:, None] - rows[None]) ** 2).sum(axis=2)
    expected = -logsumexp(-squared / 2, axis=1) + math.log(len(rows)) + rows.shape[1] / 2 * math.log(2 * math.pi)
    assert found.score(test).numpy() == pytest.approx(expected, rel=1e-5)
    first = np.mean([multivariate_normal(row).pdf(others[0]) for row in rows])
    assert expected[0] == pytest.approx(-math.log(first))


@pytest.mark.parametrize("rows", [torch.ones(1, 3), torch.ones(5, 3), torch.zeros(5, 3)])
def test_gaussian_without_spread_measures_plain_distances(rows):
    density = Gaussian.fit(rows)
    others = rows[:1] + torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]])
    assert density.score(others).tolist() == pytest.approx([5.0, 2.0])
    assert density.score(rows[:1]).tolist() == [0.0]


@pytest.mark.parametrize("density_class", [Gaussian, Kernel])
def test_a_density_is_made_again_from_its_state(density_class):
    rows = torch.rand(20, 5, generator=torch.Generator().manual_seed(0))
    density = density_class.fit(rows)
    again = density_class.from_state(density.state())
    assert torch.equal(again.score(rows), density.score(rows))
    rows.zero_()
    assert torch.equal(again.score(torch.ones(1, 5)), density.score(torch.ones(1, 5)))
