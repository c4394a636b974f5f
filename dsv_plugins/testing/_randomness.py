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


@contextmanager
def untouched_global_randomness() -> Iterator[None]:
    """Fail the check unless the global generators of torch, `random` and numpy end as they begin."""
    with global_randomness() as seed_all:
        seed_all(UNLIKELY_SEED)  # or a plugin that seeds them could happen to leave them as they were
        before = _global_states()
        yield
        changed = [library for library, state in _global_states().items() if state != before[library]]
        demand(not changed, f"changes the global random generator of {', '.join(changed)}; use one of your own")


def _global_states() -> dict[str, object]:
    _, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy": (np.asarray(keys).tobytes(), *rest),
    }
