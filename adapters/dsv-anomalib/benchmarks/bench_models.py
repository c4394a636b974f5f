"""What label-free selection is worth for models of anomalib, against models that learn without pseudo-anomalies.

    python adapters/dsv-anomalib/benchmarks/bench_models.py TASKS... [--models NAMES] [--count N] [--out FOLDER]

TASKS are tasks in MVTec layout, or folders of such tasks; the `count` with the fewest images are taken, since these
trainings are slow without a GPU. A run that was stopped resumes. Prints a table for each model, with the AUC of every
setting and of every selector's choice, and one of the rivals.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dsv_plugins import Result, select
from dsv_plugins.bench.aucs import ensemble_auc, labels_of, measure_aucs
from dsv_plugins.bench.tasks import Task, find_tasks
from dsv_plugins.data.images import find_images

SELECTORS = ("dsv", "energy", "cosine", "mc", "hits")
IMAGE_SIZE = 128
"""The least that SuperSimpleNet takes."""
BACKBONE = {"backbone": "dsv_efficientnet_lite0"}


@dataclass(frozen=True)
class Pool:
    """The settings of one model that are compared.

    Attributes:
        detector: The model, as a detector.
        augmentation: How it makes pseudo-anomalies.
        grid: The settings to try.
        params: The settings that all have.
    """

    detector: str
    augmentation: str = "cutpaste"
    grid: Mapping[str, Sequence[object]] = field(default_factory=dict)
    params: Mapping[str, object] = field(default_factory=dict)


POOLS: Mapping[str, Pool] = {
    "supersimplenet": Pool(
        "anomalib-supersimplenet",
        "anomalib-feature-noise",
        {"noise_std": [0.015, 0.05, 0.15], "perlin_threshold": [0.2, 0.5]},
        {"updates": 80, "model_params": BACKBONE},
    ),
    "glass": Pool(
        "anomalib-glass",
        "anomalib-feature-noise",
        {"noise_std": [0.005, 0.015, 0.05, 0.15, 0.5]},
        {"updates": 80, "model_params": BACKBONE},
    ),
    "draem": Pool(
        "anomalib-draem",
        "anomalib-perlin",
        {"blend_factor": [0.1, 0.3, 0.5, 0.7, 0.9]},
        {
            "image_size": 64,
            "updates": 200,
            "model_params": {"reconstructive_width": 16, "discriminative_width": 16},
        },
    ),
    "cutpaste-timm": Pool("cutpaste-timm", grid={"patch_size": [0.0025, 0.01, 0.04, 0.16, 0.64]}),
}
RIVALS = {name: Pool(f"anomalib-{name}") for name in ("patchcore", "padim")}


def main() -> None:
    """Measure, and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--models", default=",".join(POOLS))
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("bench-models"))
    arguments = parser.parse_args()
    tasks = sorted(find_tasks(arguments.tasks), key=_images)[: arguments.count]
    for name in arguments.models.split(","):
        print_settings(name, tasks, arguments.out)
    print_rivals(tasks, arguments.out)


def print_settings(name: str, tasks: Sequence[Task], out: Path) -> None:
    """The table of one model: its settings, the choices, their mean, all as one."""
    columns: dict[str, list[float]] = {}
    for task in tasks:
        result = train(name, POOLS[name], task, out)
        labels = labels_of(result.run)
        aucs = measure_aucs(result, labels)
        finished = [entry.candidate for entry in result.candidates if entry.status == "finished"]
        row = {str(candidate): aucs.candidates[candidate.id] for candidate in finished}
        row |= {"mean": aucs.mean, "best": aucs.best} | {
            f"`{selector}`": aucs.chosen[selector] for selector in SELECTORS
        }
        row["all as one"] = ensemble_auc([result.evaluation(candidate) for candidate in finished], labels)
        for column, auc in row.items():
            columns.setdefault(column, []).append(auc)
    print_table(name, tasks, columns)


def print_rivals(tasks: Sequence[Task], out: Path) -> None:
    """The table of what a user would take instead."""
    columns: dict[str, list[float]] = {name: [] for name in RIVALS}
    for name, pool in RIVALS.items():
        for task in tasks:
            result = train(name, pool, task, out)
            columns[name].append(measure_aucs(result, labels_of(result.run)).kept)
    print_table("rivals", tasks, columns)


def train(name: str, pool: Pool, task: Task, out: Path) -> Result:
    """The study of one model on one task, judged by all selectors."""
    return select(
        task.train,
        task.test,
        augmentation=pool.augmentation,
        grid=pool.grid,
        selector=SELECTORS,
        detector=pool.detector,
        detector_params={"image_size": IMAGE_SIZE, **pool.params},
        holdout=0.0,
        keep="choice",
        confidence=False,
        skip_bad=True,
        out=out / name / task.name,
    )


def print_table(title: str, tasks: Sequence[Task], columns: Mapping[str, Sequence[float]]) -> None:
    """One row for each column of AUCs, since settings have long names, and one column for each task."""
    print(f"\n| {title} | {' | '.join(task.name for task in tasks)} | mean |")
    print("|---|" + "---:|" * (len(tasks) + 1))
    for name, aucs in columns.items():
        print(f"| {name} | {' | '.join(f'{auc:.3f}' for auc in aucs)} | {np.mean(aucs):.3f} |", flush=True)


def _images(task: Task) -> int:
    return len(find_images(task.train)) + len(find_images(task.test))


if __name__ == "__main__":
    main()
