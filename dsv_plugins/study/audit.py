"""What is wrong with images, before the training: copies, sizes, light, and good images that may be defective."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dsv_plugins.data.dataset import prepare
from dsv_plugins.data.images import median_size, own_sizes, survey
from dsv_plugins.data.listing import copies_note, grouped, image_files
from dsv_plugins.data.near_copies import near_copies
from dsv_plugins.data.shift import shift_warning
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.run.artifacts import open_images, read_image_index
from dsv_plugins.training.suspects import suspects, unlikeness_of_images

__all__ = ["Audit", "Unlike", "audit"]

MOST_SIZE = 256
"""At which images are compared, as the default detector sees them."""
LISTED = 10

Files = Path | str | Sequence[Path | str]


@dataclass(frozen=True, slots=True)
class Unlike:
    """A good image, and how far its score lies above the median, in robust deviations."""

    file: str
    unlikeness: float
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Attributes:
        images: The number of images of each set.
        sizes: How many images have each size, as "width × height", the most frequent first.
        left_out: Files that cannot be read, and test images that are train images, each with the reason.
        warnings: Lines about copies and about the light.
        unlike: The good images that are most unlike the others: all suspects, and at least ten.
    """

    images: dict[str, int]
    sizes: dict[str, int]
    left_out: list[str]
    warnings: list[str]
    unlike: list[Unlike]

    def lines(self) -> list[str]:
        """Return it in words."""
        counted = " and ".join(f"{count} {name} images" for name, count in self.images.items())
        sizes = ", ".join(f"{size} ({count})" for size, count in self.sizes.items())
        found = sum(each.is_suspect for each in self.unlike)
        listed = [
            f"{each.unlikeness:8.1f}  {each.file}{'  suspect' if each.is_suspect else ''}" for each in self.unlike
        ]
        return [
            f"{counted}; pixels: {sizes}",
            *(f"left out: {line}" for line in self.left_out),
            *self.warnings,
            f"suspects among the good images: {found}. Those most unlike the others, in deviations:",
            *listed,
        ]


def audit(train: Files, test: Files | None, registry: Registry, note: Callable[[str], None] | None = None) -> Audit:
    """Look at images as a study would get them. Nothing is written but into a temporary folder.

    Args:
        train: Good images: a folder, a pattern, a list of paths, or a file with such a list.
        test: Unlabelled images, likewise; None for none.
        registry: Where the detector that compares images is found.
        note: Called with a line about each file of which a user should know something.
    """
    with tempfile.TemporaryDirectory(prefix="dsv-audit-") as temporary:
        folder = Path(temporary, "images")
        own = median_size(image_files(train)) or (MOST_SIZE, MOST_SIZE)
        size = min(MOST_SIZE, round(math.sqrt(math.prod(own))))  # larger images show nothing more
        bad = prepare(train, test, folder, size=size, keeps_aspect=True, holdout=0, skip_bad=True, note=note)
        files = read_image_index(folder).files
        pixels = {name: torch.from_numpy(np.array(open_images(folder, name))) for name in files}
        found = unlikeness_of_images(registry, pixels["train"])
        good = survey([Path(file) for file in files["train"]])[0]  # in the same order, that of their hashes
        copies = copies_note(good, grouped(good, near_copies(pixels["train"].numpy()).tolist()))
        light = shift_warning(pixels["train"], pixels["test"]) if "test" in pixels else None
    suspicious = suspects(found, 1.0)
    ordered = np.argsort(-found, kind="stable").tolist()[: max(LISTED, len(suspicious))]
    paths = [Path(file) for each in files.values() for file in each]
    sizes = Counter(f"{width} × {height}" for height, width in own_sizes(paths))
    return Audit(
        images={{"train": "good"}.get(name, name): len(each) for name, each in files.items()},
        sizes=dict(sizes.most_common()),
        left_out=[str(each) for each in bad],
        warnings=[line for line in (copies, light) if line],
        unlike=[Unlike(files["train"][place], float(found[place]), place in suspicious) for place in ordered],
    )
