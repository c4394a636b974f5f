"""The picture of the embeddings that a candidate is stored with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.manifold import trustworthiness
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from dsv_plugins.training.projection import POINTS, project, thin
from dsv_plugins.types import Embeddings


def embeddings(sizes: tuple[int, int, int], width: int = 16, scale: float = 1.0) -> Embeddings:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(size, width, generator=generator) + 8 * place for place, size in enumerate(sizes)]
    return Embeddings(*(scale * row for row in rows))


def test_neighbours_stay_neighbours() -> None:
    sets = embeddings((100, 100, 40))
    drawn = project(sets)
    assert drawn is not None
    assert drawn.shape == (POINTS + POINTS + 40, 2)
    original = np.concatenate([thin(rows.numpy(), POINTS) for rows in (sets.train, sets.augmented, sets.test)])
    assert trustworthiness(original, drawn, n_neighbors=10) > 0.75
    # The three groups lie far apart, so that nearly all neighbours are of the own set.
    own = np.repeat([0, 1, 2], [POINTS, POINTS, 40])
    nearest = NearestNeighbors(n_neighbors=2).fit(drawn).kneighbors(return_distance=False)[:, 0]
    assert (own[nearest] == own).mean() > 0.95


def test_the_picture_does_not_depend_on_the_threads() -> None:
    sets = embeddings((80, 80, 80))
    pictures = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            pictures.append(project(sets))
    np.testing.assert_array_equal(*pictures)


@pytest.mark.parametrize("scale", [1e-20, 1e30])
def test_any_scale_can_be_drawn(scale: float) -> None:
    drawn = project(embeddings((5, 5, 3), scale=scale))
    assert drawn is not None
    assert np.isfinite(drawn).all()


def test_one_feature_can_be_drawn_and_none_needs_no_picture() -> None:
    assert project(embeddings((5, 5, 3), width=1)) is not None
    assert project(Embeddings(*(torch.ones(4, 3) for _ in range(3)))) is None
