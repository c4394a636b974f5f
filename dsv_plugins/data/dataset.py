"""The images of a study: prepared once in the run folder, then opened by every process that works on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from dsv_plugins.data.images import BadFile, ImageFile, survey, write_pixels
from dsv_plugins.data.sources import Source, image_files, pixels_of
from dsv_plugins.errors import InputError
from dsv_plugins.seeding import derived_seed
from dsv_plugins.store.artifacts import (
    ImageIndex,
    has_image_index,
    images_file,
    open_checked_images,
    read_image_index,
    write_image_index,
)
from dsv_plugins.store.folder import finished_folder
from dsv_plugins.store.trust import verify

__all__ = ["Dataset", "default_holdout", "open_dataset", "prepare"]

LEAST_IMAGES = 2
LEAST_HELD_OUT, USUAL_HELD_OUT, MOST_HELD_OUT = 5, 19, 100
"""Fewer than 5 good images decide nothing; 19 are enough for one false alarm in 20; more than 100 are a waste."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Train and test images, sorted by the hash of their content, without their file names.

    Attributes:
        train: Normal images to train on, uint8.
        test: Unlabelled images, uint8.
        holdout: Normal images kept out of training; None if there are none.
        fingerprint: A hash of everything above.
    """

    train: Tensor
    test: Tensor
    holdout: Tensor | None
    fingerprint: str


def prepare(
    train: Source,
    test: Source,
    folder: Path,
    *,
    size: int,
    holdout: float | None = 0.0,
    seed: int = 0,
    skip_bad: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Sequence[BadFile]:
    """Write the images of a study into `folder`, unless the same ones are there already.

    Args:
        train: Normal images: a folder, a pattern, a list of paths, a file with such a list, a dataset of torch, or a
            uint8 tensor of shape (images, channels, height, width).
        test: Unlabelled images, likewise.
        folder: Where the arrays and their index go.
        size: Height and width to which images from files are resized.
        holdout: Share of the train images to keep out of training; None for as many as `default_holdout` says.
        seed: Which of them these are.
        skip_bad: Leave out files that cannot be read, and test images that are train images too, instead of stopping.
        progress: Called with the name of the set, the images decoded and the images there are.
        note: Called with a line about each file that was read with doubts.

    Returns:
        The files that were left out.
    """
    train, test = (
        pixels_of(source, size, name) if isinstance(source, TorchDataset) else source
        for name, source in (("train", train), ("test", test))
    )
    listed: dict[str, list[ImageFile]] = {}
    bad: list[BadFile] = []
    for name, source in (("train", train), ("test", test)):
        listed[name], unreadable = _listed(source, name)
        bad += unreadable
    listed["test"], shared = _without_overlap(listed["train"], listed["test"])
    bad += shared
    if bad and not skip_bad:
        raise InputError(_stop_at(bad))
    listed["train"], held_out = _split(listed["train"], holdout, seed)
    if held_out:
        listed["holdout"] = held_out
    fingerprint = _fingerprint(size, listed)
    index = _usable_index(folder, fingerprint)
    if index is not None:
        return list(dict.fromkeys([*(BadFile(Path(file), reason) for file, reason in index.bad), *bad]))

    with finished_folder(folder) as partial:
        kept = {}
        for name, files in listed.items():
            source, target = (test if name == "test" else train), images_file(partial, name)
            if isinstance(source, Tensor):
                np.save(target, source[[int(file.path.name) for file in files]].cpu().numpy())
                kept[name] = files
            else:
                report = None if progress is None else _named(progress, name)
                kept[name], unreadable = write_pixels(files, size, target, report, note)
                if unreadable and not skip_bad:
                    raise InputError(_stop_at(unreadable))
                bad += unreadable
            if len(kept[name]) < LEAST_IMAGES:
                where = f"the {name} tensor" if isinstance(source, Tensor) else source
                raise InputError(
                    f"{where} leaves {len(kept[name])} usable {name} images; selection needs {LEAST_IMAGES} or more"
                )
        files_by_set = {name: [str(file.path) for file in files] for name, files in kept.items()}
        left_out = [(str(file.path), file.reason) for file in bad]
        write_image_index(partial, ImageIndex(fingerprint, files_by_set, left_out))
    return bad


def open_dataset(folder: Path) -> Dataset:
    """The images that `prepare` wrote or checked, memory-mapped."""
    index = read_image_index(folder)
    # Copy-on-write, because torch warns about read-only memory; nothing writes to it.
    images = {name: torch.from_numpy(open_checked_images(folder, name)) for name in index.files}
    return Dataset(images["train"], images["test"], images.get("holdout"), index.fingerprint)


def _listed(source: Source, name: str) -> tuple[list[ImageFile], list[BadFile]]:
    """The images of a source ordered by the hash of their content, and files that cannot be read.

    The images of a tensor go by their index.
    """
    if not isinstance(source, Tensor):
        assert not isinstance(source, TorchDataset)
        return survey(image_files(source))
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


def _without_overlap(train: Sequence[ImageFile], test: Sequence[ImageFile]) -> tuple[list[ImageFile], list[BadFile]]:
    """The test images that are not train images too, and those that are."""
    train_paths = {file.digest: file.path for file in train}
    shared = [
        BadFile(file.path, f"is the same image as {train_paths[file.digest]}, a train image")
        for file in test
        if file.digest in train_paths
    ]
    return [file for file in test if file.digest not in train_paths], shared


def default_holdout(images: int) -> int:
    """How many of these train images are kept out of training if nobody says so: none if there are fewer than 15."""
    count = min(MOST_HELD_OUT, max(USUAL_HELD_OUT, images // 5), images // 3)
    return count if count >= LEAST_HELD_OUT else 0


def _split(train: list[ImageFile], holdout: float | None, seed: int) -> tuple[list[ImageFile], list[ImageFile]]:
    """The train images to train on, and a seeded share to hold out."""
    if holdout is not None and not 0 <= holdout < 1:
        raise InputError(f"holdout is {holdout}; give a share of the train images from 0 to below 1")
    count = default_holdout(len(train)) if holdout is None else round(holdout * len(train))
    if holdout:
        count = max(LEAST_IMAGES, count)
    if count == 0:
        return train, []
    generator = np.random.default_rng(derived_seed(seed, len(train)))
    chosen = set(generator.permutation(len(train))[:count].tolist())
    kept = [file for index, file in enumerate(train) if index not in chosen]
    return kept, [train[index] for index in sorted(chosen)]


def _fingerprint(size: int, listed: Mapping[str, Sequence[ImageFile]]) -> str:
    content = {"size": size, **{name: [file.digest for file in files] for name, files in listed.items()}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _usable_index(folder: Path, fingerprint: str) -> ImageIndex | None:
    if not has_image_index(folder) or verify(folder) is not None:
        return None
    index = read_image_index(folder)
    return index if index.fingerprint == fingerprint else None


def _stop_at(bad: Sequence[BadFile]) -> str:
    also = f", {bad[1].path} {bad[1].reason}" if len(bad) > 1 else ""
    more = f", and {len(bad) - 2} more" if len(bad) > 2 else ""
    them = "it" if len(bad) == 1 else "them"
    return f"{bad[0].path} {bad[0].reason}{also}{more}; remove {them}, or leave such files out with --skip-bad"


def _named(progress: Callable[[str, int, int], None], name: str) -> Callable[[int, int], None]:
    return lambda done, planned: progress(name, done, planned)
