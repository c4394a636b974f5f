"""The quantities of the paper's theory that need labels, which DSV's two losses approximate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dsv_plugins.losses import concentration, discordance, separability, set_distance
from dsv_plugins.types import Embeddings

__all__ = ["Theory", "theory_of"]


@dataclass(frozen=True, slots=True)
class Theory:
    """The theory's quantities for one candidate. Let A be the anomalous test embeddings and D = d(train, augmented).

    Attributes:
        alignment: d(augmented, A), which is small for a good choice.
        h_d: (d(train, A) + d(augmented, A)) / D - 1, which is 0 if the anomalies lie between train and augmented.
        h_s: d(train, A) / D, how far the anomalies are from the normals. It is the other part of the alignment, since
            d(augmented, A) = D · (h_d - h_s + 1) exactly. With normals in one point and anomalies in one direction,
            L_sep is √(γ(1 - γ)) · h_s for a share γ of anomalies, hence at most half of it.
        discordance: L_dis, the paper's approximation of h_d.
        separability: L_sep without its cap, the paper's approximation of h_s.
        concentration: d(train, train) / D, which the theory assumes to be far below one.
    """

    alignment: float
    h_d: float
    h_s: float
    discordance: float
    separability: float
    concentration: float


def theory_of(embeddings: Embeddings, labels: Sequence[bool]) -> Theory:
    """The theory's quantities for one candidate; those divided by D are NaN if D is zero.

    Args:
        embeddings: Of the candidate.
        labels: Whether each test image is anomalous; both kinds must occur.
    """
    train, augmented, test = embeddings.train, embeddings.augmented, embeddings.test
    anomalous = test[torch.tensor(labels)]
    scale = float(set_distance(train, augmented))
    alignment = float(set_distance(augmented, anomalous))
    from_train = float(set_distance(train, anomalous))
    return Theory(
        alignment=alignment,
        h_d=(from_train + alignment) / scale - 1 if scale else math.nan,
        h_s=from_train / scale if scale else math.nan,
        discordance=float(discordance(train, augmented, test)) if scale else math.nan,
        separability=float(separability(train, augmented, test)) if scale else math.nan,
        concentration=float(concentration(train, augmented)) if scale else math.nan,
    )
