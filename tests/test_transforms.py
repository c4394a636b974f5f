"""Transforms of other libraries as augmentations."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import dsv_plugins
from dsv_plugins import Augmentation, AugmentationPlugin, InputError, PluginError, from_transform
from dsv_plugins.testing import check_augmentation
from dsv_plugins.transforms import as_float, best_device, check_pixels, resized


def images(count: int = 4) -> torch.Tensor:
    return torch.rand(count, 3, 20, 24, generator=torch.Generator().manual_seed(0))


def augment(augmentation: Augmentation, batch: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return augmentation(batch, generator=torch.Generator().manual_seed(seed))


def erase_by_random(image: torch.Tensor) -> torch.Tensor:
    image[:, random.randrange(image.shape[1])] = 0.0  # in place, as a careless transform may
    return image


def erase_by_numpy(image: torch.Tensor) -> torch.Tensor:
    image[:, np.random.randint(image.shape[1])] = 0.0
    return image


def flip_a_bit(image: torch.Tensor) -> torch.Tensor:
    if image.dtype != torch.uint8:
        raise TypeError(f"only uint8 images, not {image.dtype}")
    return image ^ (1 << random.randrange(8))


class FakeAlbumentations:
    """Called with keywords and arrays; draws from a generator of its own, which `set_random_seed` sets."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def __call__(self, *, image: np.ndarray) -> dict[str, np.ndarray]:
        assert image.dtype == np.float32
        image[self.generator.integers(len(image))] = 0.0
        return {"image": image[:, ::-1]}  # a view with a negative stride


def torchvision_transform() -> Augmentation:
    erase = v2.RandomErasing(p=1.0, scale=(0.02, 0.2), inplace=True)
    return from_transform(v2.Compose([v2.GaussianBlur(3), erase]))


AUGMENTATIONS: dict[str, Callable[[], Augmentation]] = {
    "torchvision": torchvision_transform,
    "python-random": lambda: from_transform(erase_by_random),
    "numpy-random": lambda: from_transform(erase_by_numpy),
    "fake-albumentations": lambda: from_transform(FakeAlbumentations(), layout="hwc"),
    "whole-numbers": lambda: from_transform(flip_a_bit, pixels="uint8"),
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_transform_passes_the_kit(name: str) -> None:
    check_augmentation(AugmentationPlugin(name, AUGMENTATIONS[name]))


def test_kornia_passes_the_kit() -> None:
    kornia = pytest.importorskip("kornia.augmentation")
    check_augmentation(AugmentationPlugin("kornia", lambda: from_transform(kornia.RandomErasing(p=1.0))))


def test_albumentations_passes_the_kit() -> None:
    albumentations = pytest.importorskip("albumentations")

    def factory() -> Augmentation:
        drop = albumentations.CoarseDropout(p=1.0)
        return from_transform(albumentations.Compose([drop, albumentations.HorizontalFlip()]), layout="hwc")

    check_augmentation(AugmentationPlugin("albumentations", factory))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_an_image_has_the_same_result_alone_as_first_of_a_batch(name: str) -> None:
    # Each image's seed is drawn before any transform runs, so what one transform consumes is nothing to the next image.
    augmentation = AUGMENTATIONS[name]()
    assert torch.equal(augment(augmentation, images(1)), augment(augmentation, images(4))[:1])


def test_an_image_is_transformed_as_the_transform_itself_does() -> None:
    augmented = augment(from_transform(v2.RandomHorizontalFlip(p=1.0)), images())
    assert torch.equal(augmented, images().flip(-1))


def test_the_hwc_layout_hands_over_height_width_channels() -> None:
    def brighten_first_row_red(*, image: np.ndarray) -> dict[str, np.ndarray]:
        assert image.shape == (20, 24, 3)
        image[0, :, 0] = 1.0
        return {"image": image}

    expected = images()
    expected[:, 0, 0, :] = 1.0
    assert torch.equal(augment(from_transform(brighten_first_row_red, layout="hwc"), images()), expected)


def test_a_transform_of_whole_numbers_gets_them_in_both_layouts() -> None:
    def negative(image: torch.Tensor) -> torch.Tensor:
        return {torch.uint8: 255, np.dtype("uint8"): np.uint8(255)}[image.dtype] - image

    def negative_array(*, image: np.ndarray) -> dict[str, np.ndarray]:
        return {"image": negative(image)}

    eighths = torch.randint(256, (4, 3, 20, 24), generator=torch.Generator().manual_seed(0)) / 255
    for augmentation in (
        from_transform(negative, pixels="uint8"),
        from_transform(negative_array, layout="hwc", pixels="uint8"),
    ):
        assert torch.allclose(augment(augmentation, eighths), 1 - eighths)


def test_a_transform_that_needs_whole_numbers_says_how_to_give_them() -> None:
    with pytest.raises(PluginError, match=r'the transform flip_a_bit failed .*uint8.*; .* give pixels="uint8"'):
        augment(from_transform(flip_a_bit), images())
    with pytest.raises(InputError, match="pixels is 'byte'; give 'float'"):
        from_transform(flip_a_bit, pixels="byte")


def test_threads_that_use_global_randomness_do_not_disturb_each_other() -> None:
    def slow(image: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001)  # long enough for another thread to seed, if it could
        return image * random.random() * torch.rand(1) * np.random.rand()

    augmentation = from_transform(slow)
    one_after_the_other = [augment(augmentation, images(), seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        at_the_same_time = list(pool.map(lambda seed: augment(augmentation, images(), seed), range(8)))
    assert all(map(torch.equal, one_after_the_other, at_the_same_time))


def test_the_global_generators_are_put_back_even_if_the_transform_fails() -> None:
    def fail(image: torch.Tensor) -> torch.Tensor:
        torch.rand(1), np.random.rand(), random.random()
        raise ZeroDivisionError

    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with pytest.raises(PluginError, match="the transform fail failed on a torch.float32 image"):
        augment(from_transform(fail), images())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_the_result_is_clamped() -> None:
    augmented = augment(from_transform(lambda image: image * 4 - 1), images())
    assert (augmented.min(), augmented.max()) == (0.0, 1.0)


def test_a_batch_dimension_of_one_is_taken_off() -> None:
    assert torch.equal(augment(from_transform(lambda image: image[None]), images()), images())


def test_no_images_are_no_work() -> None:
    assert augment(torchvision_transform(), images(0)).shape == (0, 3, 20, 24)


def crop_array(*, image: np.ndarray) -> dict[str, np.ndarray]:
    return {"image": image[1:]}


def to_bytes(*, image: np.ndarray) -> dict[str, np.ndarray]:
    return {"image": (image * 255).astype(np.uint8)}


@pytest.mark.parametrize(
    ("transform", "layout", "message"),
    [
        (v2.CenterCrop(10), "chw", "CenterCrop returned torch.float32 of shape (3, 10, 10) for .* (3, 20, 24)"),
        (v2.ToDtype(torch.uint8, scale=True), "chw", "ToDtype returned torch.uint8 of shape (3, 20, 24)"),
        (v2.ToPILImage(), "chw", "ToPILImage returned a Image"),
        (lambda image: image.repeat(2, 1, 1, 1), "chw", "<lambda> returned torch.float32 of shape (2, 3, 20, 24)"),
        (crop_array, "hwc", "crop_array returned float32 of shape (19, 24, 3) for .* (20, 24, 3)"),
        (to_bytes, "hwc", "to_bytes returned uint8 of shape (20, 24, 3)"),
    ],
    ids=["crop", "uint8", "pil", "batch", "hwc-crop", "hwc-uint8"],
)
def test_a_result_of_another_shape_or_type_is_refused(transform: Callable, layout: str, message: str) -> None:
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(PluginError, match=f"^the transform {pattern}") as error:
        augment(from_transform(transform, layout=layout), images())
    assert "\n" not in str(error.value)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(InputError, match="'chw'"):
        from_transform(v2.Identity(), layout="bhwc")


def test_it_can_be_sent_to_another_process() -> None:
    augmentation = torchvision_transform()
    copy = pickle.loads(pickle.dumps(augmentation))
    assert torch.equal(augment(copy, images()), augment(augmentation, images()))


def test_integers_become_floats_from_zero_to_one_and_floats_stay_as_they_are() -> None:
    integers = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert as_float(integers).tolist() == pytest.approx([0, 0.2, 1])
    floats = torch.rand(3)
    assert as_float(floats) is floats


def test_what_resizing_rounds_is_still_a_pixel_and_no_images_are_no_fault() -> None:
    check_pixels(torch.tensor([-1e-6, 0.0, 1.0, 1 + 1e-6]))
    check_pixels(torch.tensor([0, 255], dtype=torch.int16))
    check_pixels(torch.empty(0, 3, 8, 8))
    with pytest.raises(InputError, match="values from 0 to 256"):
        check_pixels(torch.tensor([0, 256], dtype=torch.int16))


def test_resized_images_are_square_floats_and_those_of_that_size_keep_their_pixels() -> None:
    blocks = torch.tensor([[0, 255], [255, 0]], dtype=torch.uint8).repeat_interleave(8, 0).repeat_interleave(8, 1)
    small = resized(blocks.expand(2, 3, -1, -1), 4)
    assert (small.dtype, tuple(small.shape)) == (torch.float32, (2, 3, 4, 4))
    assert small[0, 0, 0, 0] == 0
    assert small[0, 0, 0, 3] == pytest.approx(1)
    assert small.mean() == pytest.approx(0.5)
    assert torch.equal(resized(images()[:, :, :, :20].half(), 20), images()[:, :, :, :20].half().float())


def test_the_best_device_can_compute() -> None:
    assert torch.ones(2, device=best_device()).sum().item() == 2


def test_it_is_a_public_name() -> None:
    assert dsv_plugins.from_transform is dsv_plugins.transforms.from_transform
