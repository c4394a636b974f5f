"""What many images and many candidates cost, in processor time and memory, in one run on this machine.

    python tests/benchmarks/bench_scale.py [--images N] [--candidates N]

Prints three tables: the processor time of decoding an image; what a
candidate costs besides its training, from a study of many candidates whose detector only looks at
brightness; and the peak memory of the driver and its workers in a selection among two candidates on N + N images with
the default detector. Private memory is what the process alone has; the rest of its resident memory are pages of files,
of libraries and of features on the disk, which processes share and the system may take back.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from dsv_plugins.pixels import decode

SIZE = 192
DECODED = 60
TINY_PLUGINS = Path(__file__).parents[1] / "brightness.py"
POLL_SECONDS = 0.2
MEGABYTE = 2**20


def write_images(folder: Path, count: int, suffix: str, width: int, height: int, seed: int) -> None:
    """Smooth colours with noise, each image another part of them."""
    folder.mkdir(parents=True)
    coarse = np.random.default_rng(0).integers(0, 255, (height // 8, width // 8, 3), np.uint8)
    base = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)

    def write(index: int) -> None:
        generator = np.random.default_rng((seed, index))
        moved = np.roll(base, generator.integers((height, width)), (0, 1))
        pixels = (moved + generator.integers(-12, 13, (height, width, 1), np.int16)).clip(0, 255).astype(np.uint8)
        options = {"quality": 90} if suffix == "jpg" else {"compress_level": 1}
        Image.fromarray(pixels).save(folder / f"{index:05d}.{suffix}", **options)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(count)))


def decoding(folder: Path) -> None:
    print(f"| images | decoded to {SIZE} px |\n|---|---:|")
    for suffix, width, height in (("png", 256, 256), ("jpg", 800, 600), ("jpg", 1920, 1080), ("jpg", 4000, 3000)):
        images = folder / f"{suffix}-{width}"
        write_images(images, 10 if width == 4000 else DECODED, suffix, width, height, 0)
        started, files = time.thread_time(), sorted(images.iterdir())
        for file in files:
            decode(file, SIZE)
        print(f"| {suffix}, {width} × {height} | {1000 * (time.thread_time() - started) / len(files):.1f} ms |")


def selected(task: Path, run: Path, *options: object) -> dict[str, list[tuple[float, float]]]:
    """Run a selection; the peaks of private and of resident memory in MB, of the driver and of each worker."""
    command = [sys.executable, "-m", "dsv_plugins", "select", task, "--out", run, "--workers", 2, *options]
    process = psutil.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks: dict[int, tuple[float, float]] = {}
    while process.poll() is None:
        for each in (process, *process.children()):
            try:
                memory = each.memory_info()
            except psutil.Error:  # it has just ended
                continue
            private, resident = peaks.get(each.pid, (0.0, 0.0))
            own = (memory.rss - memory.shared) / MEGABYTE
            peaks[each.pid] = max(private, own), max(resident, memory.rss / MEGABYTE)
        time.sleep(POLL_SECONDS)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed")
    workers = [peak for pid, peak in peaks.items() if pid != process.pid]
    return {"driver": [peaks[process.pid]], "worker": workers}


def candidates(folder: Path, count: int) -> None:
    for number, part in enumerate(("train", "test")):
        write_images(folder / "few" / part, 30, "png", 32, 32, number)
    plugins = folder / "brightness_plugins.py"
    plugins.write_text(
        TINY_PLUGINS.read_text()
        + "\n\naugmentation = hookimpl(lambda: BrightnessPlugins().augmentation())\n"
        + "detector_encoder = hookimpl(lambda: BrightnessPlugins().detector_encoder())\n"
    )
    grid = "strength=" + ",".join(f"{(index + 1) / (2 * count):.5f}" for index in range(count))
    run = folder / "many"
    named = ("--plugins", plugins, "--augmentation", "brighten", "--detector", "brightness")
    selected(folder / "few", run, *named, "--grid", grid)
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    jobs = [event for event in journal if event["event"] == "finished"]
    records = [json.loads(file.read_text()) for file in run.glob("candidates/*/evaluation.json")]
    inside = sum(sum(record["timings"].values()) for record in records) / len(records)
    each = sum(job["seconds"] for job in jobs) / len(jobs)
    apart = (jobs[-1]["time"] - jobs[0]["time"]) / (len(jobs) - 1)
    print("\n| candidates | seconds of a job | of it besides training and encoding | from one end to the next |")
    print("|---:|---:|---:|---:|")
    print(f"| {len(jobs)} | {each:.3f} | {each - inside:.3f} | {apart:.3f} |")


def memory(folder: Path, count: int) -> None:
    for number, part in enumerate(("train", "test")):
        write_images(folder / "task" / part, count, "png", 256, 256, number)
    peaks = selected(folder / "task", folder / "run", "--grid", "patch_size=0.01,0.04")
    print(f"\n| {count:,} + {count:,} images | private | resident |\n|---|---:|---:|")
    for role, found in peaks.items():
        private, resident = (max(peak[kind] for peak in found) for kind in (0, 1))
        print(f"| {role} | {private:,.0f} MB | {resident:,.0f} MB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        decoding(Path(folder))
        candidates(Path(folder), options.candidates)
        memory(Path(folder), options.images)


if __name__ == "__main__":
    main()
