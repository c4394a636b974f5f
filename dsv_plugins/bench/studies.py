"""The studies of a benchmark: those beside the ones of its cells, the work they share, and what is read of a result."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from pathlib import Path

import torch

from dsv_plugins.bench.methods import DEFAULT, MAIN, auc_of, ensemble_auc
from dsv_plugins.bench.pixels import pixel_measures, read_masks
from dsv_plugins.bench.tasks import labels_of
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.run.artifacts import has_image_index
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.records import AUCRecord, write_checksummed
from dsv_plugins.run.run import Run
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.study import Study
from dsv_plugins.types import DETECTOR_PREFIX, Evaluation

__all__ = [
    "Trained",
    "brightened",
    "measure_aucs",
    "measure_heatmaps",
    "random_study",
    "read_study",
    "reuse_work",
    "rival_study",
]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a finished study trained, or several that are one pool.

    Attributes:
        evaluations: The candidates, in grid order.
        labels: Whether each test image is anomalous.
        model_auc: The AUC of what the study keeps.
        pixels: The pixel measures of each candidate that has any, by its id.
        model_pixels: Those of all candidates as one, if the study keeps that.
        random: The AUC of the training whose hyperparameters were redrawn for every image; None if there is none.
        seconds: How long the study took; None if it was interrupted.
        notes: Which images and candidates are left out and why, a line each.
        brighter: The usable candidates on brighter normal test images, by the name of that change.
    """

    evaluations: Sequence[Evaluation]
    labels: Sequence[bool]
    model_auc: float | None = None
    pixels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    model_pixels: Mapping[str, float] = field(default_factory=dict)
    random: float | None = None
    seconds: float | None = None
    notes: Sequence[str] = ()
    brighter: Mapping[str, Sequence[Evaluation]] = field(default_factory=dict)

    @property
    def usable(self) -> list[Evaluation]:
        """Return the candidates whose scores of test images are all finite."""
        return [each for each in self.evaluations if each.scores.test.isfinite().all()]

    @classmethod
    def together(cls, pools: Sequence[Trained]) -> Trained:
        """Return several pools as one; a detector that learns without augmentations is the same candidate in each."""
        common = [name for name in pools[0].brighter if all(name in pool.brighter for pool in pools)]
        return cls(
            evaluations=_each_once(pool.evaluations for pool in pools),
            labels=pools[0].labels,
            pixels=dict(itertools.chain.from_iterable(pool.pixels.items() for pool in pools)),
            brighter={name: _each_once(pool.brighter[name] for pool in pools) for name in common},
        )


def _each_once(pools: Iterable[Sequence[Evaluation]]) -> list[Evaluation]:
    return list({each.candidate.id: each for each in itertools.chain.from_iterable(pools)}.values())


def measure_aucs(result: Run, labels: Sequence[bool]) -> AUCRecord:
    """Return the AUCs of a finished study, and write them into its run folder, where the report finds them."""
    finished = [result.evaluation(entry.candidate) for entry in result.candidates if entry.status == "finished"]
    aucs = {each.candidate.id: auc_of(each, labels) for each in finished if each.scores.test.isfinite().all()}
    chosen = {name: choice.candidate.id for name, choice in result.selected.items()}
    kept = [each for each in finished if each.candidate.id in result.shares]
    record = AUCRecord(
        candidates=aucs,
        chosen={name: aucs[candidate] for name, candidate in chosen.items() if candidate in aucs},
        model=ensemble_auc(kept, labels, [result.shares[each.candidate.id] for each in kept]),
    )
    write_checksummed(result.folder.aucs, asdict(record))
    return record


def read_study(result: Run, ground_truth: Path | None = None) -> Trained:
    """Read what a finished study trained, and measure its heatmaps if the folder of masks is given."""
    labels = labels_of(result.path)
    pixels, model_pixels, notes = measure_heatmaps(result, ground_truth, labels) if ground_truth else ({}, {}, [])
    return Trained(
        evaluations=[result.evaluation(entry.candidate) for entry in result.candidates if entry.status == "finished"],
        labels=labels,
        model_auc=measure_aucs(result, labels).model,
        pixels=pixels,
        model_pixels=model_pixels,
        seconds=result.journal.elapsed(),
        notes=[
            *(note for note in result.notes if note.startswith("left out")),
            *(f"{entry.candidate} failed: {entry.reason}" for entry in result.candidates if entry.reason),
            *notes,
        ],
    )


def measure_heatmaps(
    result: Run, ground_truth: Path, labels: Sequence[bool]
) -> tuple[dict[str, dict[str, float]], dict[str, float], Sequence[str]]:
    """Return the pixel measures of each candidate by its id, those of a model of several, and the images left out.

    There are none if the task has no masks, or the detector no heatmaps.
    """
    if not ground_truth.is_dir():
        return {}, {}, []
    masks = read_masks(result.path, ground_truth, labels)
    measured = {}
    for entry in result.candidates:
        heatmaps = result.heatmaps(entry.candidate) if entry.status == "finished" else None
        if heatmaps is not None:
            measured[entry.candidate.id] = pixel_measures(heatmaps, masks)
    model = result.heatmaps() if len(result.shares) > 1 else None
    return measured, {} if model is None else pixel_measures(model, masks), masks.notes if measured else []


def brightened(result: Run, pool: Trained, factor: float) -> list[Evaluation]:
    """Return the usable candidates on brighter normal test images, which are encoded and scored again."""
    normal = ~torch.tensor(pool.labels)
    images = open_dataset(result.folder.data).test[normal]
    brighter = (images.float() * factor).round().clamp(max=255).to(torch.uint8)
    changed = []
    for each in pool.usable:
        detector = result.load_detector(each.candidate)
        embeddings, scores = each.embeddings.test.clone(), each.scores.test.clone()
        embeddings[normal], scores[normal] = detector.encode(brighter), detector.score(brighter)
        embedded, scored = replace(each.embeddings, test=embeddings), replace(each.scores, test=scores)
        changed.append(replace(each, embeddings=embedded, scores=scored))
    return changed


def random_study(study: Study, registry: Registry) -> Study:
    """Return a study of one candidate whose hyperparameters are ranges over the grid, from which every image draws.

    Raises:
        DSVError: The augmentation has hyperparameters without a range, or does not take ranges; or none is used.
    """
    plan = plan_study(study, registry)
    if not plan.learns_from_augmentation:
        raise InputError(f"{', '.join(plan.detectors)} learns without augmentations, so there is nothing to draw")
    if len(plan.detectors) > 1:
        raise InputError("the detector cannot be another for every image")
    ranges: dict[str, list[object]] = {}
    points = [candidate.params for candidate in plan.candidates()]
    for name in points[0]:
        values = [point[name] for point in points]
        numbers = [value for value in values if isinstance(value, Real)]
        if len({str(value) for value in values}) == 1:
            ranges[name] = values[:1]
        elif name.startswith(DETECTOR_PREFIX):
            raise InputError(f"{name} is of the detector, which cannot be another for every image")
        elif len(numbers) < len(values):
            raise InputError(f"{name} has values that are not numbers, so there is no range to draw it from")
        else:
            ranges[name] = [[float(min(numbers)), float(max(numbers))]]
    out = study.folder().with_name(f"{study.folder().name}-random")
    random = replace(study, grid=ranges, selector=MAIN, out=out)
    plan_study(random, registry)  # refuses an augmentation that takes no ranges
    return random


def rival_study(study: Study, detector: str, registry: Registry) -> Study:
    """Return a study of a rival on the images of another study, at the same size.

    Raises:
        DSVError: There is no such detector, or it learns from augmentations: then it is no rival, but has candidates.
    """
    rival = replace(
        study,
        detector=detector,
        detector_params={"image_size": plan_study(study, registry).image_size},
        selector=DEFAULT,
        out=study.folder().with_name(f"{detector}-{study.seed}"),
    )
    if plan_study(rival, registry).learns_from_augmentation:
        raise InputError(f"{detector} learns from augmentations; compare it in a benchmark of its own, with --detector")
    return rival


def reuse_work(study: Study) -> None:
    """Copy what does not depend on the augmentation from the other studies of the task, unless the study has it.

    The study checks all of it before use, and prepares its own images if the copied ones are not the same.
    """
    run = RunFolder(study.folder())
    others = [RunFolder(path) for path in sorted(run.path.parent.glob("*/")) if path != run.path]
    # Which images are held out depends on the seed, so the studies with the same seed come first.
    others.sort(key=lambda other: not other.path.name.removesuffix("-random").endswith(f"-{study.seed}"))
    for other in others:
        # The names of these folders identify the detector's settings, the images and, if it matters, the seed.
        folders = [*other.shared_starts.glob("[!.]*"), *other.frozen.glob("[!.]*/[!.]*")]
        if has_image_index(other.data) and not has_image_index(run.data):
            folders.append(other.data)
        for folder in folders:
            target = run.path / folder.relative_to(other.path)
            if not target.exists() or target == run.data:
                shutil.copytree(folder, target, dirs_exist_ok=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    """Link a file, which takes no space, or copy it if the file system has no links. Finished files never change."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
