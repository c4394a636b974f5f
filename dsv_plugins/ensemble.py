"""Several detectors as one, where no choice stands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv_plugins.interfaces import DetectorEncoder
from dsv_plugins.ranks import shares_below
from dsv_plugins.types import Candidate

__all__ = ["Ensemble", "Member"]


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
        ranked = [shares_below(member.detector.score(images), member.reference) for member in self.members]
        return torch.stack(ranked).mean(dim=0)
