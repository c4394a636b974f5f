"""What each augmentation costs beside one training step of a ResNet18: batch 64, 3 × 256 × 256, on the CPU.

Needs an idle machine. Other work slows the step, which lasts seconds, more than an augmentation, which may fit into a
quiet moment, and so makes the shares look smaller than they are. The load by other processes is therefore printed too.
On a busy machine `--clock processor --threads 1` counts processor time, in which waiting for a core has no part.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import psutil
import torch
from torch import nn
from torchvision.models import resnet18

from dsv_plugins.builtin.augmentations.colour import jitter_colours
from dsv_plugins.builtin.augmentations.cut import CutAvg, CutDiff, CutOut, CutPaste

PATCH_SIZES = (0.02, 0.64)
STEP = "ResNet18 step"
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def training_step(images: torch.Tensor) -> Callable[[], None]:
    network = resnet18(num_classes=2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9, weight_decay=3e-5)
    target = torch.arange(len(images)) % 2

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), target).backward()
        optimizer.step()

    return step


def contenders(images: torch.Tensor) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(0)
    runs: dict[str, Callable[[], object]] = {}
    for size in PATCH_SIZES:
        for name, augmentation in {
            "CutOut": CutOut(size),
            "CutAvg": CutAvg(size),
            "CutDiff": CutDiff(size),
            "CutPaste": CutPaste(size),
            "CutPaste, angle 45": CutPaste(size, angle=45.0),
            "CutPaste, jitter 0.1": CutPaste(size, jitter=0.1),
            "CutPaste, angle 45, jitter 0.1": CutPaste(size, angle=45.0, jitter=0.1),
        }.items():
            runs[f"{name} | {size}"] = lambda augmentation=augmentation: augmentation(images, generator=generator)
    runs["colour jitter 0.1 of the input | –"] = lambda: jitter_colours(images, 0.1, generator=generator)
    return runs


def machine_seconds() -> float:
    """Processor time spent by all processes so far."""
    spent = psutil.cpu_times()
    return spent.user + spent.nice + spent.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()

    clock = CLOCKS[options.clock]
    torch.set_num_threads(options.threads)
    images = torch.rand(64, 3, 256, 256)
    runs = {STEP: training_step(images), **contenders(images)}
    times = defaultdict(list)
    wall, busy, own = time.perf_counter(), machine_seconds(), time.process_time()
    for _ in range(options.repeats + 1):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(1000 * (clock() - start))
    wall, busy, own = time.perf_counter() - wall, machine_seconds() - busy, time.process_time() - own
    medians = {name: statistics.median(measured[1:]) for name, measured in times.items()}  # the first is a warm-up
    step = medians.pop(STEP)

    print("| augmentation | patch size | ms | ResNet18 step ms | share |")
    print("|---|---|---|---|---|")
    for name, milliseconds in medians.items():
        print(f"| {name} | {milliseconds:.0f} | {step:.0f} | {milliseconds / step:.2%} |")
    steps = ", ".join(f"{milliseconds:.0f}" for milliseconds in times[STEP][1:])
    print(f"\nMedians of {options.repeats}, {options.clock} time, threads: {options.threads}. Steps: {steps} ms.")
    print(f"Other processes kept {max(busy - own, 0) / wall:.2f} of {psutil.cpu_count()} cores busy.")


if __name__ == "__main__":
    main()
