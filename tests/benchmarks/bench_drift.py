"""After how many images a change of the light is told, and how often a change is told that was none.

    python tests/benchmarks/bench_drift.py TASKS... [--light 0.75] [--good 60]

TASKS are tasks in MVTec layout. `patch-memory` learns from 41 good images, and 19 are held out. Streams of 200 are
drawn from the other good images, 50 times: as they are, with a fifth of defective ones, dimmed, and dimmed after 1,000
images as they are. The last column is the share of images above the highest held-out score, as they are and dimmed.
Without tasks, streams of 10,000 numbers are simulated that do not change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from bench_contamination import Images, decoded

from dsv_plugins.bench.tasks import NORMAL_FOLDER, find_tasks
from dsv_plugins.calibration import images_to_keep_out
from dsv_plugins.data.images import find_images
from dsv_plugins.drift import HORIZON, USUAL_ANOMALIES, Drift
from dsv_plugins.transforms import mean_colours

DRAWS, LENGTH, EARLIER, DEFECTIVE = 50, 200, 1000, 0.2
STREAMS = 100


def told_at(held_out: np.ndarray, stream: np.ndarray, start: int = 0) -> float:
    """The number of images from `start` on after which a change is told; infinite if it is not, negative if before."""
    drift = Drift(*held_out.T)
    if drift.add(*stream.T) is None:
        return np.inf
    drift = Drift(*held_out.T)
    return next(n for n, row in enumerate(stream, 1) if drift.add(*row[:, None])) - start


def simulated() -> None:
    """Streams without a change, of 30 % anomalies and otherwise as the held-out images."""
    for count in (20, 100):
        alarms = 0
        for seed in range(STREAMS):
            generator = np.random.default_rng(seed)
            anomalous = generator.random(HORIZON) < USUAL_ANOMALIES
            scores = np.where(anomalous, 10, 0) + generator.normal(size=HORIZON)
            light = np.where(anomalous, 10, 0) + generator.normal(size=HORIZON)
            alarms += Drift(*generator.normal(size=(2, count))).add(scores, light) is not None
        print(f"{count} held-out images: {alarms} of {STREAMS} streams of {HORIZON:,} images", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", type=Path)
    parser.add_argument("--light", type=float, default=0.75)
    parser.add_argument("--good", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.tasks:
        simulated()
        return
    columns = ["as they are: told", "a fifth defective", "dimmed: after (most)", "after 1,000: after (most)"]
    print(f"| {' | '.join(['task', *columns, 'unusual scores, dimmed'])} |")
    print("|---|---:|---:|---:|---:|---|", flush=True)
    for task in find_tasks(arguments.tasks):
        generator = np.random.default_rng(0)
        good = find_images(task.train)
        good = [good[place] for place in generator.permutation(len(good))][: 2 * arguments.good]
        bad = [file for file in find_images(task.test) if file.parent.name != NORMAL_FOLDER]
        pixels = decoded([*good, *bad])
        new = pixels[arguments.good : len(good)]
        images = Images(torch.cat([pixels, (new.float() * arguments.light).round().to(torch.uint8)]))
        count = images_to_keep_out(arguments.good)
        ends = [arguments.good - count, arguments.good, len(good), len(pixels), len(images.pixels)]
        train, *sets = np.split(np.arange(len(images.pixels)), ends[:-1])
        light = mean_colours(images.pixels)[:, -1].numpy()
        scores = images.scores(train, *sets)
        held_out, usual, defective, dimmed = (
            np.column_stack([values, light[places]]) for values, places in zip(scores, sets, strict=True)
        )
        found: dict[str, list[float]] = {"usual": [], "defective": [], "dimmed": [], "late": []}
        for _ in range(DRAWS):
            some, dark = (rows[generator.integers(len(rows), size=LENGTH)] for rows in (usual, dimmed))
            mixed = np.where(
                generator.random((LENGTH, 1)) < DEFECTIVE,
                defective[generator.integers(len(defective), size=LENGTH)],
                some,
            )
            before = usual[generator.integers(len(usual), size=EARLIER)]
            found["usual"].append(told_at(held_out, some))
            found["defective"].append(told_at(held_out, mixed))
            found["dimmed"].append(told_at(held_out, dark))
            found["late"].append(told_at(held_out, np.concatenate([before, dark]), EARLIER))
        told = [f"{np.isfinite(found[name]).mean():.0%}" for name in ("usual", "defective")]
        after = [f"{np.median(found[name]):.0f} ({max(found[name]):.0f})" for name in ("dimmed", "late")]
        highest = held_out[:, 0].max()
        unusual = ", ".join(f"{(rows[:, 0] > highest).mean():.0%}" for rows in (usual, dimmed))
        print(f"| {task.name} | {' | '.join([*told, *after, unusual])} |", flush=True)


if __name__ == "__main__":
    main()
