"""What can decide if there are few good images: those that are trained on, those left out in turn, or some held out.

    python tests/benchmarks/bench_few_images.py TASKS...

TASKS are tasks in MVTec layout. `patch-memory` learns from 12, 20 and 40 good images. The scores that decide are those
of the train images as if each were not in the memory; those of each fifth by a detector trained on the others; and
those of a third that is held out. The rate is 5 %, or the lowest that so many scores can promise. The table has that
rate, the share of 60 other good images that are called anomalous, and that of the defective ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from bench_contamination import MOST, Images, decoded

from dsv_plugins.bench.tasks import NORMAL_FOLDER, find_tasks
from dsv_plugins.calibration import Calibration
from dsv_plugins.data.images import find_images

COUNTS, NEW, FOLDS = (12, 20, 40), 60, 5


def shares(deciding: np.ndarray, new: np.ndarray, defective: np.ndarray) -> list[float]:
    calibration = Calibration(deciding)
    rate = calibration.default_rate
    return [rate, *(float(calibration.alarms(scores, rate).mean()) for scores in (new, defective))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | good images | trained on | left out in turn | a third held out |")
    print("|---|---:|---|---|---|", flush=True)
    for task in find_tasks(arguments.tasks):
        generator = np.random.default_rng(0)
        good, tested = find_images(task.train), find_images(task.test)
        good = [good[place] for place in generator.permutation(len(good))][: COUNTS[-1] + NEW]
        bad = [file for file in tested if file.parent.name != NORMAL_FOLDER]
        bad = [bad[place] for place in generator.permutation(len(bad))][:MOST]
        images = Images(decoded([*good, *bad]))
        new, defective = np.arange(COUNTS[-1], len(good)), np.arange(len(good), len(good) + len(bad))
        for count in COUNTS:
            train = np.arange(count)
            own, *others = images.scores(train, train, new, defective)
            in_turn = np.empty(count)
            for fold in range(FOLDS):
                left_out = train % FOLDS == fold
                in_turn[left_out] = images.scores(train[~left_out], train[left_out])[0]
            held_out, *of_fewer = images.scores(train[count // 3 :], train[: count // 3], new, defective)
            cells = [
                ", ".join(f"{value:.0%}" for value in shares(deciding, *scores))
                for deciding, scores in ((own, others), (in_turn, others), (held_out, of_fewer))
            ]
            print(f"| {task.name} | {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
