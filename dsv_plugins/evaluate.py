"""One candidate in, one evaluation out. `work` is what an executor runs: top-level, and its argument can be pickled."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dsv_plugins.dataset import Dataset, open_dataset
from dsv_plugins.errors import TrainingError
from dsv_plugins.interfaces import Augmentation, DetectorEncoder, Progress
from dsv_plugins.losses import concentration, discordance, separability
from dsv_plugins.records import AugmentationPlugin, DetectorEncoderPlugin
from dsv_plugins.registry import Registry, build_registry
from dsv_plugins.seeds import derived_seed
from dsv_plugins.store import EVALUATION, PREVIEW, RunFolder, finished_folder, read_json, write_json
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores

__all__ = [
    "DETECTOR",
    "Job",
    "evaluate",
    "load_evaluation",
    "make_detector",
    "shared_start_of",
    "threads",
    "work",
    "work_on_shared_start",
]

AUGMENTED_COPIES, PREVIEW_COPIES, SCORED_COPIES = 1, 2, 3
"""Set the draws of augmented copies apart from those of the training, and from each other."""
PREVIEW_IMAGES = 4
SCORED_BATCH = 64
PROGRESS_SECONDS = 0.5
DETECTOR = "detector"
SHARED_START = "shared start"
"""Stands in an id and on displays where a candidate has its augmentation; no plugin's name has a space."""


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate to bring to a number of updates.

    Attributes:
        run: The run folder, which has the images.
        candidate: What to train.
        updates: How far; None for the detector's whole budget.
        continues: The updates at which an earlier evaluation of it stopped, to go on from there.
        shared_start: Id of the training in the run folder that this one begins with, where it does.
        threads: Threads of torch. Part of the job, since sums in another order have other last digits.
        plugins: Plugins that are in no package, as given to `build_registry`.
        images: The images, where they do not come from the run folder.
    """

    run: Path
    candidate: Candidate
    updates: int | None = None
    continues: int | None = None
    shared_start: str | None = None
    threads: int = 1
    plugins: tuple[object, ...] = ()
    images: Dataset | None = None

    @property
    def starts_from(self) -> Path | None:
        """The folder of the trained detector with which the work begins, where there is one."""
        if self.continues is not None:
            return RunFolder(self.run).candidate(self.candidate.id, self.continues) / DETECTOR
        if self.shared_start is not None:
            return RunFolder(self.run).shared_start(self.shared_start) / DETECTOR
        return None

    def dataset(self) -> Dataset:
        """The images that came along, or those of the run folder."""
        return self.images or open_dataset(RunFolder(self.run).data)


def work(job: Job) -> float:
    """Evaluate the job's candidate and write the evaluation into the run folder; returns the seconds it took."""
    started = time.monotonic()
    run = RunFolder(job.run)
    registry = build_registry(job.plugins)
    detector = make_detector(registry, job.candidate)
    if job.starts_from is not None:
        detector.load(job.starts_from)
    curve: list[tuple[int, float]] = []
    dataset = job.dataset()
    with threads(job.threads):
        evaluation = evaluate(
            job.candidate,
            dataset,
            registry,
            detector=detector,
            updates=job.updates,
            progress=_reporter(run.progress / job.candidate.id, curve),
        )
    with finished_folder(run.candidate(job.candidate.id, job.updates)) as folder:
        _save_evaluation(folder, evaluation, curve)
        augmentation = registry.create(AugmentationPlugin, job.candidate.augmentation, job.candidate.params)
        np.save(folder / PREVIEW, _preview(dataset.train, augmentation, job.candidate.seed))
        (folder / DETECTOR).mkdir()
        detector.save(folder / DETECTOR)
    return time.monotonic() - started


def shared_start_of(candidate: Candidate) -> Candidate:
    """What stands for the start that this candidate has in common with all others of its images and detector."""
    context = {name: value for name, value in candidate.context.items() if name != "augmentation"}
    return replace(candidate, augmentation=SHARED_START, params={}, context=context)


def work_on_shared_start(job: Job) -> float:
    """Train what the job's candidate stands for, and keep it in the run folder; returns the seconds it took."""
    started = time.monotonic()
    run = RunFolder(job.run)
    detector = make_detector(build_registry(job.plugins), job.candidate)
    with threads(job.threads):
        detector.fit_shared_start(  # type: ignore[attr-defined]  # a detector with `shared_updates` has it
            job.dataset().train,
            seed=job.candidate.seed,
            progress=_reporter(run.progress / job.candidate.id, []),
        )
    with finished_folder(run.shared_start(job.candidate.id)) as folder:
        (folder / DETECTOR).mkdir()
        detector.save(folder / DETECTOR)
    return time.monotonic() - started


def make_detector(registry: Registry, candidate: Candidate) -> DetectorEncoder:
    """A new detector with the candidate's settings."""
    return registry.create(DetectorEncoderPlugin, candidate.detector, candidate.detector_params)


def evaluate(
    candidate: Candidate,
    dataset: Dataset,
    registry: Registry,
    *,
    detector: DetectorEncoder | None = None,
    updates: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Train a detector on the candidate's augmentation, and collect what selectors look at.

    Args:
        candidate: What to train.
        dataset: The images.
        registry: Where its plugins are found.
        detector: The detector to train on; a new one where none is given.
        updates: How far to train; None for the detector's whole budget.
        progress: Called during the training.
    """
    augmentation = registry.create(AugmentationPlugin, candidate.augmentation, candidate.params)
    detector = detector or make_detector(registry, candidate)
    started = time.monotonic()
    detector.fit(dataset.train, augmentation, updates=updates, seed=candidate.seed, progress=progress)
    trained = time.monotonic()

    generator = torch.Generator().manual_seed(derived_seed(candidate.seed, AUGMENTED_COPIES))
    holdout = dataset.holdout
    embeddings = Embeddings(
        train=detector.encode(dataset.train),
        augmented=detector.encode_augmented(dataset.train, augmentation, generator=generator),
        test=detector.encode(dataset.test),
        holdout=None if holdout is None else detector.encode(holdout),
    )
    scores = Scores(
        train=detector.score(dataset.train),
        test=detector.score(dataset.test),
        holdout=None if holdout is None else detector.score(holdout),
        augmented=_score_augmented(detector, dataset.train, augmentation, candidate.seed),
    )
    if not all(torch.isfinite(part).all() for part in (embeddings.train, embeddings.augmented, embeddings.test)):
        raise TrainingError("the training ended with embeddings that are not finite; try a smaller learning rate")
    health = Health(
        training_accuracy=getattr(detector, "training_accuracy", None),
        concentration=float(concentration(embeddings.train, embeddings.augmented)),
    )
    timings = {"training": trained - started, "encoding": time.monotonic() - trained}
    return Evaluation(candidate, embeddings, scores, health, timings)


def load_evaluation(folder: Path) -> Evaluation:
    """The evaluation that `work` wrote into a candidate's folder."""
    record = read_json(folder / f"{EVALUATION}.json")
    tensors = load_file(folder / f"{EVALUATION}.safetensors")
    return Evaluation(
        candidate=Candidate(**record["candidate"]),
        embeddings=Embeddings(**_part(tensors, "embeddings")),
        scores=Scores(**_part(tensors, "scores")),
        health=Health(**record["health"]),
        timings=record["timings"],
    )


def _save_evaluation(folder: Path, evaluation: Evaluation, curve: list[tuple[int, float]]) -> None:
    tensors = {
        f"{part}.{name}": tensor.contiguous()
        for part, sets in (("embeddings", evaluation.embeddings), ("scores", evaluation.scores))
        for name in ("train", "augmented", "test", "holdout")
        if (tensor := getattr(sets, name, None)) is not None
    }
    save_file(tensors, folder / f"{EVALUATION}.safetensors")
    assert evaluation.health is not None
    record = {
        "candidate": asdict(evaluation.candidate),
        "health": asdict(evaluation.health),
        "timings": dict(evaluation.timings),
        "measures": _measures(evaluation.embeddings),
        "curve": curve,
    }
    write_json(folder / f"{EVALUATION}.json", record)


def _preview(train: Tensor, augmentation: Augmentation, seed: int) -> np.ndarray[Any, Any]:
    """The first train images under the augmentation: every candidate of a study has the same images and draws."""
    generator = torch.Generator().manual_seed(derived_seed(seed, PREVIEW_COPIES))
    copies = augmentation(train[:PREVIEW_IMAGES].float() / 255, generator=generator)
    return (copies.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def _score_augmented(detector: DetectorEncoder, train: Tensor, augmentation: Augmentation, seed: int) -> Tensor:
    """The scores of one augmented copy of each train image, in batches, since copies are floats."""
    generator = torch.Generator().manual_seed(derived_seed(seed, SCORED_COPIES))
    batches = (train[start : start + SCORED_BATCH].float() / 255 for start in range(0, len(train), SCORED_BATCH))
    return torch.cat([detector.score(augmentation(batch, generator=generator)) for batch in batches])


def _measures(embeddings: Embeddings) -> dict[str, float]:
    """The two parts of DSV, whatever the selectors: the report shows them beside every loss."""
    sets = (embeddings.train, embeddings.augmented, embeddings.test)
    return {"discordance": float(discordance(*sets)), "separability": float(separability(*sets))}


def _part(tensors: Mapping[str, torch.Tensor], part: str) -> dict[str, Any]:
    return {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


def _reporter(file: Path, curve: list[tuple[int, float]]) -> Progress:
    """Keeps the training curve, and tells whoever watches the run folder how far the training is."""
    told = 0.0

    def report(update: int, planned: int, loss: float) -> None:
        nonlocal told
        curve.append((update, loss))
        now = time.monotonic()
        if now - told >= PROGRESS_SECONDS:
            told = now
            with contextlib.suppress(OSError):  # a display is not worth a training
                file.write_text(json.dumps({"update": update, "planned": planned, "loss": loss}))

    return report


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
