"""What a selector's choice is worth, where the labels are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from dsv_plugins.errors import InputError
from dsv_plugins.result import Result
from dsv_plugins.store import RunFolder, read_json, write_json
from dsv_plugins.types import Evaluation

__all__ = ["NORMAL_FOLDER", "Worth", "auc_of", "keep_worth", "labels_of"]

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


def auc_of(evaluation: Evaluation, labels: Sequence[bool]) -> float:
    """The AUC of a candidate's test scores."""
    return float(roc_auc_score(labels, evaluation.scores.test.numpy()))


def keep_worth(result: Result, labels: Sequence[bool]) -> Worth:
    """Compare the selectors' choices by AUC, and write that into the run folder, for the report."""
    finished = [result.evaluation(entry.candidate) for entry in result.candidates if entry.status == "finished"]
    aucs = {e.candidate.id: auc_of(e, labels) for e in finished if e.scores.test.isfinite().all()}
    chosen = {name: choice.candidate.id for name, choice in result.selected.items()}
    worth = Worth(aucs, {name: aucs[candidate] for name, candidate in chosen.items() if candidate in aucs})
    write_json(RunFolder(result.run).worth, asdict(worth))
    return worth
