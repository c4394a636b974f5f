"""The built-in augmentations, judged by the pixels they change."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from dsv_plugins import Augmentation, AugmentationPlugin, PluginSettingsError, build_registry
from dsv_plugins.builtin.augmentations.colour import jitter_colours
from dsv_plugins.builtin.augmentations.cut import PAPER_PATCH_SIZES, CutAvg, CutDiff, CutOut, CutPaste
from dsv_plugins.builtin.augmentations.patches import (
    Patches,
    Spots,
    black_out,
    darken,
    draw_angles,
    draw_patches,
    draw_spots,
    paste,
)

ALL = (CutOut, CutAvg, CutDiff, CutPaste)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distinct_images(*shape: int, seed: int = 0) -> Tensor:
    """Images in which no pixel is black and no two pixels of a channel are equal."""
    count, channels, height, width = shape
    order = torch.stack([torch.randperm(height * width, generator=seeded(seed + i)) for i in range(count * channels)])
    return ((order + 1) / (height * width + 1)).view(shape)


def changed_rectangles(images: Tensor, augmented: Tensor) -> list[tuple[int, int, int, int]]:
    """Top, left, height and width of what changed in each image, having checked that it is a full rectangle."""
    rectangles = []
    for changed in (images != augmented).any(1).numpy():
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        top, left, height, width = rows[0], columns[0], np.ptp(rows) + 1, np.ptp(columns) + 1
        assert changed[top : top + height, left : left + width].all()
        assert changed.sum() == height * width
        rectangles.append((int(top), int(left), int(height), int(width)))
    return rectangles


def patch_of(image: np.ndarray, rectangle: tuple[int, int, int, int]) -> np.ndarray:
    top, left, height, width = rectangle
    return image[..., top : top + height, left : left + width]


def one_patch(top: int, left: int, height: int, width: int) -> Patches:
    return Patches(*(torch.tensor([value]) for value in (top, left, height, width)))


# ---------------------------------------------------------------------------
# Sizes, aspects, places
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("patch_size", [1e-5, 0.02, 0.16, 0.64, 1.0])
@pytest.mark.parametrize("aspect", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 40), (41, 9)])
def test_the_patch_has_the_rounded_and_clipped_size(patch_size, aspect, height, width):
    images = distinct_images(20, 2, height, width)
    augmented = CutOut(patch_size, aspect)(images, generator=seeded())
    expected_height = min(max(round(math.sqrt(patch_size * height * width / aspect)), 1), height)
    expected_width = min(max(round(math.sqrt(patch_size * height * width * aspect)), 1), width)
    for *_, patch_height, patch_width in changed_rectangles(images, augmented):
        assert (patch_height, patch_width) == (expected_height, expected_width)


@pytest.mark.parametrize("patch_size", [0.01, 0.08, 0.2])
def test_the_changed_area_is_the_share_asked_for(patch_size):
    images = distinct_images(200, 1, 96, 96)
    augmented = CutOut(patch_size)(images, generator=seeded(1))
    share = (images != augmented).float().mean().item()
    assert share == pytest.approx(patch_size, rel=0.02)


def test_aspects_are_log_uniform():
    images = distinct_images(300, 1, 120, 120)
    rectangles = changed_rectangles(images, CutOut(0.2, (0.3, 1.0))(images, generator=seeded(2)))
    aspects = np.array([width / height for *_, height, width in rectangles])
    test = stats.kstest(np.log(aspects), stats.uniform(math.log(0.3), -math.log(0.3)).cdf)
    assert test.pvalue > 0.01
    assert aspects.std() > 0.1  # each image its own


def test_a_range_of_sizes_is_redrawn_log_uniformly_for_every_image():
    images = distinct_images(300, 1, 120, 120)
    rectangles = changed_rectangles(images, CutOut((0.02, 0.32), 1.0)(images, generator=seeded(3)))
    sizes = np.array([height * width / 120**2 for *_, height, width in rectangles])
    test = stats.kstest(np.log(sizes), stats.uniform(math.log(0.02), math.log(16)).cdf)
    assert test.pvalue > 0.01


def test_places_are_uniform():
    images = distinct_images(3000, 1, 5, 4)
    augmented = CutOut(0.2, 1.0)(images, generator=seeded(4))
    places = Counter((top, left) for top, left, *_ in changed_rectangles(images, augmented))
    assert set(places) == set(itertools.product(range(4), range(3)))  # a patch of 2 by 2
    assert stats.chisquare(list(places.values())).pvalue > 0.01


def test_pastes_are_uniform_over_all_pairs_of_places():
    images = distinct_images(1, 1, 3, 4).expand(6000, -1, -1, -1)
    augmented = CutPaste(1e-5)(images, generator=seeded(5))
    place_of = {value: divmod(place, 4) for place, value in enumerate(images[0].flatten().tolist())}
    pairs = Counter(
        (place_of[image[top][left]], (top, left))
        for image, (top, left, *_) in zip(augmented[:, 0].tolist(), changed_rectangles(images, augmented), strict=True)
    )
    assert set(pairs) == set(itertools.permutations(place_of.values(), 2))
    assert stats.chisquare(list(pairs.values())).pvalue > 0.01


def test_a_draw_can_be_replayed():
    images = distinct_images(7, 3, 20, 30)
    patches = draw_patches(images, 0.1, (0.3, 1.0), generator=seeded(6))
    assert black_out(images, patches).equal(CutOut(0.1)(images, generator=seeded(6)))
    spots = draw_spots(images, 0.1, (0.3, 1.0), generator=seeded(6))
    assert darken(images, spots).equal(CutDiff(0.1)(images, generator=seeded(6)))


def test_the_papers_sizes():
    printed = " ".join(str(size) for size in PAPER_PATCH_SIZES)
    assert printed == (
        "1e-05 2e-05 4e-05 8e-05 0.00016 0.00032 0.00064 0.00128 0.00256 0.00512 0.01 0.02 0.04 0.08 0.16 0.32 0.64"
    )


# ---------------------------------------------------------------------------
# CutOut and CutAvg
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_cutout_is_black_inside_and_untouched_outside(channels):
    images = distinct_images(30, channels, 19, 26)
    augmented = CutOut((0.001, 0.64))(images, generator=seeded())
    changed_rectangles(images, augmented)
    changed = images != augmented
    assert (augmented[changed] == 0).all()
    assert changed.any(1).equal(changed.all(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_cutavg_fills_with_the_mean_of_each_channel(dtype):
    images = distinct_images(30, 3, 19, 26).to(dtype)
    patches = draw_patches(images, (0.01, 0.64), (0.3, 1.0), generator=seeded(1))
    rectangles = changed_rectangles(images, black_out(images, patches))
    augmented = CutAvg((0.01, 0.64))(images, generator=seeded(1))
    for image, result, rectangle in zip(images.double().numpy(), augmented.double().numpy(), rectangles, strict=True):
        expected = image.copy()
        patch_of(expected, rectangle)[:] = patch_of(image, rectangle).mean((1, 2), keepdims=True)
        np.testing.assert_allclose(result, expected, rtol=2 * torch.finfo(dtype).eps)


# ---------------------------------------------------------------------------
# CutPaste
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("patch_size", [1e-5, 0.05, 0.5, (0.01, 0.64)])
def test_a_pasted_patch_is_found_verbatim_elsewhere_in_the_source(patch_size):
    images = distinct_images(40, 3, 15, 22)
    augmented = CutPaste(patch_size)(images, generator=seeded(2))
    for image, result, rectangle in zip(
        images.numpy(), augmented.numpy(), changed_rectangles(images, augmented), strict=True
    ):
        top, left, height, width = rectangle
        pasted = patch_of(result, rectangle)
        places = itertools.product(range(15 - height + 1), range(22 - width + 1))
        origins = [(y, x) for y, x in places if np.array_equal(patch_of(image, (y, x, height, width)), pasted)]
        assert len(origins) == 1
        assert origins[0] != (top, left)


def test_a_patch_with_one_place_only_stays_there():
    images = distinct_images(5, 3, 8, 11)
    assert CutPaste(1.0, 11 / 8)(images, generator=seeded()).equal(images)


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("quarters", [-1, 1, 2])
def test_a_square_patch_turns_as_rot90_does(size, quarters):
    images = distinct_images(1, 3, 20, 23)
    result = paste(
        images, images, one_patch(2, 3, size, size), one_patch(12, 9, size, size), torch.tensor([90.0 * quarters])
    )
    expected = images[0].numpy().copy()
    patch = patch_of(images[0].numpy(), (2, 3, size, size))
    patch_of(expected, (12, 9, size, size))[:] = np.rot90(patch, quarters, axes=(1, 2))
    np.testing.assert_array_equal(result[0].numpy(), expected)


def test_many_images_are_pasted_as_each_alone():
    images, count = distinct_images(21, 3, 20, 23), 21
    tops, lefts = torch.arange(count) % 9, torch.arange(count) % 11
    sizes = 2 + torch.arange(count) % 5
    degrees = torch.linspace(-90, 90, count)
    source, destination = Patches(tops, lefts, sizes, sizes), Patches(8 - tops, 10 - lefts, sizes, sizes)
    together = paste(images, images.flip(1), source, destination, degrees)
    for index, image in enumerate(images):
        alone = [
            one_patch(*(int(values[index]) for values in (each.tops, each.lefts, each.heights, each.widths)))
            for each in (source, destination)
        ]
        expected = paste(image[None], image[None].flip(1), *alone, degrees[index : index + 1])
        assert together[index].equal(expected[0])


def test_a_turned_patch_takes_its_outline_along_and_drops_what_leaves_the_image():
    images = distinct_images(1, 1, 20, 20)
    result = paste(images, images, one_patch(5, 6, 3, 9), one_patch(17, 2, 3, 9), torch.tensor([90.0]))
    expected = images[0, 0].numpy().copy()
    turned = np.rot90(patch_of(expected, (5, 6, 3, 9)))  # 9 high, 3 wide, its top at row 14
    expected[14:20, 5:8] = turned[:6]
    np.testing.assert_array_equal(result[0, 0].numpy(), expected)


@pytest.mark.parametrize("degrees", [-37.0, 11.0, 64.0])
def test_a_turned_patch_equals_a_loop_over_its_pixels(degrees):
    images = distinct_images(1, 2, 24, 21)
    top, left, target_top, target_left, height, width = 3, 2, 10, 8, 8, 11
    source, target = one_patch(top, left, height, width), one_patch(target_top, target_left, height, width)
    result = paste(images, images, source, target, torch.tensor([degrees]))[0].numpy()

    expected = images[0].numpy().copy()
    turn = complex(math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))  # anticlockwise, the ordinate up
    middle = complex((width - 1) / 2, -(height - 1) / 2)
    for row, column in itertools.product(range(24), range(21)):
        point = (complex(column - target_left, -(row - target_top)) - middle) / turn + middle
        x, y = round(point.real), round(-point.imag)
        if 0 <= x < width and 0 <= y < height:
            expected[:, row, column] = images[0, :, top + y, left + x].numpy()
    np.testing.assert_array_equal(result, expected)


def test_angles_are_uniform():
    degrees = draw_angles(torch.zeros(1000, 1, 1, 1), 30.0, generator=seeded())
    assert stats.kstest(degrees.numpy(), stats.uniform(-30, 60).cdf).pvalue > 0.01


def test_the_patch_is_jittered_and_nothing_else():
    images = distinct_images(30, 3, 16, 16)
    verbatim = CutPaste(0.1)(images, generator=seeded(3))
    jittered = CutPaste(0.1, jitter=0.2)(images, generator=seeded(3))
    pasted = (verbatim != images).any(1, keepdim=True).expand_as(images)
    assert jittered[~pasted].equal(images[~pasted])
    difference = (jittered - verbatim)[pasted].abs()
    assert 0.01 < difference.mean() < 0.2


def test_contrast_changes_about_the_mean_of_the_patch():
    images = distinct_images(300, 1, 6, 6) / 2
    verbatim = CutPaste(1e-5)(images, generator=seeded(3))
    jittered = CutPaste(1e-5, jitter=0.1)(images, generator=seeded(3))
    # One pixel is its own mean, so contrast leaves it alone and its brightness is all that changes.
    pasted = verbatim != images
    ratios = (jittered[pasted] / verbatim[pasted]).numpy()
    assert stats.kstest(ratios, stats.uniform(0.9, 0.2).cdf).pvalue > 0.01


# ---------------------------------------------------------------------------
# CutDiff
# ---------------------------------------------------------------------------


def test_cutdiff_equals_the_formula():
    images = distinct_images(3, 2, 9, 12).double()
    spots = draw_spots(images, (0.05, 0.5), (0.3, 1.0), generator=seeded(1))
    augmented = CutDiff((0.05, 0.5))(images, generator=seeded(1))
    for image, channel, row, column in itertools.product(range(3), range(2), range(9), range(12)):
        down = (row + 0.5 - float(spots.centre_rows[image])) / float(spots.heights[image])
        across = (column + 0.5 - float(spots.centre_columns[image])) / float(spots.widths[image])
        pixel = float(images[image, channel, row, column]) - math.exp(-(down**2 + across**2) / 0.2)
        assert float(augmented[image, channel, row, column]) == pytest.approx(min(max(pixel, 0), 1), abs=1e-12)


def test_cutdiff_is_black_in_the_middle_and_fades_outwards():
    images = torch.ones(1, 1, 41, 31)
    centre, height, width = (17.5, 20.5), 12.0, 8.0
    spots = Spots(*(torch.tensor([value]) for value in (*centre, height, width)))
    image = darken(images, spots)[0, 0].numpy()
    assert image[17, 20] == image.min() == 0
    rows, columns = np.mgrid[:41, :31] + 0.5
    distance = np.hypot((rows - centre[0]) / height, (columns - centre[1]) / width)
    by_distance = image.ravel()[np.argsort(distance, axis=None)]
    assert (np.diff(by_distance) >= -1e-6).all()
    assert image[distance > 2].min() > 0.999


def test_every_spot_has_a_place_of_its_own_where_its_patch_fits():
    images = torch.ones(500, 1, 40, 60)
    spots = draw_spots(images, (0.01, 0.2), (0.3, 1.0), generator=seeded())
    for centres, lengths, length in ((spots.centre_rows, spots.heights, 40), (spots.centre_columns, spots.widths, 60)):
        share = (centres - lengths / 2) / (length - lengths)
        assert stats.kstest(share.numpy(), stats.uniform.cdf).pvalue > 0.01
    assert (
        stats.kstest(
            (spots.widths / spots.heights).log().numpy(), stats.uniform(math.log(0.3), -math.log(0.3)).cdf
        ).pvalue
        > 0.01
    )


def test_a_spot_larger_than_the_image_lies_in_the_middle():
    spots = draw_spots(torch.ones(5, 1, 40, 60), 1.0, 0.3, generator=seeded())
    assert (spots.heights > 40).all()
    assert (spots.centre_rows == 20).all()
    assert spots.centre_columns.unique().numel() == 5


def test_cutdiff_is_differentiable_in_its_hyperparameters():
    images = distinct_images(3, 2, 7, 8).double()

    def augmented(patch_size, aspect):
        return CutDiff(patch_size, aspect)(images, generator=seeded(2))

    def augmented_from_ranges(smallest, largest, narrowest, widest):
        return CutDiff((smallest, largest), (narrowest, widest))(images, generator=seeded(2))

    def tensors(*values):
        return tuple(torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values)

    assert torch.autograd.gradcheck(augmented, tensors(0.2, 0.7))
    assert torch.autograd.gradcheck(augmented_from_ranges, tensors(0.1, 0.4, 0.3, 1.0))
    gradients = torch.autograd.grad(augmented(*(inputs := tensors(0.2, 0.7))).sum(), inputs)
    assert gradients[0] < 0  # a larger patch darkens more
    assert all(gradient.isfinite() and gradient != 0 for gradient in gradients)


# ---------------------------------------------------------------------------
# Colour jitter
# ---------------------------------------------------------------------------


def fitted_maps(images: Tensor, changed: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The linear part and the offset of each image's colour map, by least squares over its pixels."""
    linear, offsets = [], []
    for before, after in zip(images.flatten(2).double().numpy(), changed.flatten(2).double().numpy(), strict=True):
        solution = np.linalg.lstsq(np.vstack([before, np.ones(before.shape[1])]).T, after.T, rcond=None)[0]
        np.testing.assert_allclose(np.vstack([before, np.ones(before.shape[1])]).T @ solution, after.T, atol=1e-5)
        linear.append(solution[:-1].T)
        offsets.append(solution[-1])
    return np.array(linear), np.array(offsets)


def test_the_four_changes_are_drawn_uniformly_for_every_image():
    strength = 0.25
    images = 0.45 + 0.1 * torch.rand(400, 3, 6, 6, generator=seeded())  # far from black and white: nothing is clamped
    linear, offsets = fitted_maps(images, jitter_colours(images, strength, generator=seeded(1)))
    gains = linear.sum(2)[:, 0]
    np.testing.assert_allclose(linear.sum(2), gains[:, None].repeat(3, 1), atol=1e-4)  # grey stays grey
    np.testing.assert_allclose(offsets, offsets[:, :1].repeat(3, 1), atol=1e-4)
    greys = images.mean((2, 3)).numpy() @ [0.299, 0.587, 0.114]
    brightness = gains + offsets[:, 0] / greys
    contrast = gains / brightness
    # About the grey axis the map scales by the saturation and turns by the hue: its complex pair of eigenvalues.
    chroma = np.array(
        [max(np.linalg.eigvals(matrix / gain), key=np.imag) for matrix, gain in zip(linear, gains, strict=True)]
    )
    for factors in (brightness, contrast, abs(chroma)):
        assert stats.kstest(factors, stats.uniform(1 - strength, 2 * strength).cdf).pvalue > 0.01
    assert stats.kstest(np.angle(chroma), stats.uniform(0, 2 * math.pi * strength).cdf).pvalue > 0.01


def test_luma_depends_on_luma_only():
    images = 0.4 + 0.2 * torch.rand(20, 3, 6, 6, generator=seeded())
    linear, _ = fitted_maps(images, jitter_colours(images, 0.2, generator=seeded(1)))
    luma = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(luma @ linear, linear.sum(2)[:, :1] * luma, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_other_numbers_of_channels_change_in_brightness_and_contrast_only(channels):
    images = 0.4 + 0.2 * torch.rand(10, channels, 6, 6, generator=seeded())
    linear, offsets = fitted_maps(images, jitter_colours(images, 0.1, generator=seeded(1)))
    gains = linear[:, 0, 0]
    np.testing.assert_allclose(linear, gains[:, None, None] * np.eye(channels), atol=1e-4)
    brightness = gains + offsets[:, 0] / images.mean((1, 2, 3)).numpy()
    assert (abs(brightness - 1) < 0.1 + 1e-4).all()
    assert (abs(gains / brightness - 1) < 0.1 + 1e-4).all()


def test_no_jitter_changes_nothing_and_contrast_keeps_the_given_mean():
    images = torch.rand(10, 3, 8, 8, generator=seeded())
    torch.testing.assert_close(jitter_colours(images, 0.0, generator=seeded()), images, atol=1e-6, rtol=0)
    grey = torch.full((10, 1, 8, 8), 0.5)
    about_itself = jitter_colours(grey, 0.1, generator=seeded())
    about_given = jitter_colours(grey, 0.1, generator=seeded(), means=torch.full((10, 1), 0.5))
    assert about_itself.equal(about_given)
    assert not about_itself.equal(jitter_colours(grey, 0.1, generator=seeded(), means=torch.full((10, 1), 0.2)))


# ---------------------------------------------------------------------------
# What holds for all
# ---------------------------------------------------------------------------

shares = st.floats(1e-5, 1.0)
spreads = st.one_of(shares, st.tuples(shares, shares).map(lambda ends: tuple(sorted(ends))))
augmentations = st.one_of(
    *(st.builds(kind, patch_size=spreads) for kind in ALL),
    st.builds(CutPaste, patch_size=spreads, angle=st.floats(0, 180), jitter=st.floats(0, 0.5)),
    st.builds(CutOut, patch_size=spreads, aspect=st.floats(0.01, 100)),
)


@settings(max_examples=300, deadline=None)
@given(
    augmentation=augmentations,
    shape=st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 33), st.integers(1, 33)),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_contract_of_an_augmentation(augmentation, shape, dtype, seed):
    images = torch.rand(shape, generator=seeded(seed)).to(dtype)
    before = images.clone()
    augmented = augmentation(images, generator=seeded(seed))
    assert images.equal(before)
    assert (augmented.shape, augmented.dtype) == (images.shape, dtype)
    assert ((augmented >= 0) & (augmented <= 1)).all()
    assert augmented.equal(augmentation(images, generator=seeded(seed)))


@pytest.mark.parametrize("kind", ALL)
def test_the_layout_in_memory_does_not_matter(kind):
    images = distinct_images(4, 3, 12, 10)
    expected = kind(0.2)(images, generator=seeded())
    channels_last = images.to(memory_format=torch.channels_last)
    assert kind(0.2)(channels_last, generator=seeded()).equal(expected)
    grey = images[:, :1].expand(-1, 3, -1, -1)
    assert kind(0.2)(grey, generator=seeded()).equal(kind(0.2)(grey.contiguous(), generator=seeded()))


@pytest.mark.parametrize("kind", ALL)
def test_the_generator_moves_on(kind):
    images = distinct_images(4, 3, 12, 10)
    generator = seeded()
    assert not kind(0.2)(images, generator=generator).equal(kind(0.2)(images, generator=generator))


def test_the_registry_offers_the_four():
    registry = build_registry()
    for name, kind in zip(("cutout", "cutavg", "cutdiff", "cutpaste"), ALL, strict=True):
        record = registry.get(AugmentationPlugin, name)
        assert record.space == {"patch_size": (0.00256, 0.01, 0.04, 0.16, 0.64)}
        assert record.summary
        assert isinstance(registry.create(AugmentationPlugin, name, {"patch_size": 0.02}), kind)
        assert isinstance(kind(0.02), Augmentation)
    with pytest.raises(PluginSettingsError, match="patch_size is 2"):
        registry.create(AugmentationPlugin, "cutout", {"patch_size": 2})


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    "patch_size",
    [0, -0.1, 1.01, math.nan, math.inf, (0.2, 0.1), (0, 0.1), (0.1, 1.5), (0.1,), (0.1, 0.2, 0.3), (), "0.1", None],
)
def test_a_wrong_patch_size_is_refused_in_one_line(kind, patch_size):
    with pytest.raises(ValueError, match=r"^patch_size is .*; give a number above 0 and at most 1, or .*$"):
        kind(patch_size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aspect": 0}, "aspect is 0; give a number above 0, or"),
        ({"aspect": (-1, 1)}, "aspect is"),
        ({"aspect": (1.0, 0.3)}, "aspect is"),
        ({"aspect": (0.3, math.inf)}, "aspect is"),
        ({"angle": -1}, "angle is -1; give a number from 0 to 180"),
        ({"angle": 181}, "angle is"),
        ({"angle": math.nan}, "angle is"),
        ({"angle": "10"}, "angle is"),
        ({"jitter": -0.1}, r"jitter is -0.1; give a number from 0 to 0\.5"),
        ({"jitter": 0.6}, "jitter is"),
    ],
)
def test_other_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CutPaste(0.1, **settings)


def test_a_range_may_be_a_list_as_json_has_it():
    images = distinct_images(4, 3, 12, 10)
    assert CutOut([0.1, 0.4])(images, generator=seeded()).equal(CutOut((0.1, 0.4))(images, generator=seeded()))


def test_importing_the_hook_module_leaves_torch_out():
    program = (
        "import sys; from dsv_plugins.builtin.augmentations import cut as a; a.augmentation(); a.CutPaste(0.1);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
