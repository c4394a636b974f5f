"""The two built-in detectors side by side, in one run on this machine.

    python tests/benchmarks/bench_detectors.py

Times the whole command of a nine-candidate selection with each detector, on a made-up task of 200 train and 100 test
images of 128 px, with two workers of one thread. Then counts the images scored per second on one thread, without
decoding, and measures the memory of a process that trains one candidate. Pages of libraries are shared by all workers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = ",".join(str(round(0.0025 * 2**step, 4)) for step in range(9))
DETECTORS = ("cutpaste-resnet18", "patch-fusion")
TRAIN, TEST, SIDE = 200, 100, 128

PROBE = """
import json, resource, sys, time
import numpy as np, torch
from PIL import Image
from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, build_registry

torch.set_num_threads(1)
registry = build_registry()
detector = registry.create(DetectorEncoderPlugin, sys.argv[1])
files = sys.argv[2:]
images = torch.from_numpy(np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])).permute(0, 3, 1, 2)
detector.fit(images, registry.create(AugmentationPlugin, "cutpaste", {"patch_size": 0.04}), seed=0)
detector.score(images)
started = time.perf_counter()
detector.score(images)
rate = len(images) / (time.perf_counter() - started)
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = dict(line.split(":") for line in open("/proc/self/status"))
print(json.dumps({"rate": rate, "memory": resident / 1024, "shared": int(status["RssFile"].split()[0]) / 1024}))
"""


def write_task(folder: Path) -> None:
    """Noise on a grating; half of the test images have a bright spot."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for part, count in (("train/good", TRAIN), ("test/mixed", TEST)):
        (folder / part).mkdir(parents=True)
        for index in range(count):
            phase = generator.uniform(0, 6.28, 2)
            image = 120 + 40 * np.sin(rows / 5 + phase[0]) * np.cos(columns / 7 + phase[1])
            image = image + generator.normal(0, 6, image.shape)
            if part.startswith("test") and index % 2:
                top, left = generator.integers(8, SIDE - 16, 2)
                image[top : top + 8, left : left + 8] += 60
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).convert("RGB").save(folder / part / f"{index:03d}.png")


def timed_selection(task: Path, run: Path, detector: str) -> float:
    """Seconds of the whole command."""
    command = [sys.executable, "-m", "dsv_plugins", "select", str(task), "--out", str(run), "--workers", "2"]
    command += ["--detector", detector, "--grid", f"patch_size={SIZES}", "--json"]
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder, "task")
        write_task(task)
        files = [str(file) for file in sorted((task / "train/good").glob("*.png"))]
        print("| detector | nine candidates, whole command | images scored a second | memory | of it libraries |")
        print("|---|---:|---:|---:|---:|")
        seconds = {}
        for detector in DETECTORS:
            seconds[detector] = timed_selection(task, Path(folder, detector), detector)
            probe = subprocess.run([sys.executable, "-c", PROBE, detector, *files], capture_output=True, check=True)
            found = json.loads(probe.stdout)
            print(
                f"| `{detector}` | {seconds[detector]:.0f} s | {found['rate']:.0f} | "
                f"{found['memory']:.0f} MB | {found['shared']:.0f} MB |"
            )
    first, second = (seconds[detector] for detector in DETECTORS)
    print(f"\n{DETECTORS[1]} takes {second / first:.2f} times as long as {DETECTORS[0]}")


if __name__ == "__main__":
    main()
