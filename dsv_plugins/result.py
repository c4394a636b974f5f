"""What a study found, and why."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv_plugins.ensemble import Ensemble, Member
from dsv_plugins.errors import InputError, StoreError
from dsv_plugins.evaluate import DETECTOR, load_evaluation, make_detector
from dsv_plugins.interfaces import DetectorEncoder
from dsv_plugins.records import DetectorEncoderPlugin
from dsv_plugins.registry import Registry, build_registry
from dsv_plugins.selection import rank
from dsv_plugins.store import RunFolder, read_json, verify
from dsv_plugins.types import Candidate, Evaluation, Health

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["CandidateResult", "Choice", "Result", "load_model"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A selector's choice."""

    candidate: Candidate
    loss: float


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """What became of one candidate.

    Attributes:
        candidate: The setting.
        status: "finished"; "stopped" where a search gave it only a part of the budget; "failed".
        reason: Why it failed.
        losses: Its loss for each selector.
        updates: The updates it was trained for; None where the detector does not tell.
        seconds: How long it took, where it was trained.
        health: Whether its training got to where the theory begins.
    """

    candidate: Candidate
    status: str
    reason: str = ""
    losses: Mapping[str, float] | None = None
    updates: int | None = None
    seconds: float | None = None
    health: Health | None = None

    @property
    def concentrated(self) -> bool:
        """Whether its train embeddings are dense, as DSV presumes; unknown counts as not."""
        return self.health is not None and self.health.concentrated


@dataclass(frozen=True)
class Result:
    """A finished study: what each selector chose, everything about every candidate, and the run folder with the rest.

    Attributes:
        run: The run folder.
        selected: The choice of each selector; the first is the one whose detector is kept as the model.
        candidates: Every candidate, in grid order.
        updates_spent: The training updates that the candidates cost in all.
        confidence: For each selector, the share of bootstrap resamples of the test images
            in which each candidate wins, by its id.
        notes: What the user should know, a line each.
        warnings: Those of the notes that hold whenever the study is run: what in the images speaks against a choice.
        plugins: Plugins that are in no package, as given to the study.
    """

    run: Path
    selected: Mapping[str, Choice]
    candidates: Sequence[CandidateResult]
    updates_spent: int | None
    confidence: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    plugins: tuple[object, ...] = ()

    @property
    def choice(self) -> Choice:
        """The choice of the first selector."""
        return next(iter(self.selected.values()))

    @functools.cached_property
    def detector(self) -> DetectorEncoder:
        """The trained detector of `choice`."""
        return load_model(self.run, build_registry(self.plugins))

    def evaluation(self, candidate: Candidate) -> Evaluation:
        """The stored embeddings and scores of a candidate that did not fail."""
        return load_evaluation(self._folder(candidate))

    def load_detector(self, candidate: Candidate) -> DetectorEncoder:
        """The trained detector of a candidate that did not fail, whether it was chosen or not."""
        detector = make_detector(build_registry(self.plugins), candidate)
        detector.load(self._folder(candidate) / DETECTOR)
        return detector

    def ensemble(self, count: int, selector: str | None = None) -> Ensemble:
        """The detectors of the best candidates as one, for where the best of them does not stand out.

        Args:
            count: How many.
            selector: Whose losses say which are the best; the first one where None.

        Raises:
            InputError: The study has no such selector, or too few candidates with a finite loss.
        """
        name = selector or next(iter(self.selected))
        if name not in self.selected:
            raise InputError(f"{name!r} did not judge this study; give one of {', '.join(self.selected)}")
        losses = [(entry.losses or {}).get(name, math.nan) for entry in self.candidates]
        judged = sum(map(math.isfinite, losses))
        if not 1 <= count <= judged:
            raise InputError(f"count is {count}; give a number from 1 to {judged}, the candidates that {name!r} judged")
        best = [self.candidates[place].candidate for place in rank(losses)[:count]]
        return Ensemble([Member(each, self.load_detector(each), self.evaluation(each).scores.test) for each in best])

    def table(self) -> str:
        """The candidates with their losses as text, each selector's choice marked."""
        from dsv_plugins.tables import render_candidates

        return render_candidates(self)

    def plot(self) -> Figure:
        """The main chart of the report, for a notebook: the loss of every candidate with its two parts beside it."""
        from dsv_plugins.report import main_figure, read_run

        return main_figure(read_run(self.run))

    def report(self, path: Path | str | None = None) -> Path:
        """Write the report, a page that shows why; into the run folder where no path is given."""
        from dsv_plugins.report import build_report

        return build_report(self.run, None if path is None else Path(path))

    def as_json(self) -> dict[str, Any]:
        """The result as one JSON object; a loss that is not finite is null."""
        return {
            "run": str(self.run),
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
                    "id": entry.candidate.id,
                    "augmentation": entry.candidate.augmentation,
                    "params": dict(entry.candidate.params),
                    "losses": {name: finite_or_none(loss) for name, loss in (entry.losses or {}).items()},
                    "status": entry.status,
                    "reason": entry.reason,
                    "seconds": entry.seconds,
                    "updates": entry.updates,
                    "training_accuracy": entry.health.training_accuracy if entry.health else None,
                    "concentration": finite_or_none(entry.health.concentration) if entry.health else None,
                }
                for entry in self.candidates
            ],
            "confidence": {name: dict(shares) for name, shares in self.confidence.items()},
            "updates_spent": self.updates_spent,
            "notes": list(self.notes),
        }

    def _folder(self, candidate: Candidate) -> Path:
        found = next(entry for entry in self.candidates if entry.candidate.id == candidate.id)
        return RunFolder(self.run).candidate(candidate.id, found.updates)

    def as_selection(self) -> dict[str, Any]:
        """What `selection.json` keeps: nothing that differs between two runs of one study, such as times."""
        return {
            "candidates": [
                {
                    "id": entry.candidate.id,
                    "augmentation": entry.candidate.augmentation,
                    "params": dict(entry.candidate.params),
                    "status": entry.status,
                    "reason": entry.reason,
                    "updates": entry.updates,
                }
                for entry in self.candidates
            ],
            "selected": {name: {"id": made.candidate.id, "loss": made.loss} for name, made in self.selected.items()},
            "losses": {
                entry.candidate.id: {name: finite_or_none(loss) for name, loss in (entry.losses or {}).items()}
                for entry in self.candidates
            },
            "confidence": {name: dict(shares) for name, shares in self.confidence.items()},
            "warnings": list(self.warnings),
        }


def load_model(run: Path, registry: Registry) -> DetectorEncoder:
    """The chosen detector of a finished run."""
    folder = RunFolder(run).model
    if not folder.is_dir():
        raise StoreError(f"{run} holds no chosen model; finish the study with `dsv select` first")
    problem = verify(folder)
    if problem is not None:
        raise StoreError(f"{problem}; run the same `dsv select` again to restore the model")
    record = read_json(folder / "model.json")
    detector = registry.create(DetectorEncoderPlugin, record["detector"], record["detector_params"])
    detector.load(folder)
    return detector


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
