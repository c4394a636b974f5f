"""Embeddings in the plane with neighbours kept together, for the report.

They are drawn where a candidate is trained: other workers train meanwhile, and scikit-learn is imported there anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv_plugins.types import Embeddings

__all__ = ["POINTS", "project", "thin"]

Array = NDArray[Any]

POINTS = 60
"""Images of each set."""
STEPS, ANGLE = 300, 0.8
"""Of the steps 250 find the groups. With 350 and an angle of 0.5, nine pictures of one task were no better and took
a quarter longer."""


def project(embeddings: Embeddings) -> Array | None:
    """Return the t-SNE of the train, augmented and test images, some of each: (points, 2), set after set.

    None if all are alike. One thread, since a sum in another order would make another picture.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    sets = (embeddings.train, embeddings.augmented, embeddings.test)
    joined = np.concatenate([thin(rows.double().numpy(), POINTS) for rows in sets])
    joined -= joined.mean(axis=0)
    largest = np.abs(joined).max()
    if largest == 0:
        return None
    perplexity = min(30.0, (len(joined) - 1) / 3)
    init = "pca" if joined.shape[1] > 1 else "random"  # one dimension has no two principal components
    with threadpool_limits(1):
        drawn = TSNE(perplexity=perplexity, init=init, max_iter=STEPS, angle=ANGLE, random_state=0)
        return drawn.fit_transform(joined / largest)  # type: ignore[no-any-return]


def thin(points: Array, limit: int) -> Array:
    """Return at most `limit` rows, evenly spaced: rows are ordered by a hash, so these are as good as random."""
    if len(points) <= limit:
        return points
    rows: Array = np.linspace(0, len(points) - 1, limit).astype(int)
    return np.take(points, rows, axis=0)
