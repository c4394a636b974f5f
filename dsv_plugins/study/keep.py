"""What a study keeps as its model: the choice, or several candidates as one."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dsv_plugins.calibration import Calibration
from dsv_plugins.data.dataset import Dataset
from dsv_plugins.data.overlay import heat_scale
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.plugins.plugin_files import names_of
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.search import rank
from dsv_plugins.run.artifacts import EvaluationFolder
from dsv_plugins.run.ensemble import frozen_part_name, joined_heatmaps, scale_of, scores_of, shares_by_loss
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.model import save_model
from dsv_plugins.run.records import MemberRecord, ModelRecord
from dsv_plugins.run.tiles import Tiles
from dsv_plugins.study.judging import Verdict
from dsv_plugins.study.plan import Plan
from dsv_plugins.study.schedule import Schedule
from dsv_plugins.study.settings import CHOICE, ENSEMBLE, WEIGHTED
from dsv_plugins.transforms import mean_colours
from dsv_plugins.types import Candidate, Evaluation

__all__ = ["Kept", "keep_model", "kept_candidates"]

MOST_MEMBERS = 16
"""Of an ensemble whose candidates cannot be merged: each makes scoring slower and the model larger."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The candidates whose detectors are the model.

    Attributes:
        evaluations: The choice, or several candidates.
        shares: How much each counts; they add up to 1.
        tiles: The tiles into which images are cut; None if they are whole.
    """

    evaluations: Sequence[Evaluation]
    shares: Sequence[float]
    tiles: Tiles | None = None

    def scores(self) -> dict[str, Array]:
        """Return the scores of the model, by the set of images."""
        return scores_of(self.evaluations, self.shares, tiles=self.tiles.count if self.tiles else 1)


def kept_candidates(
    plan: Plan, evaluations: Sequence[Evaluation], verdict: Verdict, tiles: Tiles | None = None
) -> Kept:
    """Return which candidates are kept, and how much each counts.

    By default that is all, weighted by the losses of the deciding selector, if their detectors can be merged into one;
    if scoring with all of them would take longer than with one, it is the choice.
    """
    keep = plan.settings.keep or (WEIGHTED if plan.merges else CHOICE)
    usable = [place for place, evaluation in enumerate(evaluations) if evaluation.scores.test.isfinite().all()]
    if keep == CHOICE or len(usable) < 2:
        return Kept([evaluations[verdict.choice]], [1.0], tiles)
    best = [place for place in rank(verdict.losses) if place in usable]
    places = sorted(best if plan.merges else best[:MOST_MEMBERS])
    shares = [1 / len(places)] * len(places)
    if keep != ENSEMBLE:
        shares = shares_by_loss([verdict.losses[place] for place in places])
    counted = [(evaluations[place], share) for place, share in zip(places, shares, strict=True) if share > 0]
    return Kept([evaluation for evaluation, _ in counted], [share for _, share in counted], tiles)


def keep_model(
    plan: Plan,
    folder: RunFolder,
    dataset: Dataset,
    chosen: Candidate,
    kept: Kept,
    *,
    schedule: Schedule,
) -> None:
    """Write the model of a study: a detector, or an ensemble of several that cannot be merged.

    Args:
        plan: The study.
        folder: Its run folder.
        dataset: The images of the study.
        chosen: The choice of the deciding selector.
        kept: What becomes the model.
        schedule: Which says how far each candidate is trained.
    """
    members = _members(plan, folder, kept, schedule)
    heatmaps = _heatmaps(members)
    if heatmaps is not None and kept.tiles is not None:
        heatmaps = kept.tiles.joined(torch.from_numpy(heatmaps)).numpy()
    scores = kept.scores()
    record = ModelRecord(
        detector=chosen.detector,
        detector_params=dict(chosen.detector_params),
        augmentation=chosen.augmentation,
        params=chosen.augmentation_params,
        selector=plan.settings.selectors[0],
        image_size=plan.size_of(dataset),
        levels=dataset.levels,
        tiles=dataset.tiles,
        heat_scale=None if heatmaps is None else heat_scale(heatmaps),
        heat_threshold=None if heatmaps is None else _heat_threshold(heatmaps, scores),
        candidate=",".join(
            f"{folder.path.name}:{share * member.share:.6g}"
            for member in members
            for folder, share in zip(member.folders, member.kept.shares, strict=True)
        ),
        made_of={str(each.candidate): share for each, share in zip(kept.evaluations, kept.shares, strict=True)},
        parts=members[0].parts() if len(members) == 1 else {},
        members=[member.record() for member in members] if len(members) > 1 else (),
        trained_on=dataset.trained_on,
        provider=plan.registry.identity(DetectorEncoderPlugin, chosen.detector),
        plugins=names_of(plan.settings.plugins),
    )
    own_heatmaps = heatmaps if len(kept.evaluations) > 1 or kept.tiles is not None else None
    writers = [member.write for member in members]
    light = None
    if dataset.holdout is not None:
        light = mean_colours(dataset.holdout, dataset.tiles.count if dataset.tiles else 1)[:, -1].numpy()
    save_model(folder, record, writers, held_out=scores.get("holdout"), light=light, heatmaps=own_heatmaps)


@dataclass(frozen=True, eq=False)
class _Member:
    """Candidates that are one detector of the model: one, or several that are merged.

    Attributes:
        plan: The study.
        kept: The candidates; their shares add up to 1.
        folders: The folder of each.
        share: How much the detector counts.
        heatmaps: Its heatmaps of the test images; None if it has none.
        heat: Their mean and deviation, if those of others have other units.
    """

    plan: Plan
    kept: Kept
    folders: Sequence[EvaluationFolder]
    share: float
    heatmaps: Array | None
    heat: tuple[float, float]

    @property
    def candidate(self) -> Candidate:
        """One that has the detector and the settings of all."""
        return self.kept.evaluations[0].candidate

    def record(self) -> MemberRecord:
        """Return what is known of it in an ensemble."""
        candidate, scores = self.candidate, self.kept.evaluations[0].scores
        return MemberRecord(
            detector=candidate.detector,
            detector_params=dict(candidate.detector_params),
            share=self.share,
            scale=scale_of(scores) if len(self.folders) == 1 else (0.0, 1.0),  # merged scores are standardised
            heat=self.heat,
            provider=self.plan.registry.identity(DetectorEncoderPlugin, candidate.detector),
        )

    def write(self, target: Path) -> None:
        """Write its files."""
        if len(self.folders) == 1:
            shutil.copytree(self.folders[0].detector, target, dirs_exist_ok=True)
        else:
            self._made.save(target)

    def parts(self) -> Mapping[str, float]:
        """Return what its score is made of."""
        says = type(self.plan.detectors[self.candidate.detector]).parts is not DetectorEncoder.parts
        return dict(self._made.parts()) if says else {}

    @functools.cached_property
    def _made(self) -> DetectorEncoder:
        """The trained detector; its memory is read once, whatever is asked of it."""
        registry, name = self.plan.registry, self.candidate.detector
        paths = [folder.detector for folder in self.folders]
        detector = registry.create(DetectorEncoderPlugin, name, self.candidate.detector_params)
        with wrap_errors(registry.label(DetectorEncoderPlugin, name)):
            if len(paths) == 1:
                detector.load(paths[0])
            else:
                detector.merge(paths, self.kept.shares, [scale_of(each.scores) for each in self.kept.evaluations])
        return detector


def _members(plan: Plan, folder: RunFolder, kept: Kept, schedule: Schedule) -> list[_Member]:
    """Return the detectors of the model: candidates that can be merged are one."""
    groups = _merging_groups(plan, [each.candidate for each in kept.evaluations])
    has_one_kind = len({kept.evaluations[group[0]].candidate.detector for group in groups}) == 1
    members = []
    for group in groups:
        evaluations, share = [kept.evaluations[place] for place in group], sum(kept.shares[place] for place in group)
        part = Kept(evaluations, [kept.shares[place] / share for place in group])
        folders = [
            EvaluationFolder(folder.candidate(each.candidate.id, schedule.trained_to[each.candidate.id]))
            for each in evaluations
        ]
        heatmaps = _weighted_mean([each.heatmaps() for each in folders], part.shares)
        heat = (0.0, 1.0)
        if heatmaps is not None and not has_one_kind:
            heat = float(heatmaps.mean(dtype=np.float64)), float(heatmaps.std(dtype=np.float64)) or 1.0
        members.append(_Member(plan, part, folders, share, heatmaps, heat))
    return members


def _merging_groups(plan: Plan, candidates: Sequence[Candidate]) -> list[list[int]]:
    """Return the places of the candidates, those whose detectors can be merged together."""
    groups: dict[str, list[int]] = {}
    for place, candidate in enumerate(candidates):
        merges = plan.detectors[candidate.detector].merges
        groups.setdefault(frozen_part_name(candidate) if merges else candidate.id, []).append(place)
    return list(groups.values())


def _weighted_mean(heatmaps: Sequence[Array | None], shares: Sequence[float]) -> Array | None:
    """Return the heatmaps of several candidates of one detector as one; None if one of them has none."""
    found = [each for each in heatmaps if each is not None]
    if len(found) < len(heatmaps):
        return None
    return found[0] if len(found) == 1 else np.average(found, axis=0, weights=shares).astype(np.float32)


def _heatmaps(members: Sequence[_Member]) -> Array | None:
    """Return the model's heatmaps of the test images; None if a member has none."""
    found = [torch.from_numpy(each.heatmaps) for each in members if each.heatmaps is not None]
    if len(found) < len(members):
        return None
    if len(found) == 1:
        return members[0].heatmaps
    return joined_heatmaps(found, [each.share for each in members], [each.heat for each in members]).numpy()


def _heat_threshold(heatmaps: Array, scores: Mapping[str, Array]) -> float | None:
    """The heat that few of the test images without an alarm reach anywhere; None if no good images were kept out."""
    if "holdout" not in scores:
        return None
    calibration = Calibration(scores["holdout"])
    rate = calibration.default_rate
    quiet = heatmaps[~calibration.alarms(scores["test"], rate)]
    return float(np.quantile(quiet.max(axis=(1, 2)).astype(float), 1 - rate)) if len(quiet) else None
