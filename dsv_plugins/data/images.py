"""Image files to arrays of shape (images, channels, height, width), with errors that name the file.

Pixels are held as uint8 in a memory-mapped array on disk: a set may be larger than memory, and worker processes share
one copy. Images are ordered by a hash of their content, so that neither names nor folders, which may carry labels, can
reach what is computed from them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from dsv_plugins.data.image_warnings import collecting_warnings, warnings_of_pillow
from dsv_plugins.errors import InputError, StoreError, one_line
from dsv_plugins.run.folder import checksum
from dsv_plugins.types import Size, height_and_width

__all__ = [
    "FORMATS",
    "IMAGE_SUFFIXES",
    "BadFile",
    "ImageFile",
    "Survey",
    "decode",
    "decode_all",
    "find_images",
    "median_aspect",
    "split_folder",
    "survey",
    "write_pixels",
]

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")
"""What is read, whatever a file is named: for others, such as EPS, Pillow would start another program."""
CHANNELS = 3
MEGABYTE = 1_000_000
SIXTEEN_TO_EIGHT_BITS = 257
DRAFT = 2
"""A JPEG is decoded at no less than so many times the size that is needed: the resizing still does the smoothing."""
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)
"""The tag of a photo that says how the camera was held, and its values if height and width are swapped."""
AHEAD = 32
"""Images that each thread may decode before they are needed."""

DecodeProgress = Callable[[int, int], None]
"""Called while images are decoded, with the images done and the images there are."""
Note = Callable[[str], None]
"""Called with a line about what a user should know of a file that could be read."""
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file and the hash of its content."""

    path: Path
    digest: str


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


def find_images(folder: Path) -> list[Path]:
    """Return every image below a folder, at any depth, in the order of their names; hidden files are skipped."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give a folder of images")
    files = list(_walk(folder))
    images = sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        kinds = ", ".join(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES))
        others = f"; the {len(files)} files in it, such as {files[0].name}, are of other kinds" if files else ""
        raise InputError(f"{folder} holds no images{others}; give a folder with files of kind {kinds}")
    return images


def survey(paths: Sequence[Path]) -> Survey:
    """Return the files with the hashes of their content, ordered by hash, and those that cannot be read."""

    def digested(path: Path) -> ImageFile | BadFile:
        try:
            _require_file(path)
            return ImageFile(path, checksum(path))
        except OSError as error:
            return BadFile(path, f"cannot be read ({_reason(error)})")

    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(digested, paths))
    files = [outcome for outcome in outcomes if isinstance(outcome, ImageFile)]
    bad = [outcome for outcome in outcomes if isinstance(outcome, BadFile)]
    return sorted(files, key=lambda file: (file.digest, file.path)), bad


def median_aspect(paths: Sequence[Path]) -> float:
    """Return the median of height / width of images, from their headers; files that cannot be read are left out."""
    aspects = [aspect for aspect in map(_aspect, paths) if aspect is not None]
    return float(np.median(aspects)) if aspects else 1.0


def _aspect(path: Path) -> float | None:
    try:
        _require_file(path)
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            return float(width / height if _is_turned(image) else height / width)
    except Exception:  # what is wrong with it is said when it is decoded
        return None


def decode(path: Path, size: Size | None, note: Note | None = None) -> Pixels:
    """Return one image as (channels, height, width), from any depth, colours and orientation.

    Args:
        path: The file.
        size: Height and width to which it is resized; None to leave it as large as it is.
        note: Called if the file has more images than the one that is read.

    Raises:
        InputError: The file is no image of a format that is read, or is damaged.
    """
    try:
        _require_file(path)
        with Image.open(path, formats=FORMATS) as image:
            # The second image of a photo (MPO) is a preview or a depth map, which nobody misses.
            if note is not None and image.format != "MPO" and getattr(image, "is_animated", False):
                note("it has several pages or frames, and only the first is read")
            if size is None:
                resized = _as_rgb(ImageOps.exif_transpose(image))
            else:
                height, width = height_and_width(size)
                resized = _as_rgb(_upright(image, height, width)).resize((width, height), Image.Resampling.BILINEAR)
    # Pillow raises SyntaxError, ValueError, EOFError and others on damaged files, depending on where the damage is.
    except Exception as error:
        raise InputError(f"{path} cannot be read as an image ({_reason(error)})") from error
    pixels: Pixels = np.asarray(resized).transpose(2, 0, 1)
    return pixels


def decode_all(
    paths: Sequence[Path], size: Size, note: Note | None = None
) -> Iterator[tuple[Path, Pixels | InputError]]:
    """Yield each image or what is wrong with it, in order. Others are decoded meanwhile, but no more than some.

    Args:
        paths: The files.
        size: Height and width.
        note: Called with what a user should know of a file, such as what Pillow warns of.
    """

    def attempt(path: Path) -> tuple[Pixels | InputError, list[str]]:
        with warnings_of_pillow() as messages:
            try:
                return decode(path, size, messages.append), messages
            except InputError as error:
                return error, []

    workers, coming = os.cpu_count() or 1, iter(paths)
    with collecting_warnings(), ThreadPoolExecutor(workers) as pool:
        try:
            waiting = deque((path, pool.submit(attempt, path)) for path in itertools.islice(coming, AHEAD * workers))
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


def write_pixels(
    files: Sequence[ImageFile],
    size: Size,
    target: Path,
    progress: DecodeProgress | None = None,
    note: Note | None = None,
) -> tuple[list[ImageFile], list[BadFile]]:
    """Decode images, in parallel, into an `.npy` file; return the good files and the bad ones.

    Nothing larger than a few images is held in memory.

    Raises:
        StoreError: The disk has too little space for them.
    """
    good: list[ImageFile] = []
    bad: list[BadFile] = []
    shape = (CHANNELS, *height_and_width(size))
    _check_space(target, len(files) * int(np.prod(shape)))
    with target.open("wb") as content:
        _write_header(content, (len(files), *shape))
        decoded = decode_all([file.path for file in files], size, note)
        for index, (file, (_, outcome)) in enumerate(zip(files, decoded, strict=True)):
            if isinstance(outcome, InputError):
                bad.append(BadFile(file.path, str(outcome).removeprefix(f"{file.path} ")))
            else:
                content.write(outcome.tobytes())
                good.append(file)
            if progress is not None:
                progress(index + 1, len(files))
        content.seek(0)
        _write_header(content, (len(good), *shape))  # of the same length: it has room for any number of images
    return good, bad


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


def _walk(folder: Path) -> Iterator[Path]:
    seen = {folder.resolve()}
    for parent, folders, names in os.walk(folder, followlinks=True):
        # A link may lead back to a folder that was seen already.
        folders[:] = [name for name in folders if not name.startswith(".") and Path(parent, name).resolve() not in seen]
        seen.update(Path(parent, name).resolve() for name in folders)
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _require_file(path: Path) -> None:
    """Refuse what would never end, such as a pipe or a link to a device, and say what is wrong with a link.

    Raises:
        OSError: It cannot be read as a file.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(f"it is a link to {os.readlink(path)}, which is not there") from None
        raise
    if not stat.S_ISREG(mode):
        raise OSError("it is a folder, a pipe, a socket or a device")


def _upright(image: Image.Image, height: int, width: int) -> Image.Image:
    """Return the decoded image as the camera was held.

    A JPEG is decoded at a half, a quarter or an eighth if that is enough, which is far faster. It is resized before it
    is turned: its decoded pixels may reach beyond the picture by a part of a pixel, and Pillow says how far.
    """
    if _is_turned(image):
        height, width = width, height
    drafted = image.draft(None, (DRAFT * width, DRAFT * height))
    image.load()
    if drafted is not None:
        image = image.resize((width, height), Image.Resampling.BILINEAR, box=drafted[1])
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _is_turned(image: Image.Image) -> bool:
    """Return whether height and width are swapped when the image is shown as the camera was held."""
    return image.getexif().get(ORIENTATION, 1) in TURNED


def _as_rgb(image: Image.Image) -> Image.Image:
    """Return eight-bit RGB. Sixteen bits are scaled down; transparency is dropped, as anomalib drops it."""
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray((values.clip(0, 65535) // SIXTEEN_TO_EIGHT_BITS).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("it has floating-point pixels, whose scale is unknown; save it with 8 or 16 bits")
    if image.mode == "RGB":
        return image  # `convert` would copy it
    return image.convert("RGBA").convert("RGB") if image.mode == "P" else image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file, or a damaged one"
    return one_line(getattr(error, "strerror", None) or str(error)) or type(error).__name__
