"""What a selector's choice is worth, where the labels are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from dsv_plugins.errors import InputError
from dsv_plugins.result import Result
from dsv_plugins.store import read_json

__all__ = ["NORMAL_FOLDER", "Worth", "labels_of", "worth"]

NORMAL_FOLDER = "good"


@dataclass(frozen=True, slots=True)
class Worth:
    """AUCs of a finished study.

    Attributes:
        candidates: The AUC of each candidate that was trained fully, by its id.
        chosen: The AUC of each selector's choice, by the selector's name.
    """

    candidates: Mapping[str, float]
    chosen: Mapping[str, float]

    @property
    def best(self) -> float:
        """The AUC of the best candidate."""
        return max(self.candidates.values())

    @property
    def mean(self) -> float:
        """The mean AUC of the candidates: what a random choice is worth."""
        return float(np.mean(list(self.candidates.values())))

    @property
    def worst(self) -> float:
        """The AUC of the worst candidate."""
        return min(self.candidates.values())


def labels_of(run: Path) -> list[bool]:
    """Which test images of a run are anomalous, in the run's order, from the folders they lie in."""
    files = read_json(run / "data" / "images.json")["files"]["test"]
    labels = [Path(file).parent.name != NORMAL_FOLDER for file in files]
    if len(set(labels)) < 2:
        raise InputError(f"{run} has test images of one class only; an AUC needs a folder {NORMAL_FOLDER!r} and others")
    return labels


def worth(result: Result, labels: Sequence[bool]) -> Worth:
    """Compare the selectors' choices by AUC."""
    aucs = {
        entry.candidate.id: float(roc_auc_score(labels, result.evaluation(entry.candidate).scores.test.numpy()))
        for entry in result.candidates
        if entry.status == "finished"
    }
    return Worth(aucs, {name: aucs[choice.candidate.id] for name, choice in result.selected.items()})
