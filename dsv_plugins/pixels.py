"""One image of any kind to pixels: eight bits, RGB, upright, at the size that a detector takes.

Whatever makes pixels for a study, `dsv score` or `Model.predict` does it here, so that an image has one score.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from dsv_plugins.errors import InputError, one_line, shown
from dsv_plugins.types import Levels, Size, height_and_width

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FORMATS",
    "SIXTEEN_BITS",
    "Note",
    "Pixels",
    "decode",
    "has_sixteen_bits",
    "is_turned",
    "pixels_of",
    "require_file",
    "resized_as_files",
    "why_unreadable",
]

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "JPEG2000", "PPM")
"""What is read, whatever a file is named: for others, such as EPS, Pillow would start another program."""
SIXTEEN_BITS = (0, 65_535)
SIXTEEN_BIT_COLOURS = "RGB;16"
"""What Pillow calls them in a file; it reads them as eight bits."""
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)
"""The tag of a photo that says how the camera was held, and its values if height and width are swapped."""
KINDS = (
    "give a path, a PIL image, a uint8 array of shape (height, width, 3) or a tensor of shape (3, height, width), or "
    "several of them"
)

LARGE = 64_000_000
"""Pixels of an image that takes some hundred MB while it is decoded: of these, one is decoded at a time."""
BYTES = 4
"""Of memory for each pixel of a colour image, as Pillow holds it."""
STRIP = 256
"""Rows at once whose sixteen bits become eight: numbers take several times the memory of the image meanwhile."""
_one_at_a_time = threading.Lock()
# In blocks as large as that, the memory of an image goes back to the system; the C library would keep smaller ones.
Image.core.set_block_size(64 << 20)  # type: ignore[attr-defined]

Note = Callable[[str], None]
"""Called with a line about what a user should know of a file that could be read."""
Pixels = NDArray[np.uint8]


def decode(
    file: Path | IO[bytes], size: Size | None, *, levels: Levels | None = None, note: Note | None = None
) -> Pixels:
    """Return one image as (channels, height, width), from any depth, colours and orientation.

    Args:
        file: The file, or its content.
        size: Height and width to which it is resized; None to leave it as large as it is.
        levels: The values of sixteen bits that become black and white; None for the lowest and the highest.
        note: Called with what is in the file and is not read.

    Raises:
        InputError: The file is no image of a format that is read, or is damaged.
    """
    name = file if isinstance(file, Path) else "the image"
    try:
        if isinstance(file, Path):
            require_file(file)
        with Image.open(file, formats=FORMATS) as image, _alone(image), closing(image):
            if note is not None:
                _tell(image, note)
            return _pixels(image, size, levels)
    # Pillow raises SyntaxError, ValueError, EOFError and others on damaged files, depending on where the damage is.
    except Exception as error:
        raise InputError(f"{name} cannot be read as an image ({why_unreadable(error)})") from error


def pixels_of(images: object, size: Size, levels: Levels | None = None) -> Tensor:
    """Return images as a study would have them if they were files: uint8, (images, channels, height, width).

    Args:
        images: A path, a PIL image, an array, a tensor of one image or of several, or a sequence of these.
        size: Height and width.
        levels: As for `decode`.

    Raises:
        InputError: Something else is among them.
    """
    import torch

    if isinstance(images, torch.Tensor):
        return resized_as_files(images if images.ndim == 4 else images[None], size)
    if isinstance(images, np.ndarray) and images.ndim == 4:
        images = list(images)
    several = images if isinstance(images, (list, tuple)) else [images]
    if not several:
        raise InputError(f"there are no images; {KINDS}")
    rows = []
    for place, image in enumerate(several):
        if isinstance(image, torch.Tensor):
            rows.append(resized_as_files(image[None], size)[0].expand(3, -1, -1))
            continue
        try:
            rows.append(torch.from_numpy(_one(image, size, levels).copy()))
        except (TypeError, ValueError) as error:
            raise InputError(f"image {place} cannot be judged ({one_line(str(error))}); {KINDS}") from error
    return torch.stack(rows)


def _one(image: object, size: Size, levels: Levels | None) -> Pixels:
    if isinstance(image, (str, os.PathLike)):
        return decode(Path(image), size, levels=levels)
    if isinstance(image, Image.Image):
        return _pixels(image, size, levels)
    if isinstance(image, np.ndarray):
        is_grey, is_colour = image.ndim == 2, image.ndim == 3 and image.shape[2] in (3, 4)
        if (image.dtype == np.uint8 and (is_grey or is_colour)) or (image.dtype == np.uint16 and is_grey):
            return _pixels(Image.fromarray(np.ascontiguousarray(image)), size, levels)
        raise TypeError(f"a {image.dtype} array of shape {image.shape}")
    raise TypeError(shown(image))


def resized_as_files(images: Tensor, size: Size) -> Tensor:
    """Return a tensor of images as eight bits and at a size, both made as when a file is read.

    Args:
        images: (images, channels, height, width), as uint8 or from 0 to 1.
        size: Height and width.

    Raises:
        InputError: They are of another shape, or have other values.
    """
    import torch

    from dsv_plugins.transforms import check_pixels

    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise InputError(f"the images are a tensor of shape {tuple(images.shape)}; {KINDS}")
    check_pixels(images)
    images = images.detach().cpu()
    if images.is_floating_point():
        images = (images * 255).round().clamp(0, 255)
    images, (height, width) = images.to(torch.uint8), height_and_width(size)
    if images.shape[-2:] == (height, width):
        return images
    planes = [np.asarray(_resized(Image.fromarray(plane), height, width)) for plane in images.flatten(0, 1).numpy()]
    return torch.from_numpy(np.stack(planes)).view(*images.shape[:2], height, width)


def require_file(path: Path) -> None:
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


def is_turned(image: Image.Image) -> bool:
    """Return whether height and width are swapped when the image is shown as the camera was held."""
    return image.getexif().get(ORIENTATION, 1) in TURNED


def why_unreadable(error: Exception) -> str:
    """Return why a file cannot be read."""
    if isinstance(error, UnidentifiedImageError):
        return f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file, or a damaged one"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; cut it into parts, or scale it down"
    return one_line(getattr(error, "strerror", None) or str(error)) or type(error).__name__


def _tell(image: Image.Image, note: Note) -> None:
    # The second image of a photo (MPO) is a preview or a depth map, which nobody misses.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        note("it has several pages or frames, and only the first is read")
    if _is_large(image):
        pixels = image.width * image.height
        note(f"it has {pixels:,} pixels, and takes up to {pixels * BYTES / 1e9:.1f} GB of memory while it is read")
    if any(SIXTEEN_BIT_COLOURS in str(tile[3]) for tile in getattr(image, "tile", ())):
        note("it has 16 bits for each colour, of which the upper 8 are read; save it with 8, or as grey")


def _pixels(image: Image.Image, size: Size | None, levels: Levels | None) -> Pixels:
    upright = ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image
    made = _in_eight_bits(upright, levels or SIXTEEN_BITS)
    if size is not None:
        made = _resized(made, *height_and_width(size))
    if made.mode == "L":  # grey becomes colour when it is small: the pixels are the same
        made = made.convert("RGB")
    pixels: Pixels = np.asarray(made).transpose(2, 0, 1)
    return pixels


def _resized(image: Image.Image, height: int, width: int) -> Image.Image:
    """Return an image at a size. Rows come first: Pillow 13 takes the columns of some images first, others never do.

    Each pass rounds to eight bits, so that the order can be seen in the score; exported files have this one.
    """
    return image.resize((width, image.height), Image.Resampling.BILINEAR).resize(
        (width, height), Image.Resampling.BILINEAR
    )


def _in_eight_bits(image: Image.Image, levels: Levels) -> Image.Image:
    """Return eight bits, grey or RGB. Sixteen are scaled down; transparency is dropped, as anomalib drops it."""
    if has_sixteen_bits(image):
        black, white = levels
        values = np.asarray(image)
        made = np.empty(values.shape, np.uint8)
        for start in range(0, len(values), STRIP):
            strip = values[start : start + STRIP].astype(np.int64).clip(black, white) - black
            made[start : start + STRIP] = strip * 255 // (white - black)
        return Image.fromarray(made)
    if image.mode == "F":
        raise ValueError("it has floating-point pixels, whose scale is unknown; save it with 8 or 16 bits")
    if image.mode in ("RGB", "L"):
        return image  # `convert` would copy it
    return image.convert("RGBA").convert("RGB") if image.mode == "P" else image.convert("RGB")


def _is_large(image: Image.Image) -> bool:
    return image.width * image.height > LARGE


def _alone(image: Image.Image) -> AbstractContextManager[object]:
    """Return what keeps two large images from being in memory at once."""
    return _one_at_a_time if _is_large(image) else nullcontext()


def has_sixteen_bits(image: Image.Image) -> bool:
    """Return whether an image is grey with sixteen bits."""
    return image.mode.startswith("I")
