"""What verdicts are worth if the labels of the images are known. Nothing is trained, chosen or calibrated by them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsv_plugins.bench.tasks import NORMAL_FOLDER
from dsv_plugins.data.listing import PATH_COLUMNS
from dsv_plugins.errors import InputError, describe_error

__all__ = ["FROM_FOLDERS", "Labelled", "Rate", "labelled", "labels_from"]

FROM_FOLDERS = "folders"
"""In place of a file: the label of an image is the name of the folder that it lies in."""
LABEL = "label"
GOOD = frozenset({NORMAL_FOLDER, "normal", "ok", "0"})
"""The labels of good images; any other is the name of a defect."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of some images are flagged, with the exact 95 % interval of their share (Clopper and Pearson)."""

    flagged: int
    images: int
    lowest: float
    highest: float

    @classmethod
    def of(cls, flagged: Sequence[bool]) -> Rate:
        """Count images."""
        from scipy.stats import binomtest

        interval = binomtest(sum(flagged), len(flagged)).proportion_ci()
        return cls(sum(flagged), len(flagged), float(interval.low), float(interval.high))

    def __str__(self) -> str:
        share = self.flagged / self.images
        return f"{self.flagged} of {self.images} ({share:.0%}, 95 % interval {self.lowest:.0%} to {self.highest:.0%})"


@dataclass(frozen=True, slots=True)
class Labelled:
    """What labels say of verdicts.

    Attributes:
        recall: The defective images that are flagged; None without verdicts or without defective images.
        false_alarms: The good images that are flagged; None likewise.
        types: The same for each kind of defect.
        auc: The probability that a defective image has a higher score than a good one; None if one kind is missing.
        without_label: The images that have no label, which are not counted.
    """

    recall: Rate | None
    false_alarms: Rate | None
    types: dict[str, Rate]
    auc: float | None
    without_label: int

    def lines(self) -> list[str]:
        """Return the result in words, with a confusion table."""
        missing = "no image is labelled good" if self.false_alarms is None else "none is labelled defective"
        told = [f"AUC {self.auc:.3f}" if self.auc is not None else f"no AUC: {missing}"]
        if self.recall is not None:
            told.append(f"defective images that are flagged: {self.recall}")
        if self.false_alarms is not None:
            told.append(f"good images that are flagged: {self.false_alarms}")
        kinds = {"defective": self.recall, "good": self.false_alarms, **self.types}
        counted = {name: rate for name, rate in kinds.items() if rate is not None}
        if counted:
            width = max(map(len, counted))
            told.append(f"{'':{width}}  flagged  not flagged")
            for name, rate in counted.items():
                told.append(f"{name:{width}}  {rate.flagged:7}  {rate.images - rate.flagged:11}")
        if self.without_label:
            told.append(f"{self.without_label} images have no label and are not counted")
        return told


def labels_from(source: str, images: Sequence[Path]) -> dict[Path, str]:
    """Return the label of each image that has one.

    Args:
        source: `folders`, or a CSV file with a column for the files, relative to it, and a column `label`.
        images: The images.

    Raises:
        InputError: The file cannot be read, or has labels for none of the images.
    """
    if source == FROM_FOLDERS:
        return {image: image.absolute().parent.name for image in images}
    file = Path(source)
    try:
        rows = list(csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the labels {file} cannot be read ({describe_error(error)}); give a CSV file, or the word {FROM_FOLDERS}"
        ) from error
    columns = rows[0].keys() if rows else ()
    column = next((each for each in PATH_COLUMNS if each in columns), None)
    if column is None or LABEL not in columns:
        found = ", ".join(columns) or "of no row"
        raise InputError(f"{file} has the columns {found}; give 'path' and '{LABEL}': good, or the kind of the defect")
    by_path = {(file.parent / (row[column] or "")).resolve(): (row[LABEL] or "").strip() for row in rows}
    names = Counter(path.name for path in by_path)
    by_name = {path.name: label for path, label in by_path.items() if names[path.name] == 1}
    known = {image: by_path.get(image.resolve(), by_name.get(image.name, "")) for image in images}
    labels = {image: label for image, label in known.items() if label}
    if not labels:
        raise InputError(
            f"{file} names none of the images, such as {images[0]}; give their paths, relative to the file"
        )
    return labels


def labelled(scores: Sequence[float], flagged: Sequence[bool] | None, labels: Sequence[str | None]) -> Labelled:
    """Return what labels say of scores and verdicts.

    Args:
        scores: The score of each image.
        flagged: Whether each is called anomalous; None without verdicts.
        labels: The label of each, None for those without: `good`, or the kind of its defect.
    """
    from sklearn.metrics import roc_auc_score

    known = [(place, label) for place, label in enumerate(labels) if label is not None]
    defective = np.array([label.lower() not in GOOD for _, label in known], dtype=bool)
    values = np.array([scores[place] for place, _ in known])
    auc = float(roc_auc_score(defective, values)) if len(set(defective.tolist())) == 2 else None

    def rate(kind: str | None, is_defective: bool) -> Rate | None:
        rows = (
            [
                bool(flagged[place])
                for (place, label), defect in zip(known, defective, strict=True)
                if defect == is_defective and kind in (None, label)
            ]
            if flagged is not None
            else []
        )
        return Rate.of(rows) if rows else None

    kinds = sorted({label for (_, label), defect in zip(known, defective, strict=True) if defect})
    types = {kind: found for kind in kinds if (found := rate(kind, True)) is not None}
    return Labelled(rate(None, True), rate(None, False), types, auc, len(labels) - len(known))
