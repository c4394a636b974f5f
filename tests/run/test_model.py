"""The model of a finished study takes pixels, and refuses what is none."""

from __future__ import annotations

import math

import pytest
import torch

from dsv_plugins import InputError, load

OUT_OF_RANGE = "the images have values from .* give pixels from 0 to 1 without normalisation, or uint8"
NOT_FINITE = "the images have values that are NaN or infinite"


@pytest.mark.parametrize(
    ("value", "message"),
    [(255.0, OUT_OF_RANGE), (1.1, OUT_OF_RANGE), (-2.0, OUT_OF_RANGE)]
    + [(value, NOT_FINITE) for value in (math.nan, math.inf, -math.inf)],
)
def test_images_that_are_no_pixels_are_refused_in_one_line(finished, value, message):
    model = load(finished[1])
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images[1, 2, 5, 7] = value
    with pytest.raises(InputError, match=message) as caught:
        model.predict(images)
    assert "\n" not in str(caught.value)


def test_pixels_of_every_kind_are_judged_alike(finished):
    model = load(finished[1])
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = model.predict(images).scores
    for same in (images.float() / 255, images.double() / 255, images.long()):
        torch.testing.assert_close(model.predict(same).scores, expected, rtol=1e-4, atol=1e-4)
