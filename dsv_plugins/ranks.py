"""Where values stand among others, by order alone."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["auroc", "shares_below"]


def shares_below(values: Tensor, reference: Tensor) -> Tensor:
    """For each value the share of the reference that is smaller, equals counting half: from 0 to 1, in float64."""
    ordered, values = reference.double().sort().values, values.double()
    smaller, not_larger = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (smaller + not_larger).double() / (2 * len(ordered))


def auroc(negatives: Tensor, positives: Tensor) -> Tensor:
    """The probability that a positive is larger than a negative, equals counting half, as a float64 scalar."""
    return shares_below(positives, negatives).mean()
