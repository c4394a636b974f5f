"""A run: everything that a study has finished, read from its folder when it is first asked for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv_plugins.calibration import Findings, combined_scores
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.run.artifacts import (
    MODEL_HEATMAPS,
    EvaluationFolder,
    has_image_index,
    load_if_any,
    open_images,
    read_image_index,
)
from dsv_plugins.run.folder import FORMAT, RunFolder
from dsv_plugins.run.journal import Journal
from dsv_plugins.run.records import (
    AUCRecord,
    CandidateRecord,
    Choice,
    EvaluationRecord,
    ImageIndex,
    ModelRecord,
    SelectionRecord,
    StudyRecord,
    read_aucs,
    read_model,
    read_selection,
    read_study,
    write_checksummed,
)
from dsv_plugins.run.tiles import Tiles
from dsv_plugins.types import Candidate, Evaluation

if TYPE_CHECKING:  # torch comes with these
    from numpy.typing import NDArray

    from dsv_plugins.plugins.interfaces import DetectorEncoder
    from dsv_plugins.run.ensemble import Ensemble
    from dsv_plugins.run.model import Model

__all__ = ["Result", "Run", "claim"]

VERSIONED = ("dsv-plugins", "torch", "torchvision", "lightning")


class Run:
    """A finished study: what each selector chose, everything about every candidate, and the model that is kept.

    Each file is read, and checked, when something of it is first asked for.

    Args:
        path: The run folder.
        plugins: Plugins that are in no package, as for `build_registry`.

    Raises:
        StoreError: What is asked for is not there, or is damaged. The message names the file.
    """

    def __init__(self, path: Path | str, plugins: object = ()) -> None:
        self.folder = RunFolder(Path(path))
        self.plugins = plugins

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    # ------------------------------------------------------------------
    # what was selected
    # ------------------------------------------------------------------

    @functools.cached_property
    def selection(self) -> SelectionRecord:
        """The content of `selection.json`."""
        return read_selection(self.folder)

    @property
    def candidates(self) -> Sequence[CandidateRecord]:
        """Every candidate, in grid order."""
        return self.selection.candidates

    @functools.cached_property
    def by_id(self) -> Mapping[str, CandidateRecord]:
        """Every candidate, by its id."""
        return {entry.id: entry for entry in self.candidates}

    @functools.cached_property
    def selected(self) -> Mapping[str, Choice]:
        """The choice of each selector, the deciding one first."""
        chosen = {name: self.by_id[identifier] for name, identifier in self.selection.choices.items()}
        return {
            name: Choice(entry.candidate, loss)
            for name, entry in chosen.items()
            if (loss := entry.losses[name]) is not None  # reading has checked that none is
        }

    @property
    def selectors(self) -> list[str]:
        """The selectors that judged, the deciding one first."""
        return list(self.selected)

    @property
    def choice(self) -> Choice:
        """The choice of the first selector. What is kept may be more than that: see `model` and `kept`."""
        return next(iter(self.selected.values()))

    @property
    def chosen(self) -> CandidateRecord:
        """What is known of the choice of the first selector."""
        return self.by_id[self.choice.candidate.id]

    @property
    def confidence(self) -> Mapping[str, Mapping[str, float]]:
        """For each selector, the share of bootstrap resamples that each candidate wins, by its id."""
        return self.selection.confidence

    @property
    def shares(self) -> Mapping[str, float]:
        """How much each candidate counts in the model, by its id: the choice alone, or several."""
        return self.selection.shares

    @property
    def kept(self) -> list[Candidate]:
        """The candidates whose detectors are the model: the choice, or several as one."""
        return [self.by_id[identifier].candidate for identifier in self.shares]

    @property
    def updates_spent(self) -> int | None:
        """The training updates of all candidates; None if the detectors do not count them."""
        return self.selection.updates_spent

    @property
    def findings(self) -> Findings | None:
        """What the model finds among the test images; None if no good images were held out."""
        return self.selection.findings

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons in the images to doubt a choice."""
        return self.selection.warnings

    # ------------------------------------------------------------------
    # how it came about
    # ------------------------------------------------------------------

    @functools.cached_property
    def study(self) -> StudyRecord:
        """The content of `study.json`: the settings that tell this run from another."""
        return read_study(self.folder)

    @functools.cached_property
    def journal(self) -> Journal:
        """What happened, and when."""
        return Journal(self.folder.journal)

    @functools.cached_property
    def seconds(self) -> Mapping[str, float]:
        """How long the training of each candidate took, by its id, as far as the journal says so."""
        return self.journal.seconds()

    @property
    def notes(self) -> list[str]:
        """What the user was told when the study was last run."""
        return self.journal.notes()

    @functools.cached_property
    def auc_record(self) -> AUCRecord:
        """The content of `aucs.json`; without any candidate if no labels are known."""
        return read_aucs(self.folder)

    @property
    def aucs(self) -> Mapping[str, float]:
        """The AUC of each candidate by its id; empty if no labels are known."""
        return self.auc_record.candidates

    # ------------------------------------------------------------------
    # images and what candidates make of them
    # ------------------------------------------------------------------

    @functools.cached_property
    def images(self) -> ImageIndex:
        """The content of `images.json`."""
        return read_image_index(self.folder.data)

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """The file of each image of each set, in the order of the arrays."""
        return self.images.files

    @property
    def tiles(self) -> Tiles | None:
        """The tiles into which each image is cut; None if they are whole."""
        return self.images.loading.tiles if self.images.loading else None

    @functools.cached_property
    def test_images(self) -> NDArray[Any]:
        """The test images, memory-mapped; those of an image after each other, if they are cut into tiles."""
        return open_images(self.folder.data, "test")

    def test_image(self, index: int) -> NDArray[Any]:
        """Return one test image, whole."""
        if self.tiles is None:
            return self.test_images[index]  # type: ignore[no-any-return]
        import torch

        rows = slice(index * self.tiles.count, (index + 1) * self.tiles.count)
        return self.tiles.joined(torch.from_numpy(self.test_images[rows].copy()))[0].numpy()

    def artifacts(self, candidate: Candidate) -> EvaluationFolder:
        """Return the folder of what is stored of a candidate; others than the kept ones may have been removed."""
        return EvaluationFolder(self.folder.candidate(candidate.id, self.by_id[candidate.id].updates))

    @functools.cached_property
    def stored(self) -> list[CandidateRecord]:
        """The candidates of which there is more than their losses: not those that failed."""
        return [
            entry
            for entry in self.candidates
            if entry.status != "failed" and self.artifacts(entry.candidate).path.is_dir()
        ]

    @functools.cached_property
    def trainings(self) -> Mapping[str, EvaluationRecord]:
        """How the training of each stored candidate went, by its id."""
        return {entry.id: self.artifacts(entry.candidate).record() for entry in self.stored}

    def evaluation(self, candidate: Candidate) -> Evaluation:
        """Return the stored embeddings and scores of a candidate that did not fail."""
        return self.artifacts(candidate).load()

    def heatmaps(self, candidate: Candidate | None = None) -> NDArray[Any] | None:
        """Return how unusual each patch of each test image is to a candidate; None if it cannot say.

        Args:
            candidate: One that did not fail, whose heatmaps are those of tiles if there are any; the model if None.
        """
        if candidate is None and (len(self.shares) > 1 or self.tiles is not None):
            return load_if_any(self.folder.model, MODEL_HEATMAPS)
        return self.artifacts(candidate or self.kept[0]).heatmaps()

    def scores(self) -> dict[str, NDArray[Any]]:
        """Return the model's scores, by the set of images."""
        stored = [self.artifacts(candidate).arrays() for candidate in self.kept]
        names = [name for name in ("train", "test", "holdout") if f"scores.{name}" in stored[0]]
        scores = [{name: arrays[f"scores.{name}"] for name in names} for arrays in stored]
        return combined_scores(scores, list(self.shares.values()), tiles=self.tiles.count if self.tiles else 1)

    # ------------------------------------------------------------------
    # detectors
    # ------------------------------------------------------------------

    @functools.cached_property
    def model(self) -> Model:
        """The model that is kept, ready to judge new images."""
        from dsv_plugins.run.model import load

        return load(self.path, plugins=self.plugins)

    @functools.cached_property
    def model_record(self) -> ModelRecord:
        """What the model is, without loading it."""
        return read_model(self.folder)

    def load_detector(self, candidate: Candidate) -> DetectorEncoder:
        """Load the trained detector of a candidate that did not fail, whether it was chosen or not."""
        registry = build_registry(self.plugins)
        detector = registry.create(DetectorEncoderPlugin, candidate.detector, candidate.detector_params)
        detector.load(self.artifacts(candidate).detector)
        return detector

    def ensemble(self, count: int, selector: str | None = None) -> Ensemble:
        """Load the detectors of the best candidates as one, if no single one stands out.

        Args:
            count: How many.
            selector: Whose losses say which are the best; the first one if None.

        Raises:
            InputError: The study has no such selector, or too few candidates with a finite loss.
        """
        from dsv_plugins.run.ensemble import Ensemble, member_of

        name = selector or self.selectors[0]
        if name not in self.selected:
            raise InputError(f"{name!r} did not judge this study; give one of {', '.join(self.selected)}")
        losses = {entry.candidate.id: loss for entry in self.candidates if (loss := entry.losses.get(name)) is not None}
        if not 1 <= count <= len(losses):
            raise InputError(
                f"count is {count}; give a number from 1 to {len(losses)}, the candidates that {name!r} judged"
            )
        best = [self.by_id[identifier].candidate for identifier in sorted(losses, key=lambda each: losses[each])]
        members = [
            member_of(each, self.load_detector(each), self.evaluation(each).scores, 1 / count) for each in best[:count]
        ]
        return Ensemble(members)

    # ------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return the run as one JSON object; a loss that is not finite is null."""
        return {
            "run": str(self.path),
            "selected": {
                name: {
                    "augmentation": choice.candidate.augmentation,
                    "params": dict(choice.candidate.params),
                    "loss": choice.loss,
                }
                for name, choice in self.selected.items()
            },
            "candidates": [
                {
                    "id": entry.id,
                    "augmentation": entry.candidate.augmentation,
                    "params": dict(entry.candidate.params),
                    "status": entry.status,
                    "reason": entry.reason,
                    "updates": entry.updates,
                    "losses": dict(entry.losses),
                    "seconds": self.seconds.get(entry.id),
                    "training_accuracy": entry.health.training_accuracy if entry.health else None,
                    "concentration": entry.health.concentration if entry.health else None,
                }
                for entry in self.candidates
            ],
            "confidence": {name: dict(shares) for name, shares in self.confidence.items()},
            "kept": dict(self.shares),
            "updates_spent": self.updates_spent,
            "findings": None if self.findings is None else asdict(self.findings),
            "notes": self.notes,
        }


Result = Run
"""The former name."""


def claim(run: RunFolder, identity: Mapping[str, Any]) -> bool:
    """Write what the run folder is for, or check that it is for this study; return whether it was there before.

    A folder in which not even the images were read yet, since one of them is broken, is for whoever comes next.

    Raises:
        InputError: The folder belongs to another study.
        StoreError: Another version wrote it.
    """
    if run.study.exists():
        claimed = read_study(run).identity
        differing = [name for name, value in claimed.items() if identity.get(name) != value]
        if not differing:
            return True
        if has_image_index(run.data) or any(run.candidates.glob("*")):
            name = differing[0]
            other = f"whose {name} is {claimed[name]}, not {identity.get(name)}"
            other = f"of other {name} images" if name in ("train", "test") else other
            raise InputError(f"{run.path} belongs to a study {other}; give another --out (out=FOLDER)")
    versions = {name: metadata.version(name) for name in VERSIONED}
    write_checksummed(run.study, asdict(StudyRecord(FORMAT, dict(identity), versions)))
    return False
