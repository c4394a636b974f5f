"""The kit, and what each augmentation is meant to change."""

import pytest
import torch
from dsv_more_augmentations import augmentation
from dsv_more_augmentations.perlin import perlin_noise

from dsv_plugins.testing import parametrize_with_checks

RECORDS = {record.name: record for record in augmentation()}


@parametrize_with_checks(RECORDS.values())
def test_conformance(check):
    check()


def changed(name, **hyperparameters):
    """The images, and which of their pixels an augmentation changes."""
    images = torch.rand(40, 3, 50, 60, generator=torch.Generator().manual_seed(0))
    augmented = RECORDS[name].factory(**hyperparameters)(images, generator=torch.Generator().manual_seed(1))
    return images, augmented, (images != augmented).any(dim=1)


@pytest.mark.parametrize(
    ("name", "fixed"),
    [("noise-patch", {"strength": 0.3}), ("blur-patch", {"sigma": 1.0})],
)
@pytest.mark.parametrize("share", [0.01, 0.16])
def test_a_patch_has_its_share_of_the_area(name, fixed, share):
    _, _, places = changed(name, patch_size=share, **fixed)
    assert places.float().mean().item() == pytest.approx(share, rel=0.15)


def test_perlin_clouds_cover_their_share_and_blend_by_their_opacity():
    images, half, places = changed("perlin-blend", cells=4, opacity=0.5)
    assert places.float().mean(dim=(1, 2)) == pytest.approx(torch.full((40,), 0.1), abs=0.01)
    _, full, _ = changed("perlin-blend", cells=4, opacity=1.0)
    assert torch.allclose(half, (images + full) / 2, atol=1e-6)


def test_perlin_noise_is_zero_at_the_corners_of_its_cells_and_smooth_between():
    # Pixels are at the middle of their places: with 101 of them and 50 cells, every second one is nearly at a corner.
    noise = perlin_noise(torch.zeros(8, 1, 1000, 1000), 4, torch.Generator().manual_seed(0))
    assert noise[:, [250, 500, 750]][..., [250, 500, 750]].abs().max() < 0.01
    assert noise.abs().max() > 0.3
    assert noise.diff(dim=1).abs().max() < 0.02


def test_a_scar_is_as_long_and_thick_as_it_says():
    _, _, places = changed("cutpaste-scar", length=0.4, thickness=0.1)
    areas = places.flatten(1).sum(dim=1).float()  # those at the border are cut off
    assert areas.quantile(0.9).item() == pytest.approx(0.4 * 50 * 0.1 * 50, rel=0.35)
    assert areas.max() < 1.6 * 0.4 * 50 * 0.1 * 50


def test_what_is_pasted_comes_from_the_same_image():
    image = torch.arange(50 * 60).view(1, 1, 50, 60) / 3000
    patch = RECORDS["cutpaste-3way"].factory(patch_size=0.04).first
    augmented = patch(image, generator=torch.Generator().manual_seed(3))
    assert torch.isin(augmented, image).all()
    rows, columns = (augmented != image)[0, 0].nonzero().T
    moved = augmented[0, 0, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    top, left = divmod(round(moved[0, 0].item() * 3000), 60)
    assert torch.equal(moved, image[0, 0, top : top + moved.shape[0], left : left + moved.shape[1]])


def test_three_way_draws_both_kinds():
    images = torch.rand(200, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    either = RECORDS["cutpaste-3way"].factory(patch_size=0.16, length=0.1)
    areas = (either(images, generator=torch.Generator().manual_seed(0)) != images).flatten(1).sum(dim=1)
    assert 60 < (areas > 300).sum() < 140
