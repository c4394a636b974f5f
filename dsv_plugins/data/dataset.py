"""The images of a study: prepared once in the run folder, then opened by every process that works on it."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from dsv_plugins.data.images import (
    BadFile,
    ImageFile,
    Survey,
    levels_of,
    median_size,
    split_pixels,
    survey,
    write_pixels,
)
from dsv_plugins.data.listing import copies_note, grouped, image_files, list_images, split, stop_at
from dsv_plugins.data.near_copies import near_copies
from dsv_plugins.data.sources import Source, pixels_of
from dsv_plugins.errors import InputError
from dsv_plugins.run.artifacts import (
    has_image_index,
    images_file,
    open_checked_images,
    read_image_index,
    write_image_index,
)
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import finished_folder
from dsv_plugins.run.records import ImageIndex
from dsv_plugins.run.tiles import Loading, Tiles
from dsv_plugins.types import Levels, size_of_same_aspect

__all__ = ["Dataset", "open_dataset", "prepare"]

LEAST_IMAGES = 2
SUSPECT = "it looks so unlike the other good images that it may be defective"


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Train and test images, sorted by the hash of their content, without their file names.

    If images are cut into tiles, these are the rows: those of an image after each other.

    Attributes:
        train: Normal images to train on, uint8.
        test: Unlabelled images, uint8.
        holdout: Held-out normal images, each another photo; None if there are none.
        pseudo: A pseudo-anomaly of each of these; None if there are none.
        fingerprint: A hash of everything above.
        trained_on: The beginning of the hash of each train image.
        levels: The values of sixteen bits that became black and white; None for the lowest and the highest.
        loading: How they were loaded; None if that is not known.
    """

    train: Tensor
    test: Tensor
    holdout: Tensor | None
    pseudo: Tensor | None
    fingerprint: str
    trained_on: Sequence[str] = ()
    levels: Levels | None = None
    loading: Loading | None = None

    @property
    def tiles(self) -> Tiles | None:
        """The tiles into which each image is cut; None if they are whole."""
        return self.loading.tiles if self.loading else None


def prepare(
    train: Source,
    test: Source | None,
    folder: Path,
    *,
    size: int,
    keeps_aspect: bool = False,
    tile: int | None = None,
    overlap: float = 0.0,
    holdout: float | None = 0.0,
    seed: int = 0,
    skip_bad: bool = False,
    drop_suspects: float | None = None,
    find_suspects: Callable[[Tensor, int], Sequence[int]] | None = None,
    make_pseudo: Callable[[Tensor], Tensor] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Sequence[BadFile]:
    """Write the images of a study into `folder`, unless the same ones are there already.

    Args:
        train: Normal images: a folder, a pattern, a list of paths, a file with such a list, a dataset of torch, or a
            uint8 tensor of shape (images, channels, height, width).
        test: Unlabelled images, likewise; if None, the held-out images stand in for them, if there are to be any.
        folder: Where the arrays and their index go.
        size: Height and width to which images from files are resized.
        keeps_aspect: Keep the aspect that most train images have, and the area of a square of that size.
        tile: Cut images into tiles with sides of so many pixels, which are resized to that size; None to leave them
            whole.
        overlap: The part of its side that a tile shares with the next.
        holdout: Share of the train images to hold out; None for as many as `images_to_keep_out` says.
        seed: Which of them these are.
        skip_bad: Leave out files that cannot be read, and test images that are train images too, instead of stopping.
        drop_suspects: The share of the train images that may be left out as suspects; None for none.
        find_suspects: Returns the places of the suspects among images, of which each has some rows.
        make_pseudo: Makes a pseudo-anomaly of each held-out image; None for none.
        progress: Called with the name of the set, the images decoded and the images there are.
        note: Called with a line about copies, and about each file of which a user should know something.

    Returns:
        The files that were left out.
    """
    if isinstance(train, TorchDataset):
        train = pixels_of(train, size, "train")
    if isinstance(test, TorchDataset):
        test = pixels_of(test, size, "test")
    found = _found(train, "train", note), ([], []) if test is None else _found(test, "test", note)
    has_files = not isinstance(train, Tensor)
    if tile is not None and (not has_files or isinstance(test, Tensor)):
        raise InputError("tiles are cut from image files; give folders, or cut the images beforehand")
    own = median_size([file.path for file in found[0][0]]) if has_files else None
    loading = _loading(own, size, keeps_aspect=keeps_aspect, tile=tile, overlap=overlap)
    listing = list_images(
        *found, size=loading.size, holdout=holdout, seed=seed, skip_bad=skip_bad, drop_suspects=drop_suspects
    )
    bad = list(listing.bad)
    index = _usable_index(folder, listing.fingerprint)
    if index is not None:
        return list(dict.fromkeys([*(BadFile(Path(file), reason) for file, reason in index.bad), *bad]))
    levels = None if isinstance(train, Tensor) else levels_of([file.path for file in listing.files["train"]])
    if note is not None and levels is not None:
        note(f"images of 16 bits are read from {levels[0]:,} to {levels[1]:,}: the range of the train images, and more")

    with finished_folder(folder) as partial:
        kept = {}
        for name, files in listing.files.items():
            if name == "test" and test is None:
                continue
            source, target = (test if name == "test" else train), images_file(partial, name)
            assert source is not None
            assert not isinstance(source, TorchDataset)
            if isinstance(source, Tensor):
                np.save(target, source[[int(file.path.name) for file in files]].cpu().numpy())
                kept[name] = files
            else:
                report = None if progress is None else functools.partial(progress, name)
                kept[name], unreadable = write_pixels(files, loading, target, report, note, levels=levels)
                if unreadable and not skip_bad:
                    raise InputError(stop_at(unreadable))
                bad += unreadable
        if find_suspects is not None:
            good, file, rows = kept["train"], images_file(partial, "train"), loading.tiles.count if loading.tiles else 1
            suspicious = set(find_suspects(torch.from_numpy(np.load(file, mmap_mode="c")), rows))
            bad += [BadFile(good[place].path, SUSPECT) for place in sorted(suspicious)]
            places = [place for place in range(len(good)) if place not in suspicious]
            split_pixels(file, {file: places}, rows=rows)
            kept["train"] = [good[place] for place in places]
        if holdout != 0:
            good, file = kept["train"], images_file(partial, "train")
            groups = grouped(good, near_copies(np.load(file, mmap_mode="r"), loading.tiles).tolist())
            copies = copies_note(good, groups)
            if note is not None and copies is not None:
                note(copies)
            parts = dict(zip(("train", "holdout"), split(groups, holdout, seed), strict=True))
            if parts["holdout"]:
                targets = {images_file(partial, name): places for name, places in parts.items()}
                split_pixels(file, targets, rows=loading.tiles.count if loading.tiles else 1)
                kept |= {name: [good[place] for place in places] for name, places in parts.items()}
        if test is None and holdout != 0:
            if "holdout" not in kept:
                raise InputError(
                    f"{len(kept['train'])} good images leave none to hold out, which could stand in for test images; "
                    "give test images, or more good ones"
                )
            kept["test"] = kept["holdout"]
            shutil.copyfile(images_file(partial, "holdout"), images_file(partial, "test"))
        for name in kept:
            if len(kept[name]) < LEAST_IMAGES:
                source = test if name == "test" else train
                where = f"the {name} tensor" if isinstance(source, Tensor) else source
                raise InputError(
                    f"{where} leaves {len(kept[name])} usable {name} images; selection needs {LEAST_IMAGES} or more"
                )
        if "holdout" in kept and make_pseudo is not None:
            held_out = torch.from_numpy(open_checked_images(partial, "holdout"))
            np.save(images_file(partial, "pseudo"), make_pseudo(held_out).numpy())
            kept["pseudo"] = kept["holdout"]
        files_by_set = {name: [str(file.path) for file in files] for name, files in kept.items()}
        left_out = [(str(file.path), file.reason) for file in bad]
        trained_on = [file.short_digest for file in kept["train"]]
        write_image_index(partial, ImageIndex(listing.fingerprint, files_by_set, left_out, trained_on, levels, loading))
    return bad


def open_dataset(folder: Path) -> Dataset:
    """Open the images that `prepare` wrote or checked, memory-mapped."""
    index = read_image_index(folder)
    # Copy-on-write, because torch warns about read-only memory; nothing writes to it.
    images = {name: torch.from_numpy(open_checked_images(folder, name)) for name in index.files}
    held_out, pseudo = images.get("holdout"), images.get("pseudo")
    known = (index.fingerprint, index.trained_on, index.levels, index.loading)
    return Dataset(images["train"], images["test"], held_out, pseudo, *known)


def _loading(
    own: tuple[int, int] | None, size: int, *, keeps_aspect: bool, tile: int | None, overlap: float
) -> Loading:
    """Return how to load images most of which have the size `own`."""
    if own is None:  # all are tensors, or cannot be read
        return Loading(size)
    if tile is None:
        return Loading(size_of_same_aspect(own[0] / own[1], 1, size) if keeps_aspect else size, own)
    if min(own) < tile:
        raise InputError(f"the images are {own[1]} × {own[0]} pixels; give a --tile of at most {min(own)} (tile=…)")
    height, width = (length * size / tile for length in own)
    tiles = Tiles.over(height, width, size, overlap)
    return Loading(tiles.canvas, own, tiles)


def _found(source: Source, name: str, note: Callable[[str], None] | None) -> Survey:
    """Return the images of a source ordered by the hash of their content; those of a tensor go by their index."""
    if not isinstance(source, Tensor):
        assert not isinstance(source, TorchDataset)
        return survey(image_files(source, note))
    if source.dtype != torch.uint8 or source.ndim != 4:
        raise InputError(
            f"the {name} images are a {source.dtype} tensor of shape {tuple(source.shape)}; "
            "give uint8 and (images, channels, height, width)"
        )
    files = [
        ImageFile(Path(name, str(index)), hashlib.sha256(image.contiguous().cpu().numpy()).hexdigest())
        for index, image in enumerate(source)
    ]
    return sorted(files, key=lambda file: (file.digest, file.path)), []


def _usable_index(folder: Path, fingerprint: str) -> ImageIndex | None:
    if not has_image_index(folder) or verify(folder) is not None:
        return None
    index = read_image_index(folder)
    return index if index.fingerprint == fingerprint else None
