"""Helpers for images and randomness, and transforms of other libraries as augmentations.

`from_transform` takes transforms of torchvision v2, kornia, albumentations, or any callable.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dsv_plugins.errors import InputError, PluginError, describe_error
from dsv_plugins.plugins.interfaces import Augmentation

__all__ = ["as_float", "best_device", "check_pixels", "from_transform", "global_randomness", "mean_colours", "resized"]

Layout = Literal["chw", "hwc"]
Pixels = Literal["float", "uint8"]

ROUNDING = 1e-3
"""By which resizing may leave the range from 0 to 1: less than a step of eight-bit images."""

BATCH = 64

_one_at_a_time = threading.RLock()
"""Held while the global generators are seeded: they belong to the whole process, so only one thread may use them."""


def as_float(images: Tensor) -> Tensor:
    """Return the images in floating point from 0 to 1; images that are so already are returned as they are."""
    return images if images.is_floating_point() else images.float().div_(255)


def check_pixels(images: Tensor) -> None:
    """Demand pixels as uint8, or in floating point from 0 to 1.

    Raises:
        InputError: There are other values, NaN or infinite ones among them.
    """
    if images.dtype == torch.uint8 or images.numel() == 0:
        return
    lowest, highest = (float(end) for end in images.aminmax())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise InputError("the images have values that are NaN or infinite; give pixels from 0 to 1, or uint8")
    if lowest < -ROUNDING or highest > (1 + ROUNDING if images.is_floating_point() else 255):
        raise InputError(
            f"the images have values from {lowest:.3g} to {highest:.3g}; give pixels from 0 to 1 without "
            "normalisation, or uint8 from 0 to 255"
        )


def mean_colours(images: Tensor, rows: int = 1) -> Tensor:
    """Return the mean of each channel and of all for each image; in batches, as images may be memory-mapped.

    Args:
        images: The images, (images, channels, height, width).
        rows: How many rows are one image, such as its tiles.
    """
    colours = torch.cat([batch.mean(dim=(2, 3), dtype=torch.float64) for batch in torch.split(images, BATCH)])
    return torch.cat([colours, colours.mean(dim=1, keepdim=True)], dim=1).reshape(-1, rows, images.shape[1] + 1).mean(1)


def resized(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Return the images in [0, 1], in single precision, at a size: height and width, or one number for both."""
    images = as_float(images).float()
    shape = (size, size) if isinstance(size, int) else size
    if images.shape[-2:] != shape:
        images = functional.interpolate(images, size=shape, mode="bilinear", antialias=True)
    return images


def best_device() -> torch.device:
    """Return the accelerator if there is one, else the CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def from_transform(transform: Callable[..., Any], *, layout: Layout = "chw", pixels: Pixels = "float") -> Augmentation:
    """Make an augmentation of a transform that takes one image and returns one of the same size.

    ```python
    from torchvision.transforms import v2

    augmentation = from_transform(v2.RandomErasing(p=1.0, scale=(0.02, 0.1)))
    ```

    Each image gets a seed from the augmentation's generator, and the transform runs with the global generators of
    torch, `random` and numpy at that seed. They are put back afterwards. As they belong to the whole process, threads
    that use such augmentations at the same time wait for each other.

    Args:
        transform: Called with each image. If it has `set_random_seed`, as albumentations has, it gets the image's seed.
        layout: "chw" calls `transform(tensor)` with a tensor of shape (channels, height, width), for torchvision and
            kornia; "hwc" calls `transform(image=array)["image"]` with a float32 array of shape (height, width,
            channels), for albumentations.
        pixels: "float" gives the transform pixels from 0 to 1; "uint8" gives whole numbers from 0 to 255, which some
            transforms need.

    Raises:
        InputError: The layout or the kind of pixels is none of the two.
    """
    if layout not in ("chw", "hwc"):
        raise InputError(f"the layout is {layout!r}; give 'chw' (torchvision, kornia) or 'hwc' (albumentations)")
    if pixels not in ("float", "uint8"):
        raise InputError(f"pixels is {pixels!r}; give 'float' (0 to 1) or 'uint8' (0 to 255)")
    return _TransformAugmentation(transform, layout, pixels)


@contextmanager
def global_randomness(device: torch.device | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds the global generators of torch, `random` and numpy, and put them back in the end.

    One thread at a time: another one waits here.

    Args:
        device: A CUDA device whose generator is to be seeded as well.
    """
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])

    def seed_all(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        for generator in generators:
            generator.manual_seed(seed)

    with _one_at_a_time:
        states = [generator.get_state() for generator in generators]
        python_state, numpy_state = random.getstate(), np.random.get_state()
        try:
            yield seed_all
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@dataclass(frozen=True)
class _TransformAugmentation:
    """A class and not a closure, so that it can be sent to another process."""

    transform: Callable[..., Any]
    layout: Layout
    pixels: Pixels

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        seeds = torch.randint(2**31, (len(images),), generator=generator, device=generator.device).tolist()
        augmented = torch.empty_like(images)
        with global_randomness(images.device) as seed_all:
            for index, seed in enumerate(seeds):
                seed_all(seed)
                if hasattr(self.transform, "set_random_seed"):
                    self.transform.set_random_seed(seed)
                image = images[index]
                # A copy in any case: some transforms work in place.
                given = image.mul(255).round_().byte() if self.pixels == "uint8" else image.clone()
                augmented[index] = as_float(self._transformed(given))
        return augmented.clamp_(0, 1)

    def _transformed(self, image: Tensor) -> Tensor:
        """Return one image through the transform, from our layout into its layout and back."""
        given = image if self.layout == "chw" else image.permute(1, 2, 0)
        asked = f"a {given.dtype} image of shape {tuple(given.shape)}"
        hint = '; if it needs whole numbers from 0 to 255, give pixels="uint8"' if self.pixels == "float" else ""
        name = getattr(self.transform, "__name__", type(self.transform).__name__)
        try:
            if self.layout == "chw":
                returned = self.transform(given)
            else:
                array = given.float() if given.is_floating_point() else given
                returned = self.transform(image=array.contiguous().cpu().numpy())["image"]
        except Exception as error:
            raise PluginError(f"the transform {name} failed on {asked}: {describe_error(error)}{hint}") from error
        result = returned
        if self.layout == "chw" and isinstance(returned, Tensor) and returned.shape[:-3] == (1,):  # kornia
            result = returned[0]
        elif self.layout == "hwc" and np.ndim(returned) == 3:
            # A copy, since torch does not take the negative strides of a flipped array.
            result = torch.from_numpy(np.array(returned)).permute(2, 0, 1)
        if (
            not isinstance(result, Tensor)
            or result.shape != image.shape
            or result.is_floating_point() != image.is_floating_point()
            or (self.pixels == "uint8" and result.dtype != torch.uint8)
        ):
            is_array = isinstance(returned, (Tensor, np.ndarray))
            what = f"{returned.dtype} of shape {tuple(returned.shape)}" if is_array else f"a {type(returned).__name__}"
            raise PluginError(
                f"the transform {name} returned {what} for {asked}; use one that keeps size and type{hint}"
            )
        return result
