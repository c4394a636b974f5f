"""Does a label-free loss tell which epoch of a training to keep?

    python adapters/dsv-anomalib/benchmarks/bench_monitor.py TASKS... [--updates N] [--every N]

Trains `dsv_anomalib.CutPaste` by anomalib's Engine on each task, with `DSVCallback`, and measures the AUC whenever the
callback looks. Prints the AUC of the epoch that a ModelCheckpoint would keep for each loss, of the epoch that an
EarlyStopping would end with, of the last, and of the best.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from anomalib.data import Folder
from anomalib.engine import Engine
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from sklearn.metrics import roc_auc_score

import dsv_anomalib
from dsv_anomalib.data import images_of, set_up
from dsv_plugins.bench.tasks import NORMAL_FOLDER, Task, find_tasks

MONITORED = ("dsv", "energy", "cosine")
PATIENCE = 3
"""Looks without a better value after which EarlyStopping ends a training."""


class Recorder(Callback):
    """Keeps the AUC and the losses of the epochs at which the callback looks."""

    def __init__(self, images: torch.Tensor, labels: Sequence[bool], every: int) -> None:
        self.images = images.float() / 255
        self.labels = labels
        self.every = every
        self.rows: list[dict[str, float]] = []

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the test images by the module, whose density is that of this epoch."""
        if trainer.current_epoch % self.every == 0 or trainer.global_step >= trainer.max_steps:
            was_training = pl_module.training
            pl_module.eval()
            model = pl_module.model
            scores = torch.cat([model(batch).pred_score for batch in torch.split(self.images, 64)])
            pl_module.train(was_training)
            losses = {name: float(trainer.callback_metrics[name]) for name in MONITORED}
            self.rows.append({"auc": float(roc_auc_score(self.labels, scores)), **losses})


def main() -> None:
    """Measure, and print a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--every", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = [f"{kept} `{loss}`" for loss in MONITORED for kept in ("least", "stop")]
    print(f"| task | last | best | mean | {' | '.join(names)} |\n|---|" + "---:|" * (3 + len(names)))
    rows = []
    for task in find_tasks(arguments.tasks):
        rows.append(row_of(trained(task, arguments.updates, arguments.every)))
        print(f"| {task.name} | {' | '.join(f'{auc:.3f}' for auc in rows[-1])} |", flush=True)
    print(f"| **mean** | {' | '.join(f'{auc:.3f}' for auc in np.mean(rows, axis=0))} |")


def trained(task: Task, updates: int, every: int) -> list[dict[str, float]]:
    """What was seen of one training."""
    data = Folder(
        name=task.name,
        root=task.train.parent,
        normal_dir=task.train,
        normal_test_dir=task.test / NORMAL_FOLDER,
        abnormal_dir=[folder for folder in sorted(task.test.iterdir()) if folder.name != NORMAL_FOLDER],
        val_split_mode="none",
        num_workers=0,
    )
    set_up(data)
    model = dsv_anomalib.CutPaste(
        preset="quick", updates=updates, augmentation_params={"patch_size": 0.08}, learning_rate=0.03, evaluator=False
    )
    _, test = images_of(data, model.input_size[0])
    labels = [bool(label) for label in data.test_data.samples.label_index]
    recorder = Recorder(test, labels, every)
    monitor = dsv_anomalib.DSVCallback("cutpaste", {"patch_size": 0.08}, every_n_epochs=every, images=100)
    with tempfile.TemporaryDirectory() as scratch:
        engine = Engine(
            callbacks=[monitor, recorder],
            default_root_dir=scratch,
            limit_val_batches=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        )
        engine.fit(model, datamodule=data)
    return recorder.rows


def row_of(seen: Sequence[dict[str, float]]) -> list[float]:
    """The AUCs of the last, the best and the mean epoch, and of those that each loss would keep."""
    aucs = [row["auc"] for row in seen]
    kept = [aucs[place] for loss in MONITORED for place in (least(seen, loss), stopped(seen, loss))]
    return [aucs[-1], max(aucs), float(np.mean(aucs)), *kept]


def least(seen: Sequence[dict[str, float]], loss: str) -> int:
    """The place that a ModelCheckpoint keeps: the smallest value of all."""
    return int(np.argmin([row[loss] for row in seen]))


def stopped(seen: Sequence[dict[str, float]], loss: str) -> int:
    """The place at which an EarlyStopping ends: no better value for some looks."""
    best = 0
    for place, row in enumerate(seen):
        if row[loss] < seen[best][loss]:
            best = place
        elif place - best >= PATIENCE:
            return place
    return len(seen) - 1


if __name__ == "__main__":
    main()
