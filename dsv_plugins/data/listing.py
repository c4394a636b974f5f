"""Which images a study has: the files of its sources, and a hash of them all; and which of them are held out.

Torch is not needed for that, so that a study can find out quickly that its images have not changed.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv_plugins.calibration import images_to_keep_out
from dsv_plugins.data.images import IMAGE_SUFFIXES, BadFile, ImageFile, Survey, find_images
from dsv_plugins.errors import InputError, describe_error, shortened, shown
from dsv_plugins.pixels import Note
from dsv_plugins.seeding import derived_seed
from dsv_plugins.types import Size

__all__ = ["Listing", "copies_note", "grouped", "image_files", "list_images", "split", "stop_at"]

LISTS = (".txt", ".csv")
PATH_COLUMNS = ("path", "file", "image", "filename", "image_path")
"""The columns of a CSV file in which the paths may be."""
SPLIT_RULE = "copies and near-copies on one side"
"""How images are held out: another rule is another split, of which nothing may be reused."""
SUSPECTS_RULE = "suspects are left out"
EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a study.

    Attributes:
        files: Those of each source, train and test, ordered by the hash of their content.
        bad: The files that are left out.
        fingerprint: A hash of the content, the order and the size of all images, and of how they are split.
    """

    files: Mapping[str, Sequence[ImageFile]]
    bad: Sequence[BadFile]
    fingerprint: str


def list_images(
    train: Survey,
    test: Survey,
    *,
    size: Size,
    holdout: float | None,
    seed: int,
    skip_bad: bool,
    drop_suspects: float | None = None,
) -> Listing:
    """Return which images a study has.

    Args:
        train: The normal images that were found.
        test: The unlabelled images that were found.
        size: Height and width to which images are resized.
        holdout: Share of the train images to hold out; None for as many as `images_to_keep_out` says.
        seed: Which of them these are.
        skip_bad: Leave out files that cannot be read, and test images that are train images too, instead of stopping.
        drop_suspects: The share of the train images that may be left out as suspects; None for none.

    Raises:
        InputError: There are such files.
    """
    (trained, unreadable), (tested, unreadable_tests) = train, test
    kept, shared = _without_overlap(trained, tested)
    bad = [*unreadable, *unreadable_tests, *shared]
    if bad and not skip_bad:
        raise InputError(stop_at(bad))
    files = {"train": trained, "test": kept}
    rule = [SPLIT_RULE, holdout, seed] if holdout != 0 else []
    rule += [] if drop_suspects is None else [SUSPECTS_RULE, drop_suspects]
    content = {"size": size, "split": rule, **{name: [file.digest for file in files[name]] for name in files}}
    fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return Listing(files, bad, fingerprint)


def image_files(source: Path | str | Sequence[Path | str], note: Note | None = None) -> list[Path]:
    """Return the files of a source, in the order of their names.

    Args:
        source: A folder, a pattern, a list of paths or a file with such a list.
        note: Called with how many files of a folder are no images.

    Raises:
        InputError: There are none, or the source is nothing that we know.
    """
    if isinstance(source, (Path, str)):
        path = Path(source)
        if path.is_dir():
            return find_images(path, note)
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


def stop_at(bad: Sequence[BadFile]) -> str:
    """Return what is wrong with these files, in one line."""
    also = f", {bad[1].path} {bad[1].reason}" if len(bad) > 1 else ""
    more = f", and {len(bad) - 2} more" if len(bad) > 2 else ""
    them = "it" if len(bad) == 1 else "them"
    advice = f"remove {them}, or leave such files out with --skip-bad (skip_bad=True)"
    return f"{bad[0].path} {bad[0].reason}{also}{more}; {advice}"


def _without_overlap(train: Sequence[ImageFile], test: Sequence[ImageFile]) -> tuple[list[ImageFile], list[BadFile]]:
    """Return the test images that are not train images too, and the others."""
    known = {file.digest: file.path for file in train}
    shared = [file for file in test if file.digest in known]
    reasons = [BadFile(file.path, f"is the same image as {known[file.digest]}, a train image") for file in shared]
    return [file for file in test if file.digest not in known], reasons


def grouped(files: Sequence[ImageFile], near: Sequence[int]) -> list[list[int]]:
    """Return the places of the files in groups, each of one photo: equal files, and those that share a number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first: dict[str | int, int] = {}
    links = [
        (place, first.setdefault(key, place))
        for place, (file, number) in enumerate(zip(files, near, strict=True))
        for key in (file.digest, int(number))
    ]
    graph = coo_array((np.ones(len(links)), np.transpose(links)), shape=(len(files), len(files)))
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(connected_components(graph, directed=False)[1].tolist()):
        groups.setdefault(group, []).append(place)
    return list(groups.values())


def split(groups: Sequence[Sequence[int]], holdout: float | None, seed: int) -> tuple[list[int], list[int]]:
    """Return the places of the train images to train on, and of a seeded share of the others.

    No photo has copies in both. Of a held-out photo with copies only one is taken: as many scores of one photo would
    promise more than they know.
    """
    count = min(images_to_keep_out(len(groups), holdout), len(groups) - 1)  # all may be copies of one photo
    generator = np.random.default_rng(derived_seed(seed, len(groups)))
    chosen = set(generator.permutation(len(groups))[:count].tolist())
    kept = sorted(place for index, group in enumerate(groups) if index not in chosen for place in group)
    return kept, [groups[index][0] for index in sorted(chosen)]


def copies_note(files: Sequence[ImageFile], groups: Sequence[Sequence[int]]) -> str | None:
    """Return a line about good images that are copies of each other, with examples; None if there are none."""
    equal, near = [], []
    for group in groups:
        known: dict[str, ImageFile] = {}
        for file in (files[place] for place in group):
            if file.digest in known:
                equal.append((known[file.digest], file))
            elif known:
                near.append((next(iter(known.values())), file))
            known.setdefault(file.digest, file)
    found = [
        f"{len(pairs)} of the {len(files)} good images are {what}, such as "
        + " and ".join(f"{second.path} of {first.path}" for first, second in pairs[:EXAMPLES])
        for pairs, what in ((equal, "copies of others"), (near, "nearly the same photo as others"))
        if pairs
    ]
    return f"{'; '.join(found)}; copies are held out together, and then count as one" if found else None


def _listed_in(file: Path) -> list[Path]:
    """Return the paths in a text file, one in each line, or in a column of a CSV file, relative to the file."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the list {file} cannot be read ({describe_error(error)}); give a text file of paths"
        ) from error
    lines = text.splitlines()
    if file.suffix.lower() == ".csv":
        try:
            rows = list(csv.DictReader(lines))
        except csv.Error as error:
            raise InputError(f"the list {file} cannot be read ({error}); give one path in each row") from error
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
    """Return the paths, once each; a folder among them stands for its images."""
    files: dict[Path, None] = {}
    for path in paths:
        if os.path.isdir(path):  # unlike `path.is_dir`, it takes a path that is too long for one that is not there
            files.update(dict.fromkeys(find_images(path)))
        else:  # a file that cannot be read is named with the others, or left out with --skip-bad
            files[path] = None
    missing = [path for path in files if not os.path.lexists(path)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"{where} names {shortened(str(missing[0]))}{more}, which is not there; check the paths")
    return list(files)
