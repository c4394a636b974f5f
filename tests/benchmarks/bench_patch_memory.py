"""What the patch detectors cost beside their backbone, on one thread and without decoding.

    python tests/benchmarks/bench_patch_memory.py [--images 200] [--large 5000]

Prints the time of fitting and scoring as multiples of one pass of the backbone, measured by turns in one process, the
size of the saved model, and the peak memory of a process that fits many images whose features are on the disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, build_registry

SIZE, ROUNDS, SCORED = 256, 3, 100

PROBE = """
import json, resource, sys
import numpy as np, torch
from dsv_plugins import DetectorEncoderPlugin, build_registry

count, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
detector = build_registry().create(DetectorEncoderPlugin, "patch-memory")
pixels = torch.from_numpy(np.load(f"{folder}/pixels.npy", mmap_mode="c"))
def mapped(name):
    return torch.from_numpy(np.load(f"{folder}/{name}.npy", mmap_mode="c"))
detector.reuse_features(pixels, {name: mapped(name) for name in ("patches", "pooled")})
def private():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["RssAnon"].split()[0]) / 1024
before = private()
detector.fit(pixels, None)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"before": before, "after": private(), "resident": peak}))
"""


def images(count: int, seed: int = 0) -> torch.Tensor:
    """Smooth noise, each image its own."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, SIZE // 8, SIZE // 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")
    return (smooth * 255).to(torch.uint8)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratios(count: int) -> None:
    registry, pixels, new = build_registry(), images(count), images(SCORED, seed=1)
    augmentation = registry.create(AugmentationPlugin, "cutpaste", {"patch_size": 0.04})
    detector = registry.create(DetectorEncoderPlugin, "patch-memory")
    detector.frozen_features(new)
    passes, fits, scores, alone = [], [], [], []
    for _ in range(ROUNDS):
        passes.append(seconds(lambda: detector.prepare(pixels)))
        fits.append(seconds(lambda: detector.fit(pixels, augmentation)))
        alone.append(seconds(lambda: detector.frozen_features(new)))
        scores.append(seconds(lambda: detector.score(new)))
    with tempfile.TemporaryDirectory() as folder:
        detector.save(Path(folder))
        size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
    print(f"{count} train images of {SIZE} px, one thread, medians of {ROUNDS}")
    print(f"one pass of the backbone: {median(passes):.1f} s, {count / median(passes):.0f} images a second")
    print(f"fitting with that pass: {(median(passes) + median(fits)) / median(passes):.2f} passes")
    print(f"scoring: {median(alone) / median(scores):.2f} of the images a second that the backbone alone manages")
    print(f"the saved model: {size:.0f} MB")


def memory(count: int) -> None:
    import numpy as np

    detector = build_registry().create(DetectorEncoderPlugin, "patch-memory")
    sample = detector.frozen_features(images(8))
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "pixels.npy"), np.zeros((count, 3, 8, 8), dtype=np.uint8))
        for name, values in sample.items():
            shape = (count, *values.shape[1:])
            stored = np.lib.format.open_memmap(Path(folder, f"{name}.npy"), "w+", values.numpy().dtype, shape)
            generator = np.random.default_rng(0)
            for start in range(0, count, 8):
                noise = 1 + 0.1 * generator.standard_normal(stored[start : start + 8].shape, dtype=np.float32)
                stored[start : start + 8] = values.numpy()[: len(noise)] * noise
            stored.flush()
        answer = subprocess.run(
            [sys.executable, "-c", PROBE, str(count), folder], check=True, stdout=subprocess.PIPE, text=True
        )
    found = json.loads(answer.stdout)
    print(
        f"{count} train images: {found['before']:.0f} MB private before the fit, {found['after']:.0f} MB after it; "
        f"{found['resident']:.0f} MB resident at the peak, with the features, which are mapped from the disk"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--large", type=int, default=5000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    ratios(given.images)
    memory(given.large)


if __name__ == "__main__":
    main()
