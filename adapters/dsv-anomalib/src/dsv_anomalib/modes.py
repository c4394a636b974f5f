"""Evaluation in the middle of a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode for a while; each part goes back to its own, as frozen ones stay in it."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
