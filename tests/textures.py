"""Images with and without a defect, for the tests of detectors that need some texture."""

from __future__ import annotations

import numpy as np
import torch
from conftest import texture


def images(count: int, *, defect: bool = False, first: int = 0, size: int = 64) -> torch.Tensor:
    """Colour images as uint8; each number from `first` on is another image."""
    pixels = np.stack([texture(first + seed, defect=defect, size=size) for seed in range(count)])
    return torch.from_numpy(pixels)[:, None].expand(-1, 3, -1, -1).contiguous()
