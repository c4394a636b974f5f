"""How good `patch-memory` is with other settings, on labelled tasks in MVTec layout.

    python tests/benchmarks/bench_patch_settings.py mvtec mpdd deeppcb [--settings "256 px" "320 px"]

All good images are in training, one seed. Seconds are those of fitting and scoring on one thread, without decoding, as
a multiple of the first row's. `two sizes` adds the scores at 192 and 320 px, each in units of the train images. `100
images` remember some of the train images: drawn at random, or each the farthest from those before it (k-centre).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch import Tensor

from dsv_plugins import DetectorEncoderPlugin, build_registry
from dsv_plugins.bench.tasks import find_tasks
from dsv_plugins.toolkit.weights import DEFAULT_BACKBONE

LARGEST = 384
REGISTRY = build_registry()

Fitted = tuple[Tensor, Tensor]
"""Scores of train and of test images."""


def scores(train: Tensor, test: Tensor, **settings: object) -> Fitted:
    detector = REGISTRY.create(DetectorEncoderPlugin, "patch-memory", {"backbone": DEFAULT_BACKBONE, **settings})
    detector.prepare(train)
    detector.fit(train, None)  # type: ignore[arg-type]  # it learns from none
    return detector.score(train), detector.score(test)


def two_sizes(train: Tensor, test: Tensor) -> Fitted:
    parts = [scores(train, test, image_size=size) for size in (192, 320)]
    scaled = [
        [(each - of_train.mean()) / of_train.std() for each in (of_train, of_test)] for of_train, of_test in parts
    ]
    of_train, of_test = (sum(values) for values in zip(*scaled, strict=True))
    return of_train, of_test


def some(train: Tensor, count: int, *, farthest: bool) -> Tensor:
    """Some of the train images."""
    if len(train) <= count or not farthest:
        return train[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:count]]
    detector = REGISTRY.create(DetectorEncoderPlugin, "patch-memory", {})
    pooled = detector.frozen_features(train)["pooled"].double()
    chosen = [0]
    nearest = (pooled - pooled[0]).norm(dim=1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (pooled - pooled[chosen[-1]]).norm(dim=1))
    return train[chosen]


SETTINGS: dict[str, Callable[[Tensor, Tensor], Fitted]] = {
    "256 px, window 1": scores,
    "192 px": lambda train, test: scores(train, test, image_size=192),
    "320 px": lambda train, test: scores(train, test, image_size=320),
    "384 px": lambda train, test: scores(train, test, image_size=384),
    "two sizes": two_sizes,
    "window 0": lambda train, test: scores(train, test, window=0),
    "window 3": lambda train, test: scores(train, test, window=3),
    "100 images, at random": lambda train, test: scores(some(train, 100, farthest=False), test),
    "100 images, k-centre": lambda train, test: scores(some(train, 100, farthest=True), test),
}


def decoded(files: Sequence[Path]) -> Tensor:
    images = [Image.open(file).convert("RGB").resize((LARGEST, LARGEST), Image.Resampling.BILINEAR) for file in files]
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).contiguous()


def measured(
    train: Tensor, test: Tensor, labels: Sequence[bool], chosen: Sequence[str]
) -> dict[str, tuple[float, float]]:
    found = {}
    for name, fit in SETTINGS.items():
        if not chosen or name in chosen:
            started = time.perf_counter()
            _, of_test = fit(train, test)
            found[name] = float(roc_auc_score(labels, of_test)), time.perf_counter() - started
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--settings", nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    REGISTRY.create(DetectorEncoderPlugin, "patch-memory", {}).frozen_features(torch.zeros(1, 3, 64, 64))  # loads it
    rows: dict[str, list[tuple[float, float]]] = {}
    for task in find_tasks(given.folders):
        train = decoded(sorted(task.train.iterdir()))
        files = sorted(file for file in task.test.rglob("*") if file.is_file())
        labels = [file.parent.name != "good" for file in files]
        for name, values in measured(train, decoded(files), labels, given.settings).items():
            rows.setdefault(name, []).append(values)
        print(task.name, {name: round(values[-1][0], 3) for name, values in rows.items()}, flush=True)
    first = np.mean([seconds for _, seconds in next(iter(rows.values()))])
    print("| setting | AUC | times as long |\n|---|---:|---:|")
    for name, values in rows.items():
        aucs, seconds = np.mean(values, axis=0)
        print(f"| {name} | {aucs:.4f} | {seconds / first:.2f} |")


if __name__ == "__main__":
    main()
