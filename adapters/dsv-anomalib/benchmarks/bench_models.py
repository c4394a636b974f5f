"""What label-free selection is worth for models of anomalib, against models that learn without pseudo-anomalies.

    python adapters/dsv-anomalib/benchmarks/bench_models.py TASKS... [--models NAMES] [--count N] [--out FOLDER]

TASKS are tasks in MVTec layout, or folders of such tasks; the `count` with the fewest images are taken, since these
trainings are slow without a GPU. A run that was stopped resumes. Prints a table of the rivals, one for each model with
the AUC of every setting and of every selector's choice, and what the choices are worth over all of them.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

from dsv_plugins import Result, select
from dsv_plugins.bench.methods import ensemble_auc
from dsv_plugins.bench.statistics import signed_rank_p
from dsv_plugins.bench.studies import measure_aucs
from dsv_plugins.bench.tasks import Task, find_tasks, labels_of
from dsv_plugins.data.images import find_images

SELECTORS = ("dsv", "energy", "cosine", "mc", "hits")
MEAN, ENSEMBLE = "mean", "all as one"
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


OWN_TEXTURES, OTHER_TEXTURES = "the train images", "brick, grass and gravel"
"""In a grid: folders that differ from task to task, or from machine to machine."""

# Budgets were chosen on wood and metal_nut, which are not among the six tasks. The features of this backbone spread by
# about 5, so the noise of SuperSimpleNet is a tenth of that or more; its default of .015 is for another backbone.
POOLS: Mapping[str, Pool] = {
    "patch-fusion": Pool("patch-fusion", grid={"patch_size": [0.0025, 0.01, 0.04, 0.16, 0.64]}),
    "glass": Pool(
        "anomalib-glass",
        "anomalib-perlin",
        {
            "blend_factor": [0.5],
            "textures": [None, OWN_TEXTURES, OTHER_TEXTURES],
            "detector.model_params.radius_quantile": [0.5, 0.9],
        },
        # Without svd, anomalib does not look at the radius.
        {"updates": 60, "batch_size": 4, "model_params": {**BACKBONE, "svd": 1}},
    ),
    "draem": Pool(
        "anomalib-draem",
        "anomalib-perlin",
        {"blend_factor": [0.2, 0.5, 0.9], "scale": [4, 16]},
        {
            "image_size": 64,
            "updates": 200,
            "batch_size": 4,
            "model_params": {"reconstructive_width": 16, "discriminative_width": 16},
        },
    ),
    "supersimplenet": Pool(
        "anomalib-supersimplenet",
        "anomalib-feature-noise",
        {"noise_std": [0.5, 2.0, 8.0], "perlin_threshold": [0.2, 0.5]},
        {"updates": 120, "batch_size": 4, "model_params": BACKBONE},
    ),
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
    write_textures(arguments.out / "textures")
    print_rivals(tasks, arguments.out)
    models = arguments.models.split(",")
    print_choices({name: print_settings(name, tasks, arguments.out) for name in models})


def print_settings(name: str, tasks: Sequence[Task], out: Path) -> Mapping[str, Sequence[float]]:
    """The table of one model: its settings, the choices, their mean, all as one."""
    columns: dict[str, list[float]] = {}
    for task in tasks:
        result = train(name, POOLS[name], task, out)
        labels = labels_of(result.path)
        aucs = measure_aucs(result, labels)
        finished = [entry.candidate for entry in result.candidates if entry.status == "finished"]
        row = {
            setting: aucs.candidates[candidate.id]
            for setting, candidate in zip(_settings(POOLS[name]), finished, strict=True)
        }
        pool = list(aucs.candidates.values())
        row |= {MEAN: float(np.mean(pool)), "best": max(pool)} | {f"`{each}`": aucs.chosen[each] for each in SELECTORS}
        row[ENSEMBLE] = ensemble_auc([result.evaluation(candidate) for candidate in finished], labels)
        for column, auc in row.items():
            columns.setdefault(column, []).append(auc)
    print_table(name, tasks, columns)
    return columns


def print_choices(models: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """What each choice is worth against the mean setting, over all models and tasks."""
    print(f"\n| | {' | '.join(models)} | all | better : worse than the mean | p |")
    print("|---|" + "---:|" * (len(models) + 3))
    means = np.concatenate([columns[MEAN] for columns in models.values()])
    for name in (*(f"`{selector}`" for selector in SELECTORS), ENSEMBLE, MEAN, "best"):
        aucs = np.concatenate([columns[name] for columns in models.values()])
        cells = [f"{np.mean(columns[name]):.3f}" for columns in models.values()]
        compared = f"{(aucs > means).sum()} : {(aucs < means).sum()} | {signed_rank_p(aucs, means):.2g}"
        print(f"| {name} | {' | '.join(cells)} | {aucs.mean():.3f} | {compared} |")


def print_rivals(tasks: Sequence[Task], out: Path) -> None:
    """The table of what a user would take instead."""
    columns: dict[str, list[float]] = {name: [] for name in RIVALS}
    for name, pool in RIVALS.items():
        for task in tasks:
            result = train(name, pool, task, out)
            columns[name].append(measure_aucs(result, labels_of(result.path)).model)
    print_table("rivals", tasks, columns)


def train(name: str, pool: Pool, task: Task, out: Path) -> Result:
    """The study of one model on one task, judged by all selectors."""
    folders = {OWN_TEXTURES: str(task.train), OTHER_TEXTURES: str(out / "textures")}
    return select(
        task.train,
        task.test,
        augmentation=pool.augmentation,
        grid={key: [folders.get(str(value), value) for value in values] for key, values in pool.grid.items()},
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


def write_textures(folder: Path) -> None:
    """Three pictures of surfaces that come with scikit-image."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("brick", "grass", "gravel"):
        Image.fromarray(getattr(data, name)()).save(folder / f"{name}.png")


def _settings(pool: Pool) -> list[str]:
    """The points of a grid in the order of the candidates, without what all of them share."""
    varied = {name.rpartition(".")[2]: values for name, values in pool.grid.items() if len(values) > 1}
    return [
        ", ".join(f"{name} {value}" for name, value in zip(varied, values, strict=True))
        for values in itertools.product(*varied.values())
    ]


def _images(task: Task) -> int:
    return len(find_images(task.train)) + len(find_images(task.test))


if __name__ == "__main__":
    main()
