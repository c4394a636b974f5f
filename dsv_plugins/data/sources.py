"""Where images come from: a folder, a pattern, a list of paths, a file with such a list, a dataset, or a tensor."""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from dsv_plugins.data.images import IMAGE_SUFFIXES, find_images
from dsv_plugins.errors import InputError, describe_error, shown
from dsv_plugins.transforms import resized

__all__ = ["Source", "image_files", "pixels_of"]

Source = Path | str | Sequence[Path | str] | Tensor | TorchDataset[Any]
"""Where a set of images comes from."""

LISTS = (".txt", ".csv")
PATH_COLUMNS = ("path", "file", "image", "filename", "image_path")
"""The columns of a CSV file in which the paths may be."""
IMAGE_KEYS = ("image", "img", "pixel_values")
"""The keys under which a dataset may have the image, if its samples are mappings."""


def image_files(source: Path | str | Sequence[Path | str]) -> list[Path]:
    """The files of a source, in the order of their names.

    Raises:
        InputError: There are none, or the source is nothing that we know.
    """
    if isinstance(source, (Path, str)):
        path = Path(source)
        if path.is_dir():
            return find_images(path)
        if path.suffix.lower() in LISTS:
            return _listed_in(path)
        if glob.has_magic(str(source)):
            return _matching(str(source))
        if path.is_file():
            raise InputError(f"{path} is one file; give a folder, a pattern in quotes, or a list in a txt or csv file")
        return find_images(path)  # which says what is wrong
    paths = [Path(each) for each in source if isinstance(each, (Path, str))]
    if len(paths) < len(source) or not paths:
        raise InputError(f"the images are {shown(source)}; give paths")
    return _existing(paths, "the list")


def pixels_of(dataset: TorchDataset[Any], size: int, name: str) -> Tensor:
    """The images of a dataset of torch as one uint8 tensor: its samples, or the first part of each.

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


def _listed_in(file: Path) -> list[Path]:
    """The paths in a text file, one in each line, or in a column of a CSV file; relative ones begin at the file."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the list {file} cannot be read ({describe_error(error)}); give a text file of paths"
        ) from error
    lines = text.splitlines()
    if file.suffix.lower() == ".csv":
        rows = list(csv.DictReader(lines))
        columns = rows[0].keys() if rows else ()
        column = next((each for each in PATH_COLUMNS if each in columns), None)
        if column is None:
            raise InputError(
                f"{file} has the columns {', '.join(columns) or 'of no row'}; name that of the paths 'path'"
            )
        lines = [row[column] or "" for row in rows]
    paths = [file.parent / line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not paths:
        raise InputError(f"{file} lists no images; give one path in each line")
    return _existing(paths, str(file))


def _matching(pattern: str) -> list[Path]:
    found = [Path(name) for name in glob.glob(pattern, recursive=True)]
    images = sorted(path for path in found if path.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        others = f"; it matches {len(found)} others, such as {found[0]}" if found else ""
        raise InputError(f"no image matches {pattern}{others}")
    return images


def _existing(paths: Iterable[Path], where: str) -> list[Path]:
    """The paths, once each; a folder among them stands for its images."""
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            files.update(dict.fromkeys(find_images(path)))
        else:  # a file that cannot be read is told with the others, or left out with --skip-bad
            files[path] = None
    missing = [path for path in files if not path.exists() and not path.is_symlink()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"{where} names {missing[0]}{more}, which is not there; check the paths")
    return list(files)


def _image_of(sample: Any) -> Any:
    if isinstance(sample, (tuple, list)):
        return sample[0]
    for key in IMAGE_KEYS:
        if isinstance(sample, dict) and key in sample:
            return sample[key]
    return getattr(sample, "image", sample)  # as the items of anomalib


def _as_tensor(image: Any) -> Tensor:
    """One image as (channels, height, width), uint8 or from 0 to 1."""
    if isinstance(image, Image.Image):
        image = np.asarray(image.convert("RGB"))
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.array(image))
        image = image[None] if image.ndim == 2 else image.permute(2, 0, 1)  # arrays have their channels last
    if not isinstance(image, Tensor):
        raise TypeError(f"it is a {type(image).__name__}")
    image = image[None] if image.ndim == 2 else image
    assert isinstance(image, Tensor)
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"its shape is {tuple(image.shape)}, not (channels, height, width) with 1 or 3 channels")
    if image.is_floating_point() and not (image.min() >= 0 and image.max() <= 1):
        raise ValueError(
            f"its values go from {image.min():.3g} to {image.max():.3g}; give 0 to 1, without normalisation"
        )
    return image
