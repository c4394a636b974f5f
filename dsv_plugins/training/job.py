"""The work that an executor runs for a study. The functions are top-level, and a job can be pickled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dsv_plugins.data.dataset import Dataset, open_dataset
from dsv_plugins.errors import too_late
from dsv_plugins.plugins.interfaces import DetectorEncoder, Progress
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import Registry, build_registry
from dsv_plugins.run.artifacts import EvaluationFolder, load_features, save_features
from dsv_plugins.run.folder import RunFolder, finished_folder
from dsv_plugins.run.progress import TrainingProgress, write_progress
from dsv_plugins.training.evaluate import evaluate, heatmaps, make_augmentation, make_detector, measures, preview
from dsv_plugins.training.projection import project
from dsv_plugins.types import Candidate

__all__ = [
    "FROZEN_PART",
    "IMAGE_SETS",
    "Job",
    "compute_frozen_features",
    "frozen_part_of",
    "shared_start_of",
    "threads",
    "train_candidate",
    "train_shared_start",
]

PROGRESS_SECONDS = 0.5
SHARED_START = "shared start"
FROZEN_PART = "frozen part"
"""Stand for the augmentation in an id and on displays; no plugin's name has a space."""
IMAGE_SETS = ("train", "test", "holdout", "pseudo")
FROZEN_BATCH = 64
"""Images whose frozen features are in memory at once."""


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate to train up to a number of updates.

    Attributes:
        run: The run folder, which has the images.
        candidate: What to train.
        updates: How far; None for the detector's whole budget.
        resumes_from: The updates at which an earlier evaluation of it stopped; None to start at the beginning.
        shared_start: Id of the training in the run folder that this one begins with, if the detector has such a start.
        frozen: Id of the frozen features in the run folder, if the detector has a frozen part.
        timeout: The seconds that it may take; None for no limit.
        threads: Threads of torch. Part of the job, since sums in another order have other last digits.
        plugins: Plugins that are in no package, as given to `build_registry`.
        images: The images, if they do not come from the run folder.
        features: The frozen features of each set of images, if they do not come from the run folder.
    """

    run: Path
    candidate: Candidate
    updates: int | None = None
    resumes_from: int | None = None
    shared_start: str | None = None
    frozen: str | None = None
    timeout: float | None = None
    threads: int = 1
    plugins: tuple[object, ...] = ()
    images: Dataset | None = None
    features: Mapping[str, Mapping[str, Tensor]] | None = None

    @property
    def starts_from(self) -> Path | None:
        """Return the folder of the trained detector with which the work begins; None for a new one."""
        run = RunFolder(self.run)
        if self.resumes_from is not None:
            return EvaluationFolder(run.candidate(self.candidate.id, self.resumes_from)).detector
        if self.shared_start is not None:
            return EvaluationFolder(run.shared_start(self.shared_start)).detector
        return None

    def dataset(self) -> Dataset:
        """Return the images that came along, or those of the run folder."""
        return self.images or open_dataset(RunFolder(self.run).data)

    def frozen_features(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the frozen features of each set of images: those that came along, or those of the run folder."""
        if self.features is not None or self.frozen is None:
            return self.features or {}
        run = RunFolder(self.run)
        folders = {name: run.frozen_features(self.frozen, name) for name in IMAGE_SETS}
        return {name: load_features(folder) for name, folder in folders.items() if folder.exists()}


def train_candidate(job: Job) -> float:
    """Evaluate the job's candidate and write the evaluation into the run folder; returns the seconds it took."""
    started = time.monotonic()
    run, candidate, dataset = RunFolder(job.run), job.candidate, job.dataset()
    curve: list[tuple[int, float]] = []
    progress = _reporter(run, candidate.id, curve, timeout=job.timeout)
    with _new_detector(job) as (detector, label, registry):
        augmentation = make_augmentation(registry, candidate)
        if job.starts_from is not None:
            detector.load(job.starts_from)
        _reuse_features(detector, dataset, job)
        evaluation = evaluate(
            candidate, dataset, detector, augmentation, label=label, updates=job.updates, progress=progress
        )
        augmentation.check_effect(evaluation.embeddings.train, evaluation.embeddings.augmented)
        overlays = heatmaps(detector, dataset.test, label=label)
        with finished_folder(run.candidate(candidate.id, job.updates)) as path:
            folder = EvaluationFolder(path)
            folder.save(
                evaluation,
                measures=measures(evaluation.embeddings),
                curve=curve,
                preview=preview(dataset.train, augmentation, candidate.seed),
                heatmaps=overlays,
                projection=project(evaluation.embeddings),
            )
            folder.detector.mkdir()
            detector.save(folder.detector)
    return time.monotonic() - started


def shared_start_of(candidate: Candidate) -> Candidate:
    """Return what stands for the start that this candidate shares with all others of its images and detector."""
    context = {name: value for name, value in candidate.context.items() if name != "augmentation"}
    return replace(candidate, augmentation=SHARED_START, params={}, context=context)


def train_shared_start(job: Job) -> float:
    """Train what the job's candidate stands for, and keep it in the run folder; returns the seconds it took."""
    started = time.monotonic()
    run, dataset = RunFolder(job.run), job.dataset()
    with _new_detector(job) as (detector, _, _):
        progress = _reporter(run, job.candidate.id, [])
        _reuse_features(detector, dataset, job)
        detector.fit_shared_start(dataset.train, seed=job.candidate.seed, progress=progress)
        with finished_folder(run.shared_start(job.candidate.id)) as path:
            folder = EvaluationFolder(path)
            folder.detector.mkdir()
            detector.save(folder.detector)
    return time.monotonic() - started


def frozen_part_of(candidate: Candidate, settings: Sequence[str] | None, images: str = "") -> Candidate:
    """Return what stands for the frozen features that this candidate shares with all others of its images and detector.

    Args:
        candidate: The candidate.
        settings: The settings of its detector that they depend on; None for all.
        images: The set of images, if it is about one.
    """
    params = {"images": images} if images else {}
    all_settings = candidate.detector_params
    relevant = {name: all_settings[name] for name in all_settings if settings is None or name in settings}
    start = replace(shared_start_of(candidate), detector_params=relevant)
    return replace(start, augmentation=FROZEN_PART, params=params, seed=0)


def compute_frozen_features(job: Job) -> float:
    """Compute the frozen features of the set of images that the job's candidate names; returns the seconds it took."""
    started = time.monotonic()
    images = str(job.candidate.params["images"])
    pixels: Tensor = getattr(job.dataset(), images)
    assert job.frozen is not None
    target = RunFolder(job.run).frozen_features(job.frozen, images)
    with _new_detector(job) as (detector, _, _), finished_folder(target) as folder:
        parts = (detector.frozen_features(some) for some in torch.split(pixels, FROZEN_BATCH))
        save_features(folder, parts, len(pixels))
    return time.monotonic() - started


@contextlib.contextmanager
def _new_detector(job: Job) -> Iterator[tuple[DetectorEncoder, str, Registry]]:
    """Make the job's detector, with its label and the registry; what it raises in the block names the label."""
    registry = build_registry(job.plugins)
    detector = make_detector(registry, job.candidate)
    label = registry.label(DetectorEncoderPlugin, job.candidate.detector)
    with wrap_errors(label), threads(job.threads):
        yield detector, label, registry


def _reuse_features(detector: DetectorEncoder, dataset: Dataset, job: Job) -> None:
    for name, features in job.frozen_features().items():
        detector.reuse_features(getattr(dataset, name), features)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use this many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _reporter(
    run: RunFolder, candidate_id: str, curve: list[tuple[int, float]], *, timeout: float | None = None
) -> Progress:
    """Return what keeps the training curve, writes how far the training is, and ends one that takes too long."""
    started, written = time.monotonic(), 0.0

    def report(update: int, planned: int, loss: float) -> None:
        nonlocal written
        curve.append((update, loss))
        now = time.monotonic()
        if timeout is not None and now - started > timeout:
            raise too_late(timeout)
        if now - written >= PROGRESS_SECONDS:
            written = now
            write_progress(run, candidate_id, TrainingProgress(update, planned, loss))

    return report
