"""Where images come from: a folder, a pattern, a list of paths, a file with such a list, a dataset, or a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from dsv_plugins.errors import InputError, describe_error
from dsv_plugins.transforms import check_pixels, resized
from dsv_plugins.types import Size

__all__ = ["Source", "pixels_of"]

Source = Path | str | Sequence[Path | str] | Tensor | TorchDataset[Any]
"""Where a set of images comes from."""

IMAGE_KEYS = ("image", "img", "pixel_values")
"""The keys under which a dataset may have the image, if its samples are mappings."""


def pixels_of(dataset: TorchDataset[Any], size: Size, name: str) -> Tensor:
    """Return the images of a dataset of torch as one uint8 tensor: its samples, or the first part of each.

    Raises:
        InputError: A sample has no image.
    """
    images = []
    for index in range(len(dataset)):  # type: ignore[arg-type]
        try:
            image = _as_tensor(_image_of(dataset[index]))
        except Exception as error:
            raise InputError(
                f"sample {index} of the {name} dataset has no image ({describe_error(error)}); give images, tuples "
                f"that begin with an image, or mappings with the key {' or '.join(IMAGE_KEYS)}"
            ) from error
        images.append((resized(image[None], size)[0].expand(3, -1, -1) * 255).round().to(torch.uint8))
    if not images:
        raise InputError(f"the {name} dataset is empty")
    return torch.stack(images)


def _image_of(sample: Any) -> Any:
    if isinstance(sample, (tuple, list)):
        return sample[0]
    for key in IMAGE_KEYS:
        if isinstance(sample, dict) and key in sample:
            return sample[key]
    return getattr(sample, "image", sample)  # as the items of anomalib


def _as_tensor(image: Any) -> Tensor:
    """Return one image as (channels, height, width), uint8 or from 0 to 1."""
    if isinstance(image, Image.Image):
        image = np.asarray(image.convert("RGB"))
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.array(image))
        image = image[None] if image.ndim == 2 else image.permute(2, 0, 1)  # arrays have their channels last
    if not isinstance(image, Tensor):
        raise TypeError(f"it is a {type(image).__name__}")
    image = image[None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"its shape is {tuple(image.shape)}, not (channels, height, width) with 1 or 3 channels")
    check_pixels(image)
    return image  # type: ignore[no-any-return]
