"""Can it be told without labels which epoch of a training to keep?

    python adapters/dsv-anomalib/benchmarks/bench_epochs.py TASKS... [--models NAMES] [--updates N] [--every N]

Trains models of anomalib on each task, and looks at them every so many updates. Two values need no labels: the AUC on
held-out good images against pseudo-anomalies of these, of kinds that were not trained on (`pseudo`); and how much the
ranking of the test images agrees with the rankings of all looks (`agreement`). Prints the AUC of the look that each
keeps, of the last, the mean and the best one.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from dsv_anomalib.detector import COMPONENTS_OFF
from dsv_anomalib.training import train
from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, Progress, build_registry
from dsv_plugins.bench.statistics import signed_rank_p
from dsv_plugins.bench.tasks import NORMAL_FOLDER, Task, find_tasks
from dsv_plugins.data.images import find_images
from dsv_plugins.pixels import pixels_of
from dsv_plugins.training.pseudo_anomalies import pseudo_anomalies

IMAGE_SIZE, BATCH, SEED = 128, 4, 0
HELD_OUT = 0.2
BACKBONE = {"model_params": {"backbone": "dsv_efficientnet_lite0"}}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "glass": ("anomalib-perlin", {}),
    "supersimplenet": ("anomalib-feature-noise", {"noise_std": 2.0}),
}
COLUMNS = ("last", "mean", "best", "pseudo", "agreement")


def main() -> None:
    """Measure, and print a table as Markdown for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--updates", type=int, default=240)
    parser.add_argument("--every", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for model in arguments.models.split(","):
        print(f"\n| {model} | {' | '.join(COLUMNS)} |\n|---|" + "---:|" * len(COLUMNS), flush=True)
        rows = []
        for task in find_tasks(arguments.tasks):
            rows.append(measured(model, task, arguments.updates, arguments.every))
            print(f"| {task.name} | {' | '.join(f'{auc:.3f}' for auc in rows[-1])} |", flush=True)
        print_summary(np.array(rows))


def measured(model: str, task: Task, updates: int, every: int) -> list[float]:
    """The AUCs of the last, the mean and the best look at one training, and of those that each value keeps."""
    registry = build_registry()
    augmentation, params = MODELS[model]
    detector: Any = registry.create(
        DetectorEncoderPlugin, f"anomalib-{model}", {"image_size": IMAGE_SIZE, "batch_size": BATCH, **BACKBONE}
    )
    good, test = (pixels_of(find_images(folder), IMAGE_SIZE) for folder in (task.train, task.test))
    labels = [file.parent.name != NORMAL_FOLDER for file in find_images(task.test)]
    shuffled = np.random.default_rng(SEED).permutation(len(good))
    held_out, kept = np.split(shuffled, [round(HELD_OUT * len(good))])
    normal = good[held_out]
    pseudo = pseudo_anomalies(registry, normal, SEED)
    module = detector.build(**COMPONENTS_OFF)
    detector.install(module, registry.create(AugmentationPlugin, augmentation, params))
    seen: list[tuple[np.ndarray, float]] = []

    def look(made: int, planned: int, loss: float) -> None:
        if made % every and made != planned:
            return
        modes = {part: part.training for part in module.modules()}
        detector._module = module.eval()
        scores, normals, pseudos = (detector.score(images).numpy() for images in (test, normal, pseudo))
        seen.append((scores, _auc(normals, pseudos)))
        for part, is_training in modes.items():
            part.training = is_training

    progress: Progress = look
    torch.manual_seed(SEED)
    train(
        module,
        good[kept],
        prepare=detector._sized,
        batch_size=BATCH,
        updates=updates,
        every_image=False,
        seed=SEED,
        progress=progress,
        engine_args={"accelerator": "cpu"},
    )
    aucs = [float(roc_auc_score(labels, scores)) for scores, _ in seen]
    agreement = np.nan_to_num(spearmanr(np.array([scores for scores, _ in seen]), axis=1).statistic).mean(axis=0)
    chosen = (int(np.argmax([value for _, value in seen])), int(np.argmax(agreement)))
    return [aucs[-1], float(np.mean(aucs)), max(aucs), *(aucs[place] for place in chosen)]


def print_summary(rows: np.ndarray) -> None:
    """The means, and what each value gains on the last look."""
    means = dict(zip(COLUMNS, rows.mean(axis=0), strict=True))
    print(f"| **mean** | {' | '.join(f'{auc:.3f}' for auc in means.values())} |")
    for name in COLUMNS[3:]:
        gained, possible = (means[each] - means["last"] for each in (name, "best"))
        p = signed_rank_p(rows[:, COLUMNS.index(name)], rows[:, 0]) if len(rows) > 1 else float("nan")
        print(
            f"{name}: {gained:+.3f} against the last look, where {possible:+.3f} is possible; p = {p:.2g}", flush=True
        )


def _auc(normal: np.ndarray, pseudo: np.ndarray) -> float:
    labels: Sequence[int] = [0] * len(normal) + [1] * len(pseudo)
    return float(roc_auc_score(labels, np.concatenate([normal, pseudo])))


if __name__ == "__main__":
    main()
