"""Several detectors as one, if no choice stands out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import percentileofscore
from torch import Tensor

from dsv_plugins.errors import InputError
from dsv_plugins.hooks.interfaces import DetectorEncoder
from dsv_plugins.hooks.search import rank
from dsv_plugins.types import Candidate

if TYPE_CHECKING:
    from dsv_plugins.study.result import Result

__all__ = ["Ensemble", "Member", "best_members"]


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One detector of an ensemble.

    Attributes:
        candidate: What it was trained on.
        detector: Trained.
        reference: Its scores of the study's test images, among which it ranks others.
    """

    candidate: Candidate
    detector: DetectorEncoder
    reference: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """The mean of its members' ranks, since their scores have no common scale.

    Attributes:
        members: The detectors, the best first.
    """

    members: Sequence[Member]

    def score(self, images: Tensor) -> Tensor:
        """One score per image from 0 to 1, higher for more anomalous; an image's score does not depend on the others.

        It is the share of the study's test images that the image outscores, equals counting half, in the mean over
        the members. Images that outscore all of them in every member have the same score, 1.
        """
        shares = [
            percentileofscore(member.reference.double().numpy(), member.detector.score(images).double().numpy(), "mean")
            for member in self.members
        ]
        return torch.from_numpy(np.mean(shares, axis=0) / 100)


def best_members(result: Result, count: int, selector: str) -> list[Member]:
    """The `count` best candidates of a result by one of its selectors, with their detectors."""
    if selector not in result.selected:
        raise InputError(f"{selector!r} did not judge this study; give one of {', '.join(result.selected)}")
    losses = [(entry.losses or {}).get(selector, math.nan) for entry in result.candidates]
    judged = sum(map(math.isfinite, losses))
    if not 1 <= count <= judged:
        raise InputError(f"count is {count}; give a number from 1 to {judged}, the candidates that {selector!r} judged")
    best = [result.candidates[place].candidate for place in rank(losses)[:count]]
    return [Member(each, result.load_detector(each), result.evaluation(each).scores.test) for each in best]
