"""Several detectors as one."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dsv_plugins.decisions import combined_scores, score_scale
from dsv_plugins.errors import InputError
from dsv_plugins.hooks.interfaces import DetectorEncoder
from dsv_plugins.hooks.search import rank
from dsv_plugins.types import Candidate, Evaluation, Scores

if TYPE_CHECKING:
    from dsv_plugins.study.result import Result

__all__ = ["Ensemble", "Member", "best_members", "scale_of", "scores_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One detector of an ensemble.

    Attributes:
        candidate: What it was trained on.
        detector: Trained.
        mean: The mean of its scores of train images.
        deviation: Their standard deviation.
    """

    candidate: Candidate
    detector: DetectorEncoder
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """The mean of its members' scores, each standardised by its train images, since the scores have no common scale.

    It does for new images what a trained detector does.

    Attributes:
        members: The detectors, the best first. All take images of the same size.
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
                settings = json.dumps(dict(member.candidate.detector_params), sort_keys=True)
                if settings not in features:
                    features[settings] = member.detector.frozen_features(images)
                member.detector.reuse_features(images, features[settings])

    def score(self, images: Tensor) -> Tensor:
        """One score per image, higher for more anomalous; an image's score does not depend on the others."""
        scores = [(each.detector.score(images).double() - each.mean) / each.deviation for each in self.members]
        return torch.stack(scores).mean(dim=0).float()

    def heatmap(self, images: Tensor) -> Tensor | None:
        """The mean of its members' heatmaps; None if one of them has none."""
        heatmaps = [each.detector.heatmap(images) for each in self.members]
        found = [heat for heat in heatmaps if heat is not None]
        return torch.stack(found).mean(dim=0) if len(found) == len(heatmaps) else None

    def as_module(self) -> nn.Module | None:
        """All members as one module that can be exported; None if one of them cannot."""
        modules = [each.detector.as_module() for each in self.members]
        found = [module for module in modules if module is not None]
        return _Mean(found, self.members) if len(found) == len(modules) else None


class _Mean(nn.Module):
    """From images to the mean of standardised scores and the mean of the heatmaps, if all have them."""

    def __init__(self, modules: Sequence[nn.Module], members: Sequence[Member]) -> None:
        super().__init__()
        _share_equal_tensors(modules)
        self.members = nn.ModuleList(modules)
        self.scales = [(member.mean, member.deviation) for member in members]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        scores, heatmaps = [], []
        for module, (mean, deviation) in zip(self.members, self.scales, strict=True):
            score, *heat = module(images)
            scores.append((score - mean) / deviation)
            heatmaps += heat
        combined = torch.stack(scores).mean(dim=0)
        return (combined, torch.stack(heatmaps).mean(dim=0)) if len(heatmaps) == len(scores) else (combined,)


def _share_equal_tensors(modules: Sequence[nn.Module]) -> None:
    """Let the modules have one copy of what all of them have, such as a frozen network: exports are then smaller."""
    known: dict[tuple[object, ...], Any] = {}
    for module in itertools.chain.from_iterable(each.modules() for each in modules):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    content = hashlib.sha256(tensor.detach().numpy().tobytes()).digest()
                    tensors[name] = known.setdefault((type(tensor), tensor.shape, tensor.dtype, content), tensor)


def scale_of(scores: Scores) -> tuple[float, float]:
    """The mean and the deviation of a detector's scores of its train images."""
    return score_scale(scores.train.numpy())


def scores_of(kept: Sequence[Evaluation]) -> dict[str, NDArray[Any]]:
    """The scores of one candidate, or of several as one, by the set of images."""
    names = ("train", "test", "holdout") if kept[0].scores.holdout is not None else ("train", "test")
    return combined_scores([{name: getattr(evaluation.scores, name).numpy() for name in names} for evaluation in kept])


def best_members(result: Result, count: int, selector: str) -> list[Member]:
    """The `count` best candidates of a result by one of its selectors, with their detectors."""
    if selector not in result.selected:
        raise InputError(f"{selector!r} did not judge this study; give one of {', '.join(result.selected)}")
    losses = [(entry.losses or {}).get(selector, math.nan) for entry in result.candidates]
    judged = sum(map(math.isfinite, losses))
    if not 1 <= count <= judged:
        raise InputError(f"count is {count}; give a number from 1 to {judged}, the candidates that {selector!r} judged")
    best = [result.candidates[place].candidate for place in rank(losses)[:count]]
    return [Member(each, result.load_detector(each), *scale_of(result.evaluation(each).scores)) for each in best]
