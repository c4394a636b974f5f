"""Seeds made of seeds."""

from __future__ import annotations

import numpy as np

__all__ = ["derived_seed"]


def derived_seed(*parts: int) -> int:
    """Return a seed made of several numbers, unrelated to that of neighbouring numbers; below 2^63, as torch wants."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
