"""What defective images among the good ones cost, and what leaving out suspects saves.

    python tests/benchmarks/bench_contamination.py TASKS... [--good 60]

TASKS are tasks in MVTec layout. Of each, 60 good images and 0, 5, 10 and 20 % defective ones are the train images of
`patch-memory`; a fifth is held out, as `dsv select` does. Recall is the share of other defective images that are
flagged at a false-alarm rate of 5 %; false alarms are among the good images that are left and those of the test set.
The features of each image are computed once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from dsv_plugins import DetectorEncoder, build_registry
from dsv_plugins.bench.tasks import NORMAL_FOLDER, find_tasks
from dsv_plugins.calibration import Calibration, images_to_keep_out
from dsv_plugins.data.images import find_images
from dsv_plugins.pixels import decode
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.training.suspects import SCORES, suspects, unlikeness

SHARES = (0.0, 0.05, 0.1, 0.2)
SIZE, MOST, MOST_DROPPED = 256, 40, 0.25


def decoded(files: list[Path]) -> torch.Tensor:
    return torch.from_numpy(np.stack([decode(file, SIZE) for file in files]))


class Images:
    """Images with the features that `patch-memory` takes of them."""

    def __init__(self, pixels: torch.Tensor) -> None:
        self.pixels = pixels
        self.features = build_registry().create(DetectorEncoderPlugin, "patch-memory").frozen_features(pixels)

    def taken(self, detector: DetectorEncoder, places: np.ndarray) -> torch.Tensor:
        some = self.pixels[places]
        detector.reuse_features(some, {name: values[places] for name, values in self.features.items()})
        return some

    def scores(self, train: np.ndarray, *sets: np.ndarray, score: str = "both") -> list[np.ndarray]:
        """The scores of images if these are trained on; those of train images are as if each were left out."""
        detector = build_registry().create(DetectorEncoderPlugin, "patch-memory", {"score": score})
        known = self.taken(detector, train)
        detector.fit(known, lambda images, *, generator: images)
        return [detector.score(known if rows is train else self.taken(detector, rows)).numpy() for rows in sets]


def judged(images: Images, good: np.ndarray, new: np.ndarray, defective: np.ndarray, seed: int) -> list[float]:
    """Recall and false alarms at 5 %, and the AUC."""
    order = np.random.default_rng(seed).permutation(good)
    count = images_to_keep_out(len(good))
    held_out, train = order[:count], order[count:]
    kept, of_new, of_defective = images.scores(train, held_out, new, defective)
    calibration = Calibration(kept)
    flagged = [calibration.alarms(scores, calibration.default_rate).mean() for scores in (of_defective, of_new)]
    labels = np.repeat([1, 0], [len(of_defective), len(of_new)])
    return [*flagged, roc_auc_score(labels, np.concatenate([of_defective, of_new]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--good", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | defective | recall, false alarms, AUC | dropped: defective, good | recall, false alarms, AUC |")
    print("|---|---:|---|---:|---|", flush=True)
    for task in find_tasks(arguments.tasks):
        generator = np.random.default_rng(arguments.seed)
        tested = find_images(task.test)
        bad = [file for file in tested if file.parent.name != NORMAL_FOLDER]
        normal = [file for file in tested if file.parent.name == NORMAL_FOLDER]
        good = find_images(task.train)
        good = [good[place] for place in generator.permutation(len(good))][: arguments.good + MOST]
        most = round(SHARES[-1] / (1 - SHARES[-1]) * arguments.good)
        bad = [bad[place] for place in generator.permutation(len(bad))][: most + MOST]
        images = Images(decoded([*good, *normal, *bad]))
        first_bad = len(good) + len(normal)
        trained, new = np.arange(arguments.good), np.arange(arguments.good, first_bad)
        defective = np.arange(first_bad + most, first_bad + len(bad))
        for share in SHARES:
            count = round(share / (1 - share) * arguments.good)
            mixed = np.concatenate([trained, np.arange(first_bad, first_bad + count)])
            unlike = [unlikeness(images.scores(mixed, mixed, score=each)[0]) for each in SCORES]
            dropped = suspects(np.max(unlike, axis=0), MOST_DROPPED)
            kept = np.delete(mixed, dropped)
            cells = [
                ", ".join(f"{value:.2f}" for value in found[:2]) + f", {found[2]:.3f}"
                for found in (judged(images, each, new, defective, arguments.seed) for each in (mixed, kept))
            ]
            wrong = int((mixed[dropped] < first_bad).sum())
            left = f"{len(dropped) - wrong} of {count}, {wrong}"
            print(f"| {task.name} | {share:.0%} | {cells[0]} | {left} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
