"""The AUC of every candidate and of every selector's choice, from labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from dsv_plugins.errors import InputError
from dsv_plugins.run.artifacts import read_image_index
from dsv_plugins.run.ensemble import scores_of
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.records import AUCRecord, write_checksummed
from dsv_plugins.run.run import Run
from dsv_plugins.types import Evaluation

__all__ = ["NORMAL_FOLDER", "StudyAUCs", "auc_of", "ensemble_auc", "labels_of", "measure_aucs"]

NORMAL_FOLDER = "good"


@dataclass(frozen=True, slots=True)
class StudyAUCs:
    """AUCs of a finished study.

    Attributes:
        candidates: The AUC of each candidate that was trained fully, by its id.
        chosen: The AUC of each selector's choice, by the selector's name.
        kept: The AUC of the model: of the deciding choice, or of all candidates as one.
    """

    candidates: Mapping[str, float]
    chosen: Mapping[str, float]
    kept: float

    @property
    def best(self) -> float:
        """The AUC of the best candidate."""
        return max(self.candidates.values())

    @property
    def mean(self) -> float:
        """The mean AUC of the candidates, which is the expected AUC of a random choice."""
        return float(np.mean(list(self.candidates.values())))

    @property
    def worst(self) -> float:
        """The AUC of the worst candidate."""
        return min(self.candidates.values())


def labels_of(run: Path) -> list[bool]:
    """Which test images of a run are anomalous, in the run's order, from the folders they lie in."""
    files = read_image_index(RunFolder(run).data).files["test"]
    labels = [Path(file).parent.name != NORMAL_FOLDER for file in files]
    if len(set(labels)) < 2:
        raise InputError(f"{run} has test images of one class only; an AUC needs a folder {NORMAL_FOLDER!r} and others")
    return labels


def auc_of(evaluation: Evaluation, labels: Sequence[bool]) -> float:
    """The AUC of a candidate's test scores."""
    return float(roc_auc_score(labels, evaluation.scores.test.numpy()))


def ensemble_auc(
    evaluations: Sequence[Evaluation], labels: Sequence[bool], shares: Sequence[float] | None = None
) -> float:
    """The AUC of several candidates as one, as a study combines them; all count alike if there are no shares."""
    return float(roc_auc_score(labels, scores_of(evaluations, shares)["test"]))


def measure_aucs(result: Run, labels: Sequence[bool]) -> StudyAUCs:
    """The AUCs of a finished study; they are also written into the run folder, for the report."""
    finished = [result.evaluation(entry.candidate) for entry in result.candidates if entry.status == "finished"]
    aucs = {e.candidate.id: auc_of(e, labels) for e in finished if e.scores.test.isfinite().all()}
    chosen = {name: choice.candidate.id for name, choice in result.selected.items()}
    kept = [each for each in finished if each.candidate.id in result.shares]
    measured = StudyAUCs(
        candidates=aucs,
        chosen={name: aucs[candidate] for name, candidate in chosen.items() if candidate in aucs},
        kept=ensemble_auc(kept, labels, [result.shares[each.candidate.id] for each in kept]),
    )
    write_checksummed(result.folder.aucs, asdict(AUCRecord(measured.candidates, measured.chosen)))
    return measured
