"""Small evaluations with labels."""

from __future__ import annotations

import torch

from dsv_plugins.types import Candidate, Embeddings, Evaluation, Scores


def clusters(seed: int = 0) -> tuple[Embeddings, list[bool]]:
    generator = torch.Generator().manual_seed(seed)
    train, normal = torch.randn(9, 4, generator=generator), torch.randn(5, 4, generator=generator)
    augmented, anomalous = torch.randn(9, 4, generator=generator) + 3, torch.randn(3, 4, generator=generator) + 2
    return Embeddings(train, augmented, torch.cat([normal, anomalous])), [False] * 5 + [True] * 3


def evaluation(patch_size: float, seed: int) -> Evaluation:
    embeddings, _ = clusters(seed)
    generator = torch.Generator().manual_seed(seed)
    scores = Scores(torch.rand(9, generator=generator), torch.rand(8, generator=generator))
    return Evaluation(Candidate("cutout", {"patch_size": patch_size}), embeddings, scores)
