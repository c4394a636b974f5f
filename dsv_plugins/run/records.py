"""The records that a run folder keeps as JSON: one class for each kind of file, written and checked in one place.

A record is a dataclass, and its annotations are what is checked when it is read. A file that is not inside a finished
folder, with a manifest, holds a checksum of its own content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dsv_plugins.calibration import Findings
from dsv_plugins.errors import InputError, StoreError, shown
from dsv_plugins.run.checksums import RESTORE, verify
from dsv_plugins.run.folder import FORMAT, RunFolder, read_json, write_json
from dsv_plugins.run.tiles import Loading, Tiles
from dsv_plugins.types import Candidate, Health, Levels, Size

__all__ = [
    "AUCRecord",
    "CandidateRecord",
    "Choice",
    "EvaluationRecord",
    "FinishedRecord",
    "ImageIndex",
    "MemberRecord",
    "ModelRecord",
    "SelectionRecord",
    "StudyRecord",
    "UpdateRecord",
    "parse_record",
    "read_aucs",
    "read_checksummed",
    "read_model",
    "read_selection",
    "read_study",
    "write_checksummed",
]

CHECKSUM = "checksum"
MODEL_RECORD = "model.json"
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """The content of `study.json`: what the run folder is for.

    Attributes:
        format: The number of the format of all files.
        identity: The settings that tell one run from another.
        versions: The versions of the libraries that began the run.
    """

    format: int
    identity: dict[str, Any]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class ImageIndex:
    """The content of `data/images.json`: what the arrays beside it are.

    Attributes:
        fingerprint: A hash of the images, their order and their size.
        files: The file of each image of each set, in the order of the arrays.
        bad: The files that were left out, each with the reason.
        trained_on: The beginning of the hash of each train image.
        levels: The values of sixteen bits that became black and white; None for the lowest and the highest.
        loading: How they were loaded. If they were cut into tiles, these are the rows of the arrays.
    """

    fingerprint: str
    files: Mapping[str, Sequence[str]]
    bad: Sequence[tuple[str, str]] = ()
    trained_on: Sequence[str] = ()
    levels: Levels | None = None
    loading: Loading | None = None


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """The content of `evaluation.json`: what is known of a training beside its arrays.

    Attributes:
        candidate: What was trained.
        health: Whether it was trained far enough for the theory of DSV.
        timings: Seconds of each part of the work, by its name.
        measures: Discordance and separability, for the report.
        curve: The training loss after updates.
    """

    candidate: Candidate
    health: Health
    timings: Mapping[str, float]
    measures: Mapping[str, float]
    curve: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Choice:
    """A selector's choice."""

    candidate: Candidate
    loss: float


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """What became of one candidate.

    Attributes:
        candidate: The setting.
        status: "finished"; "stopped" if a search gave it only a part of the budget; "failed".
        reason: Why it failed.
        updates: The updates it was trained for; None if the detector does not count them.
        losses: Its loss for each selector, None if that is not finite; empty if it was not judged.
        health: Whether its training got to where the theory of DSV begins; None if it was not judged.
    """

    candidate: Candidate
    status: Literal["finished", "stopped", "failed"]
    reason: str = ""
    updates: int | None = None
    losses: Mapping[str, float | None] = field(default_factory=dict)
    health: Health | None = None

    @property
    def id(self) -> str:
        """The id of the candidate."""
        return self.candidate.id

    @property
    def label(self) -> str:
        """The candidate in words."""
        return str(self.candidate)


@dataclass(frozen=True, slots=True)
class SelectionRecord:
    """The content of `selection.json`: nothing that differs between two runs of one study, such as times.

    Attributes:
        candidates: Every candidate, in grid order.
        choices: The id of each selector's choice; the first selector is the deciding one.
        confidence: For each selector, the share of bootstrap resamples of the test images
            in which each candidate wins, by its id.
        shares: How much each candidate counts in the model, by its id: the choice alone, or several.
        updates_spent: The training updates of all candidates; None if the detectors do not count them.
        findings: What the model finds among the test images; None if no good images were held out.
        warnings: Reasons in the images to doubt a choice.
    """

    candidates: Sequence[CandidateRecord]
    choices: Mapping[str, str]
    confidence: Mapping[str, Mapping[str, float]]
    shares: Mapping[str, float]
    updates_spent: int | None
    findings: Findings | None
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class FinishedRecord:
    """The content of `finished.json`: what the selection depends on, so that the same study again takes it as it is.

    Attributes:
        depends_on: A hash of all that the selection depends on, but for the images.
        image_size: The size at which images were loaded.
        images: The fingerprint of the images.
        checksums: Those of `selection.json` and of the manifests of the folders that belong to the result.
        notes: What the user is told whenever the study is run.
    """

    depends_on: str
    image_size: Size
    images: str
    checksums: Mapping[str, str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class AUCRecord:
    """The content of `aucs.json`, if a benchmark or the demo knows the labels.

    Attributes:
        candidates: The AUC of each candidate, by its id.
        chosen: The AUC of each selector's choice.
        model: The AUC of the model, which may be several candidates as one; None if it is not known.
    """

    candidates: Mapping[str, float]
    chosen: Mapping[str, float]
    model: float | None = None


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One detector of an ensemble.

    Attributes:
        detector: Name of the detector plugin.
        detector_params: Its settings.
        share: How much it counts; those of all members add up to 1.
        scale: The mean and the deviation of its scores of train images.
        heat: The mean and the deviation of its heatmaps, if others have other units.
        provider: What provided the detector plugin.
    """

    detector: str
    detector_params: Mapping[str, Any]
    share: float
    scale: tuple[float, float]
    heat: tuple[float, float]
    provider: str


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """What one `dsv update` did to a model.

    Attributes:
        images: Where the new good images come from.
        remembered: How many of them the detector remembers.
        deciding: How many images decide since then, old and new ones.
        threshold_before: The score above which there was an alarm; None if there was no calibration.
        threshold: The score above which there is one.
    """

    images: str
    remembered: int
    deciding: int
    threshold_before: float | None
    threshold: float


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The content of `model/model.json`: what the detector beside it is.

    Attributes:
        detector: Name of the detector plugin.
        detector_params: Its settings.
        augmentation: Name of the augmentation that it was trained on.
        params: Hyperparameters of the augmentation.
        selector: Name of the selector that chose it.
        image_size: The size at which it takes images; height and width if they are not square.
        levels: The values of sixteen bits that become black and white; None for the lowest and the highest.
        tiles: The tiles into which images of that size are cut before it judges them; None for none.
        heat_scale: Where the colour of a heatmap begins and where it is strongest; None if it has no heatmaps.
        heat_threshold: The heat above which a patch counts as unusual; None if that is not known.
        candidate: Ids of the candidates that it is made of, the updates they were trained for, and the share of each.
        made_of: The candidates that it is made of, in words, with the share of each.
        parts: What its score is made of, in words, with the share of each part; empty if the detector cannot say.
        members: If it is an ensemble, its detectors; their files are in the folder `members`, by their place here.
        calibrated_on: The folder of good images whose scores decide; None for those that the study held out.
        trained_on: The beginning of the hash of each image that it was trained on: these cannot decide.
        history: What `dsv update` did to it, the first one first.
        provider: What provided the detector plugin: a package with its version, and a fingerprint of the code.
        plugins: The files and modules with plugins that the study was given.
    """

    detector: str
    augmentation: str
    selector: str
    image_size: Size
    detector_params: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    levels: Levels | None = None
    tiles: Tiles | None = None
    heat_scale: tuple[float, float] | None = None
    heat_threshold: float | None = None
    candidate: str = ""
    made_of: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    members: Sequence[MemberRecord] = ()
    calibrated_on: str | None = None
    trained_on: Sequence[str] = ()
    history: Sequence[UpdateRecord] = ()
    provider: str = ""
    plugins: Sequence[str] = ()


def parse_record(file: Path, kind: type[Record], content: Mapping[str, Any] | None = None) -> Record:
    """Read a record, or parse what a file holds.

    Raises:
        StoreError: It is no such record; the message names the file.
    """
    try:
        return msgspec.convert(read_json(file) if content is None else content, kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"{file} is damaged ({error}); {RESTORE}") from error


def write_checksummed(file: Path, content: Mapping[str, Any]) -> None:
    """Write the content of a record with a checksum of its own."""
    write_json(file, {**content, CHECKSUM: _checksum(content)})


def read_checksummed(file: Path, kind: type[Record], advice: str = RESTORE) -> Record:
    """Read what `write_checksummed` wrote.

    Args:
        file: The file.
        kind: The class of the record.
        advice: What to do if it is damaged.

    Raises:
        StoreError: It is damaged.
    """
    try:
        content = dict(read_json(file))
        if content.pop(CHECKSUM, None) != _checksum(content):
            raise StoreError(f"{file} is damaged (its checksum is wrong)")
    except StoreError as error:
        raise StoreError(f"{error}; {advice}") from error
    return parse_record(file, kind, content)


def _checksum(content: Mapping[str, Any]) -> str:
    # Through JSON and back, as the content comes when it is read.
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_study(run: RunFolder) -> StudyRecord:
    """Read `study.json`.

    Raises:
        StoreError: Another version wrote it, or it is damaged.
    """
    advice = "remove it and run the same `dsv select` again, which keeps what is finished"
    try:
        written = read_json(run.study).get("format")
    except StoreError as error:
        raise StoreError(f"{error}; {advice}") from error
    if written != FORMAT:
        raise StoreError(
            f"{run.path} has the format {shown(written)}, and this version reads {FORMAT}; "
            "run the same `dsv select` with another --out"
        )
    return read_checksummed(run.study, StudyRecord, advice)


def read_selection(run: RunFolder) -> SelectionRecord:
    """Read `selection.json`.

    Raises:
        StoreError: This is no run folder, its study has not selected yet, another version wrote it, or it is damaged.
    """
    if not run.study.exists():
        raise StoreError(f"{run.path} is no run folder; give the folder that `dsv select` printed")
    read_study(run)  # which checks the format
    if not run.selection.exists():
        raise StoreError(f"{run.path} has no selection yet; finish the study with the same `dsv select` first")
    selection = read_checksummed(run.selection, SelectionRecord)
    known = {entry.id: entry for entry in selection.candidates}
    if not selection.choices or not {*selection.choices.values(), *selection.shares} <= known.keys():
        raise StoreError(f"{run.selection} is damaged (its choices are not among its candidates); {RESTORE}")
    if any(known[identifier].losses.get(name) is None for name, identifier in selection.choices.items()):
        raise StoreError(f"{run.selection} is damaged (a choice has no loss); {RESTORE}")
    return selection


def read_aucs(run: RunFolder) -> AUCRecord:
    """Read `aucs.json`; a record of no candidate if no labels are known."""
    if not run.aucs.exists():
        return AUCRecord({}, {})
    advice = "remove it, or run the same `dsv demo` or `dsv bench` again"
    return read_checksummed(run.aucs, AUCRecord, advice)


def read_model(run: RunFolder) -> ModelRecord:
    """Read `model/model.json`, once the checksums of all files of the model are found to be right.

    Raises:
        StoreError: There is no model, another version wrote it, or it is damaged.
    """
    if run.study.exists():  # a model works without the rest of its run
        read_study(run)
    if not run.path.is_dir():
        raise InputError(f"{run.path} is not there; give the folder that `dsv select` printed")
    if not run.model.is_dir():
        raise StoreError(f"{run.path} holds no chosen model; finish the study with `dsv select` first")
    problem = verify(run.model)
    if problem is not None:
        raise StoreError(f"{problem}; {RESTORE}")
    return parse_record(run.model / MODEL_RECORD, ModelRecord)
