"""What a study found, and why."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv_plugins.calibration import Findings
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.run.artifacts import EvaluationFolder
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.study import serialise
from dsv_plugins.study.log import RunLog
from dsv_plugins.types import Candidate, Evaluation, Health

if TYPE_CHECKING:  # torch comes with these
    from numpy.typing import NDArray
    from plotly.graph_objects import Figure

    from dsv_plugins.study.ensemble import Ensemble
    from dsv_plugins.study.judging import Verdict
    from dsv_plugins.study.schedule import Schedule

__all__ = ["CandidateResult", "Choice", "Result", "collect"]


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
        status: "finished"; "stopped" if a search gave it only a part of the budget; "failed".
        reason: Why it failed.
        losses: Its loss for each selector; None if it was not judged.
        updates: The updates it was trained for; None if the detector does not count them.
        seconds: How long it took; None if it failed.
        health: Whether its training got to where the theory begins.
    """

    candidate: Candidate
    status: str
    reason: str = ""
    losses: Mapping[str, float] | None = None
    updates: int | None = None
    seconds: float | None = None
    health: Health | None = None


@dataclass(frozen=True)
class Result:
    """A finished study: what each selector chose, everything about every candidate, and the run folder with the rest.

    Attributes:
        run: The run folder.
        selected: The choice of each selector; the first is the one whose detector is kept as the model.
        candidates: Every candidate, in grid order.
        updates_spent: The training updates of all candidates.
        confidence: For each selector, the share of bootstrap resamples of the test images
            in which each candidate wins, by its id.
        findings: What the chosen detector finds among the test images; None if no good images were kept out.
        notes: What the user should know, a line each.
        warnings: Those of the notes that hold whenever the study is run: reasons in the images to doubt a choice.
        plugins: Plugins that are in no package, as given to the study.
        shares: How much each candidate counts in the model, by its id: the choice alone, or several.
    """

    run: Path
    selected: Mapping[str, Choice]
    candidates: Sequence[CandidateResult]
    updates_spent: int | None
    confidence: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    findings: Findings | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    plugins: tuple[object, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> list[Candidate]:
        """The candidates whose detectors are the model: the choice, or several as one."""
        return [entry.candidate for entry in self.candidates if entry.candidate.id in self.shares]

    @property
    def choice(self) -> Choice:
        """The choice of the first selector."""
        return next(iter(self.selected.values()))

    @functools.cached_property
    def detector(self) -> DetectorEncoder:
        """The trained detector of `choice`."""
        return self.load_detector(self.choice.candidate)

    def evaluation(self, candidate: Candidate) -> Evaluation:
        """The stored embeddings and scores of a candidate that did not fail."""
        return self._stored(candidate).load()

    def heatmaps(self, candidate: Candidate) -> NDArray[Any] | None:
        """How unusual each place of each test image is, by a candidate that did not fail; None if it cannot say."""
        return self._stored(candidate).heatmaps()

    def load_detector(self, candidate: Candidate) -> DetectorEncoder:
        """The trained detector of a candidate that did not fail, whether it was chosen or not."""
        registry = build_registry(self.plugins)
        detector = registry.create(DetectorEncoderPlugin, candidate.detector, candidate.detector_params)
        detector.load(self._stored(candidate).detector)
        return detector

    def ensemble(self, count: int, selector: str | None = None) -> Ensemble:
        """The detectors of the best candidates as one, if no single one stands out.

        Args:
            count: How many.
            selector: Whose losses say which are the best; the first one if None.

        Raises:
            InputError: The study has no such selector, or too few candidates with a finite loss.
        """
        from dsv_plugins.study.ensemble import Ensemble, best_members

        return Ensemble(best_members(self, count, selector or next(iter(self.selected))))

    def table(self) -> str:
        """The candidates with their losses as text, each selector's choice marked."""
        from dsv_plugins.report import read_run, render_candidates

        return render_candidates(read_run(self.run))

    def plot(self) -> Figure:
        """The main chart of the report, for a notebook: the loss of every candidate with its two parts beside it."""
        from dsv_plugins.report import main_figure, read_run

        return main_figure(read_run(self.run))

    def report(self, path: Path | str | None = None) -> Path:
        """Write the report, a page that shows why; into the run folder if no path is given."""
        from dsv_plugins.report import build_report

        return build_report(self.run, None if path is None else Path(path))

    def as_json(self) -> dict[str, Any]:
        """The result as one JSON object; a loss that is not finite is null."""
        return serialise.as_json(self)

    def _stored(self, candidate: Candidate) -> EvaluationFolder:
        found = next(entry for entry in self.candidates if entry.candidate.id == candidate.id)
        return EvaluationFolder(RunFolder(self.run).candidate(candidate.id, found.updates))


def collect(
    run: Path,
    schedule: Schedule,
    evaluations: Sequence[Evaluation],
    verdicts: Mapping[str, Verdict],
    log: RunLog,
    *,
    findings: Findings | None,
    warnings: Sequence[str],
    plugins: tuple[object, ...],
    kept: Mapping[str, float],
) -> Result:
    """The result of a run, including the candidates that were not judged."""
    places = {evaluation.candidate.id: place for place, evaluation in enumerate(evaluations)}
    seconds = log.journal.seconds()
    entries = []
    for candidate in schedule.requested.values():
        place = places.get(candidate.id)
        status = "failed" if candidate.id in schedule.failures else "stopped" if place is None else "finished"
        judged = None if place is None else {name: verdict.losses[place] for name, verdict in verdicts.items()}
        entries.append(
            CandidateResult(
                candidate=candidate,
                status=status,
                reason=schedule.failures.get(candidate.id, ""),
                losses=judged,
                updates=schedule.trained_to.get(candidate.id),
                seconds=seconds.get(candidate.id),
                health=None if place is None else evaluations[place].health,
            )
        )
    return Result(
        run=run,
        selected={
            name: Choice(schedule.requested[evaluations[verdict.choice].candidate.id], verdict.losses[verdict.choice])
            for name, verdict in verdicts.items()
        },
        candidates=entries,
        updates_spent=schedule.updates_spent,
        confidence={
            name: {e.candidate.id: share for e, share in zip(evaluations, verdict.wins, strict=True)}
            for name, verdict in verdicts.items()
            if verdict.wins is not None
        },
        findings=findings,
        notes=log.notes,
        warnings=warnings,
        plugins=plugins,
        shares=kept,
    )
