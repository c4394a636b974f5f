"""Every selector on crops of a brick wall with drawn defects: nine CutPaste sizes, each trained from scratch.

The labels are looked at when all selectors have chosen, for the AUC. A candidate takes about 25 s on an idle core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from sklearn.metrics import roc_auc_score

from dsv_plugins import Candidate, Embeddings, Evaluation, Health, Scores, SelectorPlugin, build_registry
from dsv_plugins.builtin.augmentations import PAPER_PATCH_SIZES
from dsv_plugins.dataset import Dataset
from dsv_plugins.demo import make_task
from dsv_plugins.evaluate import evaluate
from dsv_plugins.selection import choose

WITHIN = 0.03
SELECTORS = ("dsv", "discordance", "separability", "base", "mmd", "std", "mc", "select", "hits")


@dataclass(frozen=True)
class Job:
    texture: str
    task_seed: int
    candidate: Candidate


@dataclass(frozen=True)
class Trained:
    """What a worker sends back: numpy arrays, which need no shared memory."""

    candidate: Candidate
    arrays: dict[str, object]
    health: Health
    loss: float
    seconds: float
    curve: list[tuple[int, float]] = field(default_factory=list)

    def evaluation(self) -> Evaluation:
        sets = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        embeddings = Embeddings(sets["train"], sets["augmented"], sets["test"])
        return Evaluation(self.candidate, embeddings, Scores(sets["train_scores"], sets["test_scores"]), self.health)


def train(job: Job) -> Trained:
    torch.set_num_threads(1)
    task = make_task(job.texture, job.task_seed)
    curve: list[tuple[int, float]] = []
    started = time.perf_counter()
    found = evaluate(
        job.candidate,
        Dataset(train=task.train, test=task.test, holdout=None, fingerprint=""),
        build_registry(),
        progress=lambda update, _, loss: curve.append((update, loss)),
    )
    arrays = {
        "train": found.embeddings.train.numpy(),
        "augmented": found.embeddings.augmented.numpy(),
        "test": found.embeddings.test.numpy(),
        "train_scores": found.scores.train.numpy(),
        "test_scores": found.scores.test.numpy(),
    }
    last = statistics.fmean(loss for _, loss in curve[-5:])
    return Trained(job.candidate, arrays, found.health, last, time.perf_counter() - started, curve)


def train_all(jobs: Sequence[Job], workers: int) -> list[Trained]:
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers when they import torch
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(train, jobs, chunksize=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texture", choices=("brick", "gravel", "grass"), default="brick")
    parser.add_argument("--task-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the trainings")
    parser.add_argument("--augmentation", default="cutpaste")
    parser.add_argument("--sizes", type=float, nargs="+", default=PAPER_PATCH_SIZES[::2])
    parser.add_argument("--detector-params", type=json.loads, default={"preset": "quick"}, metavar="JSON")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    candidates = [
        Candidate(options.augmentation, {"patch_size": s}, detector_params=options.detector_params, seed=options.seed)
        for s in options.sizes
    ]
    started = time.perf_counter()
    trained = train_all([Job(options.texture, options.task_seed, c) for c in candidates], options.workers)
    seconds = time.perf_counter() - started

    evaluations = [each.evaluation() for each in trained]
    registry = build_registry()
    losses = {name: registry.create(SelectorPlugin, name).losses(evaluations) for name in SELECTORS}
    choices = {name: choose(values) for name, values in losses.items()}

    labels = make_task(options.texture, options.task_seed).labels.numpy()
    aucs = [float(roc_auc_score(labels, each.scores.test.numpy())) for each in evaluations]

    print(f"{options.texture}, task {options.task_seed}, {options.augmentation}, {options.detector_params}, ", end="")
    print(f"seed {options.seed}: {seconds:.0f} s, {statistics.fmean(t.seconds for t in trained):.0f} s a candidate\n")
    print("| size | AUC | training loss | accuracy | concentration |", " | ".join(SELECTORS), "|")
    print("|---" * (5 + len(SELECTORS)) + "|")
    for place, each in enumerate(trained):
        row = [f"{options.sizes[place]:g}", f"{aucs[place]:.3f}", f"{each.loss:.3f}"]
        row += [f"{each.health.training_accuracy:.3f}", f"{each.health.concentration:.3f}"]
        row += [f"**{v[place]:.3f}**" if choices[n] == place else f"{v[place]:.3f}" for n, v in losses.items()]
        print("|", " | ".join(row), "|")
    best, mean, worst = max(aucs), statistics.fmean(aucs), min(aucs)
    print(f"\nAUC of the best {best:.3f}, mean {mean:.3f}, worst {worst:.3f}.\n")
    print("| selector | size | AUC | below the best |\n|---|---|---|---|")
    for name, place in choices.items():
        print(f"| {name} | {options.sizes[place]:g} | {aucs[place]:.3f} | {best - aucs[place]:.3f} |")
    met = best - aucs[choices["dsv"]] <= WITHIN
    print(f"\nDSV's choice is {'' if met else 'not '}within {WITHIN} of the best.")


if __name__ == "__main__":
    main()
