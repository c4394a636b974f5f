"""The synthesis of anomalib's models as augmentations, and augmentations as synthesis."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import augmentation, images
from PIL import Image
from scipy import ndimage
from torchvision.transforms.v2 import Normalize

from dsv_anomalib import hooks
from dsv_anomalib.augmentations import Synthesiser
from dsv_plugins import InputError
from dsv_plugins.testing import parametrize_with_checks

RECORDS = {record.name: record for record in hooks.augmentation()}


@parametrize_with_checks([RECORDS["anomalib-perlin"], RECORDS["anomalib-foundad-cutpaste"]])
def test_conformance(check):
    check()


def augmented(name, **params):
    pixels = images(4) / 255
    return augmentation(name, **params)(pixels, generator=torch.Generator().manual_seed(0)), pixels


def test_perlin_changes_every_image():
    changed, pixels = augmented("anomalib-perlin", blend_factor=1.0)
    assert ((changed - pixels).abs().amax(dim=(1, 2, 3)) > 0.02).all()


def test_a_blend_factor_from_a_config_does_not_silently_become_one_half():
    nothing, pixels = augmented("anomalib-perlin", blend_factor=[0, 0])
    torch.testing.assert_close(nothing, pixels)
    whole, _ = augmented("anomalib-perlin", blend_factor=1)
    exact, _ = augmented("anomalib-perlin", blend_factor=1.0)
    half, _ = augmented("anomalib-perlin", blend_factor=0.5)
    torch.testing.assert_close(whole, exact)
    assert not torch.allclose(whole, half)
    with pytest.raises(InputError, match="blend_factor is .*give a number, or the two ends of a range"):
        augmented("anomalib-perlin", blend_factor=[0.9, 0.1])


def changed_places(textures=None, **params):
    pixels = torch.full((16, 3, 64, 64), 0.5)
    perlin = augmentation("anomalib-perlin", blend_factor=1.0, textures=textures, **params)
    changed = perlin(pixels, generator=torch.Generator().manual_seed(0))
    return ((changed - pixels).abs().amax(dim=1) > 0.02).numpy()


@pytest.mark.parametrize("with_textures", [False, True])
def test_a_larger_scale_makes_more_and_smaller_anomalies(with_textures, tmp_path):
    if with_textures:
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    counts, areas = [], []
    for scale in (2, 8, 32):
        places = changed_places(str(tmp_path) if with_textures else None, scale=scale)
        assert places.any(axis=(1, 2)).all()
        counts.append(sum(ndimage.label(image)[1] for image in places))
        areas.append(places.sum() / counts[-1])
    assert counts[0] * 2 < counts[1] < counts[2] / 2
    assert areas[0] / 2 > areas[1] > areas[2] * 2


def test_a_scale_that_noise_cannot_have_is_refused():
    with pytest.raises(InputError, match="scale is 3; give one of 1, 2, 4, 8, 16, 32"):
        augmented("anomalib-perlin", scale=3)


def test_textures_must_be_a_folder():
    with pytest.raises(InputError, match="textures is 'nowhere', which is no folder"):
        augmented("anomalib-perlin", textures="nowhere")


def test_noise_on_features_leaves_images_alone():
    same, pixels = augmented("anomalib-feature-noise", noise_std=0.3)
    assert torch.equal(same, pixels)


def blacken_left(pixels, *, generator):
    changed = pixels.clone()
    changed[..., : pixels.shape[-1] // 2] = 0
    return changed


@pytest.mark.parametrize("normalised", [False, True])
def test_a_synthesiser_changes_pixels_and_masks_what_it_changed(normalised):
    pixels = images(6) / 255 * 0.8 + 0.1
    normalisation = Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]) if normalised else None
    given = normalisation(pixels) if normalisation else pixels
    place = Synthesiser(blacken_left, probability=1.0, normalisation=normalisation, masked=True)
    changed, mask = place(given)
    expected = blacken_left(pixels, generator=None)
    torch.testing.assert_close(changed, normalisation(expected) if normalisation else expected)
    assert mask.shape == (6, 1, 32, 32)
    assert mask[..., :16].all()
    assert not mask[..., 16:].any()


def test_a_synthesiser_changes_the_share_that_the_model_wants():
    place = Synthesiser(blacken_left, probability=0.5, normalisation=None, masked=True)
    torch.manual_seed(0)
    _, mask = place(torch.full((200, 3, 4, 4), 0.5))
    share = mask.amax(dim=(1, 2, 3)).mean()
    assert 0.35 < share < 0.65
