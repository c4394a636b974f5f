"""Whether a plugin leaves the process's random generators alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dsv_plugins.testing._suite import demand
from dsv_plugins.transforms import global_randomness

__all__ = ["untouched_global_randomness"]

UNLIKELY_SEED = 872_359
"""Of no plugin: one that seeds the generators must not happen to leave them as they were."""


@contextmanager
def untouched_global_randomness() -> Iterator[None]:
    """Fail the check if the global generators of torch, `random` or numpy draw something else after the block."""
    with global_randomness() as seed_all:
        seed_all(UNLIKELY_SEED)
        expected = _draws()
        seed_all(UNLIKELY_SEED)
        yield
        changed = [library for library, draw in _draws().items() if draw != expected[library]]
        demand(not changed, f"changes the global random generator of {', '.join(changed)}; use one of your own")


def _draws() -> dict[str, float]:
    return {"torch": torch.rand(()).item(), "random": random.random(), "numpy": np.random.random()}  # noqa: S311
