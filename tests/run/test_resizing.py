"""The resize of exported files is that of Pillow, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from dsv_plugins.pixels import decode, pixels_of
from dsv_plugins.run.resizing import resized_eight_bits, resized_maps

SIDES = st.integers(1, 400)


@given(SIDES, SIDES, st.integers(1, 96), st.integers(1, 96), st.integers(0, 99))
@example(1200, 90, 64, 64, 0)  # Pillow 13 by itself would take the columns first
@settings(max_examples=60, deadline=None)
def test_eight_bits(height, width, rows, columns, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    passes = Image.fromarray(pixels).resize((columns, height), Image.Resampling.BILINEAR)
    expected = np.asarray(passes.resize((columns, rows), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    channels = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    assert (resized_eight_bits(channels.float(), (rows, columns))[0].numpy() == expected).all()
    assert (pixels_of(pixels, (rows, columns))[0].numpy() == expected).all()
    assert (pixels_of(channels, (rows, columns))[0].numpy() == expected).all()


def test_a_large_photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (1600, 2400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png", compress_level=0)
    found = resized_eight_bits(torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), (160, 240))
    assert (found[0].numpy() == decode(tmp_path / "photo.png", (160, 240))).all()


@pytest.mark.parametrize("size", [(28, 32), (300, 200), (10, 7)])
def test_maps(size):
    height, width = size
    heat = np.random.default_rng(0).normal(size=(28, 32)).astype(np.float32)
    expected = Image.fromarray(heat).resize((width, height), Image.Resampling.BILINEAR)
    assert resized_maps(torch.from_numpy(heat)[None], height, width)[0].numpy() == pytest.approx(
        np.asarray(expected), abs=1e-5
    )
