"""Updates per second of the detector's training against a bare PyTorch loop of the same network and batch.

The two take turns, so that both meet the same machine. Needs an idle one for absolute numbers; on a busy machine
`--clock processor --threads 1` counts processor time, in which waiting for a core has no part.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv_plugins import Augmentation
from dsv_plugins.builtin.augmentations.colour import jitter_colours
from dsv_plugins.builtin.augmentations.cut import CutPaste
from dsv_plugins.builtin.detectors.cutpaste_resnet18.cutpaste_module import IMAGENET_MEAN, IMAGENET_STD
from dsv_plugins.builtin.detectors.cutpaste_resnet18.detector import CutPasteResNet18
from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet import ResNet18
from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet18_settings import PRESETS, Settings

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
TRAIN_IMAGES = 100
AT_LEAST = 0.95


class Timed:
    """An augmentation that notes when it is called: once in each update."""

    def __init__(self, augmentation: Augmentation, clock: Callable[[], float]) -> None:
        self.augmentation, self.clock = augmentation, clock
        self.times: list[float] = []

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        self.times.append(self.clock())
        return self.augmentation(images, generator=generator)

    def updates_per_second(self) -> float:
        """Without the first updates, in which memory is allocated and kernels are made."""
        first = len(self.times) // 4
        return (len(self.times) - 1 - first) / (self.times[-1] - self.times[first])


def ours(images: Tensor, settings: Settings, augmentation: Augmentation) -> None:
    CutPasteResNet18(settings).fit(images, augmentation)


def bare(images: Tensor, settings: Settings, augmentation: Augmentation, memory_format: torch.memory_format) -> None:
    backbone = ResNet18(settings.width)
    network = nn.Sequential(
        backbone, nn.Linear(backbone.features, 128), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Linear(128, 2)
    ).to(memory_format=memory_format)
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.updates)
    generator = torch.Generator().manual_seed(0)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    labels = torch.arange(2).repeat_interleave(settings.batch_size)
    for _ in range(settings.updates):
        batch = images[torch.randint(len(images), (settings.batch_size,), generator=generator)]
        normal = batch.float() / 255
        inputs = torch.cat([normal, augmentation(normal, generator=generator)])
        inputs = jitter_colours(inputs, settings.colour_jitter, generator=generator)
        inputs = ((inputs - mean) / std).contiguous(memory_format=memory_format)
        loss = functional.cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()

    clock = CLOCKS[options.clock]
    torch.set_num_threads(options.threads)
    settings = replace(PRESETS[options.preset], updates=options.updates)
    images = torch.randint(256, (TRAIN_IMAGES, 3, settings.image_size, settings.image_size), dtype=torch.uint8)
    runs: dict[str, Callable[[Augmentation], None]] = {
        "bare loop": lambda augmentation: bare(images, settings, augmentation, torch.channels_last),
        "dsv_plugins": lambda augmentation: ours(images, settings, augmentation),
        "bare loop, not channels last": lambda augmentation: bare(
            images, settings, augmentation, torch.contiguous_format
        ),
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    totals: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.repeats + 1):
        for name, run in runs.items():
            augmentation = Timed(CutPaste(0.08), clock)
            started = clock()
            run(augmentation)
            totals[name].append(options.updates / (clock() - started))
            speeds[name].append(augmentation.updates_per_second())
    # The first round of each is a warm-up. Ratios are taken round by round, in which both met the same machine.
    speeds, totals = ({name: values[1:] for name, values in kept.items()} for kept in (speeds, totals))

    def ratio(measured: dict[str, list[float]], name: str) -> float:
        return statistics.median(a / b for a, b in zip(measured[name], measured["bare loop"], strict=True))

    print(
        f"Preset {options.preset}: {settings.image_size} px, width {settings.width}, batch {settings.batch_size} + ",
        end="",
    )
    print(f"{settings.batch_size}, {options.updates} updates, {options.threads} threads, {options.clock} time\n")
    print("| | updates/s | ratio to the bare loop | updates/s with set-up, encoding, density | ratio |")
    print("|---|---|---|---|---|")
    for name in runs:
        speed, total = statistics.median(speeds[name]), statistics.median(totals[name])
        print(f"| {name} | {speed:.2f} | {ratio(speeds, name):.3f} | {total:.2f} | {ratio(totals, name):.3f} |")
    reached = ratio(speeds, "dsv_plugins")
    print(f"\nMedians of {options.repeats}. The ratio is {reached:.3f}, ", end="")
    print(f"{'at least' if reached >= AT_LEAST else 'below'} {AT_LEAST}.")


if __name__ == "__main__":
    main()
