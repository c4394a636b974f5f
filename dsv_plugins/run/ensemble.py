"""Several detectors as one."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dsv_plugins.calibration import combined_scores, score_scale
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.run.records import MemberRecord
from dsv_plugins.types import Candidate, Evaluation, Scores

__all__ = [
    "Ensemble",
    "Member",
    "Scale",
    "frozen_part_name",
    "joined_heatmaps",
    "member_of",
    "scale_of",
    "scores_of",
    "shares_by_loss",
]

Scale = tuple[float, float]
"""The mean and the deviation of values, which are then standardised by them."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One detector of an ensemble.

    Attributes:
        name: What it is, in words.
        frozen: Tells which frozen part it has: the members of an ensemble that have the same share its features.
        detector: Trained.
        scale: The mean and the deviation of its scores of train images.
        share: How much it counts; those of all members add up to 1.
        heat: The mean and the deviation of its heatmaps, if others have other units.
    """

    name: str
    frozen: str
    detector: DetectorEncoder
    scale: Scale
    share: float
    heat: Scale = (0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """The weighted mean of its members' scores, each standardised by its train images: they have no common scale.

    It does for new images what a trained detector does.

    Attributes:
        members: The detectors. All take images of the same size.
    """

    members: Sequence[Member]

    @property
    def image_size(self) -> int | None:
        """The size at which it takes images."""
        return self.members[0].detector.image_size

    def prepare(self, images: Tensor) -> None:
        """Let the frozen part, which all members with the same settings share, see these very images once."""
        features: dict[str, Mapping[str, Tensor]] = {}
        for member in self.members:
            if member.detector.has_frozen_part:
                if member.frozen not in features:
                    features[member.frozen] = member.detector.frozen_features(images)
                member.detector.reuse_features(images, features[member.frozen])

    def score(self, images: Tensor) -> Tensor:
        """Return one score per image, higher for more anomalous; an image's score does not depend on the others."""
        scores = [each.detector.score(images).double() for each in self.members]
        return _combined(scores, [each.share for each in self.members], [each.scale for each in self.members]).float()

    def heatmap(self, images: Tensor) -> Tensor | None:
        """Return the weighted mean of its members' heatmaps; None if one of them has none."""
        heatmaps = [each.detector.heatmap(images) for each in self.members]
        found = [heat for heat in heatmaps if heat is not None]
        if len(found) < len(heatmaps):
            return None
        return joined_heatmaps(found, [each.share for each in self.members], [each.heat for each in self.members])

    def as_module(self) -> nn.Module | None:
        """Return all members as one module that can be exported; None if one of them cannot."""
        modules = [each.detector.as_module() for each in self.members]
        found = [module for module in modules if module is not None]
        return _Whole(found, self.members) if len(found) == len(modules) else None


class _Whole(nn.Module):
    """From images to what an ensemble makes of them: scores, and heatmaps if all members have them."""

    def __init__(self, modules: Sequence[nn.Module], members: Sequence[Member]) -> None:
        super().__init__()
        _share_equal_tensors(modules)
        self.members = nn.ModuleList(modules)
        self.shares, self.heats = [each.share for each in members], [each.heat for each in members]
        self.scales = [each.scale for each in members]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        found = [module(images) for module in self.members]
        scores = _combined([each[0] for each in found], self.shares, self.scales)
        heatmaps = [each[1] for each in found if len(each) > 1]
        if len(heatmaps) < len(found):
            return (scores,)
        return scores, joined_heatmaps(heatmaps, self.shares, self.heats)


def _combined(scores: Sequence[Tensor], shares: Sequence[float], scales: Sequence[Scale]) -> Tensor:
    standardised = [
        (values - mean) / deviation * share
        for values, share, (mean, deviation) in zip(scores, shares, scales, strict=True)
    ]
    return torch.stack(standardised).sum(dim=0)


def joined_heatmaps(heatmaps: Sequence[Tensor], shares: Sequence[float], scales: Sequence[Scale]) -> Tensor:
    """Return the weighted mean of heatmaps of the same images, each of its own size and standardised by its scale."""
    size = max((tuple(heat.shape[-2:]) for heat in heatmaps), key=math.prod)
    standardised = []
    for values, share, (mean, deviation) in zip(heatmaps, shares, scales, strict=True):
        heat = (values.float() - mean) / deviation * share
        if tuple(heat.shape[-2:]) != size:
            heat = functional.interpolate(heat[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
        standardised.append(heat)
    return torch.stack(standardised).sum(dim=0)


def _share_equal_tensors(modules: Sequence[nn.Module]) -> None:
    """Let the modules have one copy of what all of them have, such as a frozen network: exports are then smaller."""
    known: dict[tuple[object, ...], Any] = {}
    for module in itertools.chain.from_iterable(each.modules() for each in modules):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    content = hashlib.sha256(tensor.detach().numpy().tobytes()).digest()
                    tensors[name] = known.setdefault((type(tensor), tensor.shape, tensor.dtype, content), tensor)


def scale_of(scores: Scores) -> Scale:
    """Return the mean and the deviation of a detector's scores of its train images."""
    return score_scale(scores.train.numpy())


def scores_of(
    kept: Sequence[Evaluation], shares: Sequence[float] | None = None, *, tiles: int = 1
) -> dict[str, NDArray[Any]]:
    """Return the scores of one candidate, or of several as one, by the set of images.

    Args:
        kept: The candidates.
        shares: How much each counts; all alike if None.
        tiles: How many rows are one image, whose score is the largest of theirs.
    """
    names = ("train", "test", "holdout") if kept[0].scores.holdout is not None else ("train", "test")
    scores = [{name: getattr(evaluation.scores, name).numpy() for name in names} for evaluation in kept]
    return combined_scores(scores, shares, tiles=tiles)


def shares_by_loss(losses: Sequence[float]) -> list[float]:
    """How much each candidate of a weighted ensemble counts: exp(-loss), with losses in units of their deviation.

    A candidate without a finite loss counts for nothing.
    """
    values = np.asarray(losses, dtype=np.float64)
    finite = np.isfinite(values)
    spread = values[finite].std() if finite.any() else 0.0
    standardised = (values - values[finite].min()) / spread if spread > 0 else np.zeros_like(values)
    weights = np.where(finite, np.exp(-np.where(finite, standardised, 0.0)), 0.0)
    return list(map(float, weights / weights.sum())) if finite.any() else [1 / len(values)] * len(values)


def frozen_part_name(detector: Candidate | MemberRecord) -> str:
    """Return what `Member.frozen` is for a detector with its settings."""
    return json.dumps([detector.detector, dict(detector.detector_params)], sort_keys=True)


def member_of(candidate: Candidate, detector: DetectorEncoder, scores: Scores, share: float) -> Member:
    """Make a member of the trained detector of a candidate.

    Args:
        candidate: The candidate.
        detector: Its detector.
        scores: The detector's scores in the study.
        share: How much it counts.
    """
    return Member(str(candidate), frozen_part_name(candidate), detector, scale_of(scores), share)
