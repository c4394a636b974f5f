"""What an augmentation must do."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property

import torch
from torch import Tensor

from dsv_plugins.errors import describe_error
from dsv_plugins.plugins.interfaces import Augmentation
from dsv_plugins.plugins.spaces import grid
from dsv_plugins.testing._randomness import untouched_global_randomness
from dsv_plugins.testing._suite import Suite, demand
from dsv_plugins.transforms import global_randomness

__all__ = ["Checks"]

SEEDS = range(8)
"""Generators tried before randomness is called missing: an augmentation may leave an image as it is now and then."""

COPIES = 8
MOST_POINTS = 200
RANGE_POINTS = 3
ROUNDING = 1e-6
THREAD_ROUNDS = 3


class Checks(Suite[Augmentation]):
    """The checks of an augmentation."""

    methods = ("__call__",)

    def can_be_called(self) -> None:
        """It is called with images and the keyword `generator`, and returns a tensor."""
        try:
            self._augment(_images())
        except TypeError as error:
            raise AssertionError(f"cannot be called as augmentation(images, generator=generator): {error}") from error

    def keeps_shape(self) -> None:
        """The output has the shape of the input."""
        images = _images()
        _demand_same_shape(self._augment(images), images)

    def keeps_dtype(self) -> None:
        """The output has the floating-point type of the input."""
        for dtype in (torch.float32, torch.float64):
            returned = self._augment(_images().to(dtype)).dtype
            demand(returned == dtype, f"returned {returned} for {dtype}; return the type of the images")

    def keeps_device(self) -> None:
        """The output is on the device of the input: the CPU, and a GPU if there is one."""
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            images = _images().to(device)
            returned = self._augment(images).device
            demand(returned == images.device, f"returned images on {returned} for images on {images.device}")

    def keeps_range(self) -> None:
        """The output lies in [0, 1]."""
        _demand_in_range(self._augment(_images()))

    def returns_finite_values(self) -> None:
        """The output has no NaN and no infinity."""
        _demand_finite(self._augment(_images()))

    def does_not_modify_its_input(self) -> None:
        """The images that go in are the same afterwards."""
        for seed in SEEDS:
            images = _images()
            self._augment(images, seed=seed)
            demand(torch.equal(images, _images()), "changes the images it is given; work on a copy")

    def repeats_itself(self) -> None:
        """The same state of the generator gives the same output, also from an object that was used before."""
        augmentation = self._build()
        first, again = (_augmented(augmentation, _images(), seed=0) for _ in range(2))
        demand(torch.equal(first, again), "returned different images for the same state of the generator")
        demand(torch.equal(first, self._augment(_images())), "a second object returned different images than the first")

    def draws_from_the_generator(self) -> None:
        """Another state of the generator gives another output, at one point of the space at least."""
        for point in self._points:
            outputs = [self._augment(_images(), seed=seed, point=point) for seed in SEEDS]
            if _differ(outputs):
                return
        raise AssertionError(f"returned the same images for {len(SEEDS)} different generators")

    def draws_for_each_image(self) -> None:
        """Copies of one image in one batch do not all come out alike, at one point of the space at least."""
        copies = _images(1).repeat(COPIES, 1, 1, 1)
        for point in self._points:
            if any(_differ(self._augment(copies, seed=seed, point=point)) for seed in SEEDS):
                return
        raise AssertionError(f"returned {COPIES} copies of one image all alike; let each image draw its own")

    def takes_any_batch_size(self) -> None:
        """One image and seven work."""
        self._demand_sound_for(_images(count) for count in (1, 7))

    def takes_grey_and_colour(self) -> None:
        """One channel and three work."""
        self._demand_sound_for(_images(channels=channels) for channels in (1, 3))

    def takes_any_size(self) -> None:
        """Odd and oblong images work."""
        self._demand_sound_for(_images(3, 3, *size) for size in ((31, 31), (17, 40), (40, 17)))

    def works_at_every_point(self) -> None:
        """Every point of its own search space gives sound images."""
        images = _images()
        for point in self._points:
            try:
                _demand_sound(self._augment(images, point=point), images)
            except Exception as error:
                reason = str(error) if isinstance(error, AssertionError) else describe_error(error)
                raise AssertionError(f"at {point}: {reason}") from error

    def leaves_global_randomness_alone(self) -> None:
        """The global generators of torch, `random` and numpy are the same afterwards."""
        with untouched_global_randomness():
            self._augment(_images())

    def ignores_global_randomness(self) -> None:
        """The output does not depend on the global generators of torch, `random` and numpy."""
        with global_randomness() as seed_all:
            outputs = []
            for seed in SEEDS:
                seed_all(seed)
                outputs.append(self._augment(_images()))
        demand(not _differ(outputs), "depends on a global random generator; draw from the one that is given")

    def agrees_with_itself_in_threads(self) -> None:
        """Several threads that augment at the same time get the same images as one after the other."""
        augmentation = self._build()
        expected = [_augmented(augmentation, _images(), seed) for seed in SEEDS]
        with ThreadPoolExecutor(len(SEEDS)) as pool:
            for _ in range(THREAD_ROUNDS):
                returned = list(pool.map(lambda seed: _augmented(augmentation, _images(), seed), SEEDS))
                message = "returns other images if several threads use it at the same time; share nothing between calls"
                demand(all(map(torch.equal, returned, expected)), message)

    @cached_property
    def _points(self) -> list[dict[str, object]]:
        """The points of its space that it accepts, as a study does: all of them, or a sample if there are very many."""
        points = grid(self.record.space, RANGE_POINTS)
        points = points if len(points) <= MOST_POINTS else random.Random(0).sample(points, MOST_POINTS)  # noqa: S311
        return [point for point in points if not self._refuses(point)]

    def _refuses(self, point: Mapping[str, object]) -> bool:
        """Whether a study would leave the point out. Any other error is a fault, which the checks find."""
        with suppress(Exception):
            try:
                self.record.factory(**point)
            except ValueError:
                return True
        return False

    def _augment(self, images: Tensor, *, seed: int = 0, point: Mapping[str, object] | None = None) -> Tensor:
        return _augmented(self._build() if point is None else self.record.factory(**point), images, seed)

    def _demand_sound_for(self, batches: Iterable[Tensor]) -> None:
        for images in batches:
            _demand_sound(self._augment(images), images)


def _images(count: int = 3, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    """Noise over the whole range, so that no change of a pixel goes unseen; the same at every call."""
    images = torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))
    images[..., 0, 0], images[..., -1, -1] = 0.0, 1.0
    return images


def _augmented(augmentation: Augmentation, images: Tensor, seed: int) -> Tensor:
    returned: object = augmentation(images, generator=torch.Generator(images.device).manual_seed(seed))
    if not isinstance(returned, Tensor):
        raise AssertionError(f"returned a {type(returned).__name__}; return a tensor, the augmented images")
    return returned


def _differ(outputs: Iterable[Tensor]) -> bool:
    first, *others = outputs
    return any(not torch.equal(first, other) for other in others)


def _demand_sound(returned: Tensor, images: Tensor) -> None:
    _demand_same_shape(returned, images)
    _demand_finite(returned)
    _demand_in_range(returned)


def _demand_same_shape(returned: Tensor, images: Tensor) -> None:
    demand(returned.shape == images.shape, f"returned shape {tuple(returned.shape)} for {tuple(images.shape)}; keep it")


def _demand_finite(returned: Tensor) -> None:
    demand(bool(returned.isfinite().all()), "returned NaN or infinite pixels")


def _demand_in_range(returned: Tensor) -> None:
    low, high = (float(end) for end in returned.aminmax())
    outside = low < -ROUNDING or high > 1 + ROUNDING
    demand(not outside, f"returned pixels from {low:g} to {high:g}; keep them in [0, 1]")
