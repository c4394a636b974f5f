"""A run folder as the report sees it: plain records and numpy arrays."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dsv_plugins.calibration import Findings, combined_scores
from dsv_plugins.errors import StoreError
from dsv_plugins.run.artifacts import (
    EVALUATION_RECORD,
    EvaluationFolder,
    open_images,
    read_aucs,
    read_image_index,
    read_selection,
    read_study,
)
from dsv_plugins.run.checksums import RESTORE, sound
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.journal import Journal
from dsv_plugins.run.model_folder import load_model_heatmaps, load_model_record
from dsv_plugins.types import Health, candidate_label

__all__ = ["Array", "CandidateRecord", "RunRecord", "read_run"]

Array = NDArray[Any]

_ID = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """What the run folder has of one candidate.

    Attributes:
        id: Its id.
        augmentation: Name of its augmentation.
        params: Hyperparameters of the augmentation.
        status: "finished", "stopped" or "failed".
        reason: Why it failed.
        losses: Its loss for each selector; None if that is not finite.
        seconds: How long it took, if the journal says so.
        folder: Where its arrays are; None if it failed.
        health: Whether it was trained far enough for the theory of DSV.
        measures: Its discordance and separability.
        curve: Its training loss after updates.
    """

    id: str
    augmentation: str
    params: Mapping[str, object]
    status: str
    reason: str
    losses: Mapping[str, float | None]
    seconds: float | None = None
    folder: EvaluationFolder | None = None
    health: Health | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[tuple[int, float]] = ()

    @property
    def label(self) -> str:
        """The candidate in words."""
        return candidate_label(self.augmentation, self.params)

    def arrays(self) -> dict[str, Array]:
        """Embeddings and scores, as `embeddings.train` and so on."""
        assert self.folder is not None
        return self.folder.arrays()

    def preview(self) -> Array | None:
        """A few train images under its augmentation; None if it failed or the run has none."""
        return None if self.folder is None else self.folder.preview()

    def heatmaps(self) -> Array | None:
        """How unusual each place of each test image is; None if it failed or its detector cannot say."""
        return None if self.folder is None else self.folder.heatmaps()

    def projection(self) -> Array | None:
        """Embeddings in the plane with neighbours kept together; None if it failed or the run has none."""
        return None if self.folder is None else self.folder.projection()


@dataclass(frozen=True)
class RunRecord:
    """What the run folder has of the study.

    Attributes:
        path: The run folder.
        candidates: Every candidate, in grid order.
        selected: The id of each selector's choice; the first selector is the deciding one.
        confidence: For each selector, the share of resamples that each candidate wins, by its id.
        kept: How much each candidate counts in the model, by its id: the choice alone, or several.
        findings: What the model finds among the test images; None if the run does not say.
        warnings: What in the images speaks against any choice.
        aucs: The AUC of each candidate by its id, if the labels are known.
        detector: Name of the detector.
        command: The command that made the run, if the journal says so.
        test_files: The files of the test images, in the order of the arrays.
        held_out: How many good images were kept out of training.
    """

    path: Path
    candidates: Sequence[CandidateRecord]
    selected: Mapping[str, str]
    confidence: Mapping[str, Mapping[str, float]]
    kept: Mapping[str, float]
    findings: Findings | None
    warnings: Sequence[str]
    aucs: Mapping[str, float]
    detector: str
    command: str
    test_files: Sequence[str]
    held_out: int

    @property
    def selectors(self) -> list[str]:
        """The selectors, the deciding one first."""
        return list(self.selected)

    @property
    def shown(self) -> list[CandidateRecord]:
        """The candidates with something to show."""
        return [candidate for candidate in self.candidates if candidate.folder is not None]

    @property
    def chosen(self) -> CandidateRecord:
        """The choice of the deciding selector."""
        return self.by_id(self.selected[self.selectors[0]])

    @property
    def model(self) -> list[CandidateRecord]:
        """The candidates whose detectors are the model."""
        return [self.by_id(identifier) for identifier in self.kept]

    def scores(self) -> dict[str, Array]:
        """The model's scores of each set of images."""
        stored = [candidate.arrays() for candidate in self.model]
        names = [name for name in ("train", "test", "holdout") if f"scores.{name}" in stored[0]]
        scores = [{name: arrays[f"scores.{name}"] for name in names} for arrays in stored]
        return combined_scores(scores, list(self.kept.values()))

    def heatmaps(self) -> Array | None:
        """How unusual each place of each test image is to the model; None if it cannot say."""
        kept = self.model
        return kept[0].heatmaps() if len(kept) == 1 else load_model_heatmaps(RunFolder(self.path))

    def parts(self) -> Mapping[str, float]:
        """What the model's score is made of, in words, with the share of each part; empty if it cannot say."""
        run = RunFolder(self.path)
        return load_model_record(run).parts if run.model.is_dir() else {}

    def by_id(self, identifier: str) -> CandidateRecord:
        """The candidate with an id."""
        return next(candidate for candidate in self.candidates if candidate.id == identifier)

    def test_name(self, index: int) -> str:
        """The last two parts of a test image's path: what people call it."""
        return "/".join(Path(self.test_files[index]).parts[-2:])

    @functools.cached_property
    def test_images(self) -> Array:
        """The test images, memory-mapped."""
        return open_images(RunFolder(self.path).data, "test")


def read_run(path: Path) -> RunRecord:
    """Read a run folder.

    Raises:
        StoreError: It is no run folder, the study has not selected yet, or a file of it is damaged.
    """
    folder = RunFolder(path)
    selection = read_selection(folder)
    study, journal = read_study(folder), Journal(folder.journal)
    seconds, files = journal.seconds(), read_image_index(folder.data).files
    commands = [command for event in journal.events() if isinstance(command := event.get("command"), str) and command]
    with sound(folder.selection):
        found, chosen = selection.get("findings"), next(iter(selection["selected"].values()))
        record = RunRecord(
            path=folder.path,
            candidates=[
                _candidate(folder, entry, selection["losses"].get(entry["id"], {}), seconds.get(entry["id"]))
                for entry in selection["candidates"]
            ],
            selected={name: choice["id"] for name, choice in selection["selected"].items()},
            confidence=selection["confidence"],
            kept={
                str(identifier): float(share)
                for identifier, share in selection.get("kept", {chosen["id"]: 1.0}).items()  # earlier ones keep it
            },
            findings=None if found is None else Findings(**found),
            warnings=selection.get("warnings", []),
            aucs=read_aucs(folder),
            detector=study["identity"]["detector"],
            command=commands[0] if commands else "",
            test_files=files["test"],
            held_out=len(files.get("holdout", ())),
        )
        _check_chosen(record)
    return record


def _check_chosen(run: RunRecord) -> None:
    """Demand the evaluation of each choice; those of others may have been removed to save space."""
    known = {candidate.id: candidate for candidate in run.candidates}
    for name in run.selectors:
        if known[run.selected[name]].folder is None:
            raise StoreError(f"{run.path} has no evaluation of the candidate that {name} chose; {RESTORE}")
    for identifier in run.kept:
        if known[identifier].folder is None:
            raise StoreError(f"{run.path} has no evaluation of {known[identifier].label}, which it keeps; {RESTORE}")
    if not run.selectors:
        raise ValueError("nothing is selected")


def _candidate(
    run: RunFolder, entry: Mapping[str, Any], losses: Mapping[str, float | None], seconds: float | None
) -> CandidateRecord:
    if not _ID.fullmatch(entry["id"]):
        raise ValueError(f"{entry['id']!r} is no id")
    if entry["updates"] is not None and type(entry["updates"]) is not int:  # it is a part of a path
        raise ValueError(f"{entry['updates']!r} is no number of updates")
    known = CandidateRecord(
        id=entry["id"],
        augmentation=entry["augmentation"],
        params=entry["params"],
        status=entry["status"],
        reason=entry["reason"],
        losses=losses,
        seconds=seconds,
    )
    folder = EvaluationFolder(run.candidate(entry["id"], entry["updates"]))
    if entry["status"] == "failed" or not folder.path.is_dir():
        return known
    record = folder.record()
    with sound(folder.path / EVALUATION_RECORD):
        return replace(
            known,
            folder=folder,
            health=Health(**record["health"]),
            measures=record["measures"],
            curve=record["curve"],
        )
