"""What label-free selection is worth for models of anomalib, against models that learn without pseudo-anomalies.

    python adapters/dsv-anomalib/benchmarks/bench_models.py TASKS... [--models NAMES] [--count N] [--out F] [--real]

TASKS are tasks in MVTec layout, or folders of such tasks; the `count` with the fewest images are taken, since these
trainings are slow without a GPU. A run that was stopped resumes. Prints a table of the rivals, one for each model with
the AUC of every setting and of every selector's choice, and what the choices are worth over all of them.

With `--real`: images of 256 px, budgets for a GPU, Patchcore and Padim with settings of their own, and the candidates
of all models as one pool.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data
from sklearn.metrics import roc_auc_score

from dsv_plugins import Candidate, Run, SelectorPlugin, build_registry, select
from dsv_plugins.bench.methods import ensemble_auc
from dsv_plugins.bench.statistics import signed_rank_p
from dsv_plugins.bench.studies import measure_aucs
from dsv_plugins.bench.tasks import Task, find_tasks, labels_of
from dsv_plugins.data.images import find_images
from dsv_plugins.run.ensemble import shares_by_loss

SELECTORS = ("dsv", "energy", "cosine", "mc", "hits")
MEAN, ENSEMBLE, WEIGHTED = "mean", "all as one", "weighted by `cosine`"
WEIGHING = "cosine"
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
REAL_SIZE = 256
REAL: Mapping[str, Pool] = {
    "patchcore": Pool(
        "anomalib-patchcore",
        grid={
            "detector.model_params.layers": [["blocks.2"], ["blocks.4"], ["blocks.2", "blocks.4"]],
            "detector.model_params.num_neighbors": [1, 9],
        },
        params={"image_size": REAL_SIZE},
    ),
    "padim": Pool(
        "anomalib-padim",
        grid={"detector.model_params.n_features": [20, 50, 100, 140, 170]},
        params={"image_size": REAL_SIZE},
    ),
    **{
        name: replace(POOLS[name], params={**POOLS[name].params, "image_size": REAL_SIZE, "updates": updates})
        for name, updates in (("supersimplenet", 2000), ("glass", 1000))
    },
    "draem": replace(POOLS["draem"], params={"image_size": REAL_SIZE, "updates": 4000, "batch_size": 8}),
}
"""At real resolution: what a GPU does in an evening."""
RIVALS = {name: Pool(f"anomalib-{name}") for name in ("patchcore", "padim")}


def main() -> None:
    """Measure, and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--models", help="some of the models, as glass,draem")
    parser.add_argument("--real", action="store_true", help="256 px and long trainings")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("bench-models"))
    arguments = parser.parse_args()
    tasks = sorted(find_tasks(arguments.tasks), key=_images)[: arguments.count]
    write_textures(arguments.out / "textures")
    pools = REAL if arguments.real else POOLS
    if not arguments.real:
        print_rivals(tasks, arguments.out)
    names = arguments.models.split(",") if arguments.models else list(pools)
    runs = {name: [train(name, pools[name], task, arguments.out) for task in tasks] for name in names}
    columns = {name: print_settings(name, pools[name], tasks, runs[name]) for name in names}
    if arguments.real:
        columns["all models"] = print_pool(tasks, [list(each) for each in zip(*runs.values(), strict=True)])
    print_choices(columns)
    for name in names:
        print(f"{name}: {sum(sum(run.seconds.values()) for run in runs[name]):.0f} s of training")


def print_settings(name: str, pool: Pool, tasks: Sequence[Task], runs: Sequence[Run]) -> Mapping[str, Sequence[float]]:
    """The table of one model: its settings, the choices, their mean, all as one."""
    columns: dict[str, list[float]] = {}
    for run in runs:
        aucs = measure_aucs(run, labels_of(run.path))
        row = {
            setting: aucs.candidates[candidate.id]
            for setting, candidate in zip(_settings(pool), finished(run), strict=True)
        }
        for column, auc in {**row, **choices([run])}.items():
            columns.setdefault(column, []).append(auc)
    print_table(name, tasks, columns)
    return columns


def print_pool(tasks: Sequence[Task], runs: Sequence[Sequence[Run]]) -> Mapping[str, Sequence[float]]:
    """The table of the candidates of all models as one pool; the runs of each task."""
    rows = [choices(of_task) for of_task in runs]
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    print_table("all models", tasks, columns)
    return columns


def choices(runs: Sequence[Run]) -> dict[str, float]:
    """The AUCs of the mean and the best candidate of some runs, of each selector's choice, and of all as one."""
    labels = labels_of(runs[0].path)
    evaluations = [run.evaluation(candidate) for run in runs for candidate in finished(run)]
    aucs = [float(roc_auc_score(labels, evaluation.scores.test)) for evaluation in evaluations]
    row = {MEAN: float(np.mean(aucs)), "best": max(aucs)}
    registry = build_registry()
    for name in SELECTORS:
        losses = [float(loss) for loss in registry.create(SelectorPlugin, name).losses(evaluations)]
        row[f"`{name}`"] = aucs[int(np.argmin(losses))]
        if name == WEIGHING:
            row[WEIGHTED] = ensemble_auc(evaluations, labels, shares_by_loss(losses))
    row[ENSEMBLE] = ensemble_auc(evaluations, labels)
    return row


def finished(run: Run) -> list[Candidate]:
    """The candidates that were trained."""
    return [entry.candidate for entry in run.candidates if entry.status == "finished"]


def print_choices(models: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """What each choice is worth against the mean setting, over all models and tasks."""
    print(f"\n| | {' | '.join(models)} | all | better : worse than the mean | p |")
    print("|---|" + "---:|" * (len(models) + 3))
    means = np.concatenate([columns[MEAN] for columns in models.values()])
    for name in (*(f"`{selector}`" for selector in SELECTORS), WEIGHTED, ENSEMBLE, MEAN, "best"):
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


def train(name: str, pool: Pool, task: Task, out: Path) -> Run:
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
