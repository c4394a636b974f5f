"""The quantities of the theory against loops over pairs, and identities between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from known_evaluations import clusters

from dsv_plugins.bench.cells import theory_of
from dsv_plugins.losses import discordance, separability
from dsv_plugins.types import Embeddings


def test_theory_against_loops_and_the_identity_that_joins_its_parts() -> None:
    embeddings, labels = clusters()
    theory = theory_of(embeddings, labels)

    def distance(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(np.mean([math.dist(x, y) for x in a.tolist() for y in b.tolist()]))

    train, augmented, anomalous = embeddings.train, embeddings.augmented, embeddings.test[5:]
    scale = distance(train, augmented)
    assert theory["alignment"] == pytest.approx(distance(augmented, anomalous), rel=1e-5)
    assert theory["h_s"] == pytest.approx(distance(train, anomalous) / scale, rel=1e-5)
    assert theory["alignment"] == pytest.approx(scale * (theory["h_d"] - theory["h_s"] + 1), rel=1e-5)
    assert theory["concentration"] == pytest.approx(distance(train, train) / scale, rel=1e-5)
    assert theory["discordance"] == float(discordance(train, augmented, embeddings.test))
    assert theory["separability"] == float(separability(train, augmented, embeddings.test))


def test_separability_is_the_stated_share_of_h_s_for_points() -> None:
    """Normals in one point, anomalies in another on the way to the augmented ones."""
    train, augmented = torch.zeros(4, 3), torch.ones(4, 3)
    test = torch.cat([torch.zeros(6, 3), torch.full((2, 3), 0.7)])
    theory = theory_of(Embeddings(train, augmented, test), [False] * 6 + [True] * 2)
    assert theory["h_s"] == pytest.approx(0.7)
    assert theory["h_d"] == pytest.approx(0.0, abs=1e-6)
    assert theory["separability"] == pytest.approx(math.sqrt(0.25 * 0.75) * theory["h_s"])


def test_theory_where_augmentation_changes_nothing_is_not_a_number() -> None:
    points = torch.zeros(4, 3)
    theory = theory_of(Embeddings(points, points, torch.ones(2, 3)), [False, True])
    assert math.isnan(theory["h_d"])
    assert math.isnan(theory["concentration"])
