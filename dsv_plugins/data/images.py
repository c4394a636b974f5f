"""Image files to arrays of shape (images, channels, height, width), with errors that name the file.

Pixels are held as uint8 in a memory-mapped array on disk: a set may be larger than memory, and worker processes share
one copy. Images are ordered by a hash of their content, so that neither names nor folders, which may carry labels, can
reach what is computed from them.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from dsv_plugins.data.image_warnings import collecting_warnings, warnings_of_pillow
from dsv_plugins.errors import InputError, StoreError, one_line
from dsv_plugins.pixels import (
    FORMATS,
    SIXTEEN_BITS,
    Note,
    Pixels,
    decode,
    has_sixteen_bits,
    is_turned,
    require_file,
    why_unreadable,
)
from dsv_plugins.run.folder import checksum
from dsv_plugins.run.tiles import Loading
from dsv_plugins.types import Levels, Size, height_and_width

__all__ = [
    "IMAGE_SUFFIXES",
    "BadFile",
    "ImageFile",
    "Survey",
    "at_once",
    "decode_all",
    "files_below",
    "find_images",
    "levels_of",
    "median_size",
    "own_sizes",
    "split_folder",
    "split_pixels",
    "survey",
    "write_pixels",
]

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".jp2", ".j2k", ".pgm", ".ppm"})
CHANNELS = 3
MEGABYTE = 1_000_000
MORE_LEVELS = 0.25
"""Of the range of good sixteen-bit images, added at both ends."""
AHEAD = 32
"""Images that each thread may decode before they are needed, if they are small."""
SMALL = 256 * 256
"""Pixels of such an image: of larger ones there are fewer in memory at once."""

DecodeProgress = Callable[[int, int], None]
"""Called while images are decoded, with the images done and the images there are."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file and the hash of its content."""

    path: Path
    digest: str

    @property
    def short_digest(self) -> str:
        """What a model keeps of the hash, to know the image again."""
        return self.digest[:16]


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that was left out, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


Survey = tuple[list[ImageFile], list[BadFile]]
"""The files of a source, ordered by the hash of their content, and those that cannot be read."""


def split_folder(folder: Path) -> tuple[Path, Path]:
    """Return the train and test folders of a task in MVTec layout: `train/good` (or `train`) and `test`."""
    train, test = folder / "train", folder / "test"
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of a task")
    missing = [part.name for part in (train, test) if not part.is_dir()]
    if missing:
        raise InputError(
            f"{folder} has no folder named {' and none named '.join(missing)}; name the folder of good images with "
            "--train and the folder of unlabelled ones with --test"
        )
    return train / "good" if (train / "good").is_dir() else train, test


def find_images(folder: Path, note: Note | None = None) -> list[Path]:
    """Return every image below a folder, at any depth, in the order of their names; hidden files are skipped.

    Args:
        folder: The folder.
        note: Called with how many files of other kinds are in it, if there are any.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give a folder of images")
    files = list(files_below(folder))
    images = sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        kinds = ", ".join(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES))
        others = f"; the {len(files)} files in it, such as {files[0].name}, are of other kinds" if files else ""
        raise InputError(f"{folder} holds no images{others}; give a folder with files of kind {kinds}")
    if note is not None and len(images) < len(files):
        example = min(set(files) - set(images))
        note(f"{len(files) - len(images)} of the files in {folder} are no images and left out, such as {example}")
    return images


def survey(paths: Sequence[Path]) -> Survey:
    """Return the files with the hashes of their content, ordered by hash, and those that cannot be read."""

    def digested(path: Path) -> ImageFile | BadFile:
        try:
            require_file(path)
            return ImageFile(path, checksum(path))
        except OSError as error:
            return BadFile(path, f"cannot be read ({why_unreadable(error)})")

    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(digested, paths))
    files = [outcome for outcome in outcomes if isinstance(outcome, ImageFile)]
    bad = [outcome for outcome in outcomes if isinstance(outcome, BadFile)]
    return sorted(files, key=lambda file: (file.digest, file.path)), bad


def median_size(paths: Sequence[Path]) -> tuple[int, int] | None:
    """Return the height and the width of the image of median aspect, from headers; None if none can be read."""
    sizes = sorted(own_sizes(paths), key=lambda size: (size[0] / size[1], size))
    return sizes[len(sizes) // 2] if sizes else None


def own_sizes(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Return the heights and widths of the images that can be read, from their headers."""
    with collecting_warnings(), warnings_of_pillow():
        return [size for size in map(_size, paths) if size is not None]


def _size(path: Path) -> tuple[int, int] | None:
    try:
        require_file(path)
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            return (width, height) if is_turned(image) else (height, width)
    except Exception:  # what is wrong with it is said when it is decoded
        return None


def levels_of(paths: Sequence[Path]) -> Levels | None:
    """Return which values of sixteen bits become black and white, from images that are good; None if none has so many.

    That is the range of their values, and a part of it more at both ends: a defect may be darker or brighter.
    """

    def ends(path: Path) -> Levels | None:
        try:
            require_file(path)
            with warnings_of_pillow(), Image.open(path, formats=FORMATS) as image:
                if not has_sixteen_bits(image):
                    return None
                values = np.asarray(image)
                return int(values.min()), int(values.max())
        except Exception:  # what is wrong with it is said when it is decoded
            return None

    with collecting_warnings(), ThreadPoolExecutor() as pool:
        found = [each for each in pool.map(ends, paths) if each is not None]
    if not found:
        return None
    lowest, highest = min(low for low, _ in found), max(high for _, high in found)
    more = max(1, round((highest - lowest) * MORE_LEVELS))
    return max(SIXTEEN_BITS[0], lowest - more), min(SIXTEEN_BITS[1], highest + more)


def decode_all(
    paths: Sequence[Path], size: Size, note: Note | None = None, *, levels: Levels | None = None
) -> Iterator[tuple[Path, Pixels | InputError]]:
    """Yield each image or what is wrong with it, in order. Others are decoded meanwhile, but no more than some.

    Args:
        paths: The files.
        size: Height and width.
        note: Called with what a user should know of a file, such as what Pillow warns of.
        levels: As for `decode`.
    """

    def attempt(path: Path) -> tuple[Pixels | InputError, list[str]]:
        with warnings_of_pillow() as messages:
            try:
                return decode(path, size, levels=levels, note=messages.append), messages
            except InputError as error:
                return error, []

    workers, coming = os.cpu_count() or 1, iter(paths)
    ahead = workers * at_once(AHEAD, size)
    with collecting_warnings(), ThreadPoolExecutor(workers) as pool:
        try:
            waiting = deque((path, pool.submit(attempt, path)) for path in itertools.islice(coming, ahead))
            while waiting:
                path, future = waiting.popleft()
                outcome, messages = future.result()
                if note is not None:
                    for message in dict.fromkeys(messages):
                        note(f"{path}: {one_line(message)}")
                waiting.extend((path, pool.submit(attempt, path)) for path in itertools.islice(coming, 1))
                yield path, outcome
        finally:  # nobody who presses Ctrl-C waits for images that nobody will see
            pool.shutdown(wait=False, cancel_futures=True)


def at_once(images: int, size: Size) -> int:
    """Return how many images of a size take as much memory as so many small ones."""
    return max(1, images * SMALL // max(SMALL, math.prod(height_and_width(size))))


def write_pixels(
    files: Sequence[ImageFile],
    loading: Loading,
    target: Path,
    progress: DecodeProgress | None = None,
    note: Note | None = None,
    *,
    levels: Levels | None = None,
) -> tuple[list[ImageFile], list[BadFile]]:
    """Decode images, in parallel, into an `.npy` file; return the good files and the bad ones.

    Nothing larger than a few images is held in memory. Tiles are rows of their own.

    Raises:
        StoreError: The disk has too little space for them.
    """
    good: list[ImageFile] = []
    bad: list[BadFile] = []
    tiles = loading.tiles
    rows, shape = (tiles.count, (tiles.side,) * 2) if tiles else (1, height_and_width(loading.size))
    _check_space(target, len(files) * rows * CHANNELS * math.prod(shape))
    with target.open("wb") as content:
        _write_header(content, (len(files) * rows, CHANNELS, *shape))
        decoded = decode_all([file.path for file in files], loading.size, note, levels=levels)
        for index, (file, (_, outcome)) in enumerate(zip(files, decoded, strict=True)):
            if isinstance(outcome, InputError):
                bad.append(BadFile(file.path, str(outcome).removeprefix(f"{file.path} ")))
            else:
                for part in tiles.parts(outcome) if tiles else [outcome]:
                    content.write(part.tobytes())
                good.append(file)
            if progress is not None:
                progress(index + 1, len(files))
        content.seek(0)
        # It is of the same length: it has room for any number of images.
        _write_header(content, (len(good) * rows, CHANNELS, *shape))
    return good, bad


def split_pixels(file: Path, parts: Mapping[Path, Sequence[int]], rows: int = 1) -> None:
    """Write images of an `.npy` file into several others, of which one may replace it.

    Args:
        file: The images.
        parts: The places of those that belong to each file.
        rows: How many rows are one image.
    """
    images = np.load(file, mmap_mode="r")
    images = images.reshape(-1, rows, *images.shape[1:])
    file.unlink()  # what is mapped stays readable
    _check_space(file, images.nbytes)
    for target, places in parts.items():
        with target.open("wb") as content:
            _write_header(content, (len(places) * rows, *images.shape[2:]))
            for place in places:
                content.write(images[place].tobytes())


def _check_space(target: Path, needed: int) -> None:
    """Refuse images that the disk has no space for, before they are decoded."""
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise StoreError(
            f"the {target.stem} images need {needed / MEGABYTE:,.1f} MB, and the disk of {target.parent.parent} has "
            f"{free / MEGABYTE:,.1f} MB left; free some space and run the same command again, or give --out a folder "
            "on a larger disk"
        )


def _write_header(content: IO[bytes], shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(content, {"descr": "|u1", "fortran_order": False, "shape": shape})


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, at any depth; hidden ones are skipped."""
    seen = {folder.resolve()}
    for parent, folders, names in os.walk(folder, followlinks=True):
        # A link may lead back to a folder that was seen already.
        folders[:] = [name for name in folders if not name.startswith(".") and Path(parent, name).resolve() not in seen]
        seen.update(Path(parent, name).resolve() for name in folders)
        yield from (Path(parent, name) for name in names if not name.startswith("."))
