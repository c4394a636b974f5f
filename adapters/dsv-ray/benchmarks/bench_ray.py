"""What Ray costs for a candidate, and what a second worker brings, beside `processes`, in one run on this machine.

    python adapters/dsv-ray/benchmarks/bench_ray.py [--candidates N] [--updates N]

Prints, for each engine, the seconds until its first workers are ready, the seconds for a candidate that are not its
work, and the speed-up of the same trainings from one worker to two, with workers that are ready.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from dsv_plugins import Candidate, ExecutorPlugin, build_registry
from dsv_plugins.data.dataset import prepare
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.training.job import Job, train_candidate

ENGINES = ("processes", "ray")
DETECTOR = "cutpaste-resnet18"
SMALL = {"image_size": 16, "width": 1, "updates": 1, "batch_size": 2}
SMALL_CANDIDATES = 20
TRAINED = {"image_size": 64, "width": 16, "batch_size": 32}


def main() -> None:
    """Measure, and print two tables' worth of numbers as one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--updates", type=int, default=25)
    arguments = parser.parse_args()
    print(f"{arguments.candidates} candidates of {arguments.updates} updates, one thread each\n")
    print("| engine | ready after | for a candidate, besides its work | one worker | two workers | speed-up |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        small = jobs_in(Path(folder, "small"), SMALL, SMALL_CANDIDATES)
        trained = jobs_in(Path(folder, "trained"), {**TRAINED, "updates": arguments.updates}, arguments.candidates)
        for engine in ENGINES:
            # Two workers first: a Ray of this machine has the size that its first executor asks for.
            two, one = (build_registry().create(ExecutorPlugin, engine, {"workers": count}) for count in (2, 1))
            ready, _ = timed(two, small[:4])
            with_two, _ = timed(two, trained)
            timed(one, small[:2])
            with_one, _ = timed(one, trained)
            whole, worked = timed(one, small)
            overhead = (whole - worked) / len(small)
            print(
                f"| {engine} | {ready:.1f} s | {1000 * overhead:.0f} ms | {with_one:.1f} s | {with_two:.1f} s "
                f"| {with_one / with_two:.2f} |",
                flush=True,
            )


def jobs_in(folder: Path, settings: dict[str, object], count: int) -> list[Job]:
    """The jobs of a study of random images, in a run folder that is ready for them."""
    size = int(str(settings["image_size"]))
    images = torch.randint(0, 256, (120, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    run = RunFolder(folder)
    run.progress.mkdir(parents=True)
    prepare(images[:80], images[80:], run.data, size=size)
    sizes = [0.02 + 0.6 * index / count for index in range(count)]
    return [
        Job(folder, Candidate("cutpaste", {"patch_size": size}, detector=DETECTOR, detector_params=settings))
        for size in sizes
    ]


def timed(executor: object, jobs: list[Job]) -> tuple[float, float]:
    """The seconds of all jobs together, and those that the work itself took."""
    again = [replace(job, candidate=replace(job.candidate, seed=time.time_ns() % 2**31)) for job in jobs]
    started = time.monotonic()
    outcomes = list(executor.run(train_candidate, again))  # type: ignore[attr-defined]
    whole = time.monotonic() - started
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return whole, sum(outcome.value for outcome in outcomes)


if __name__ == "__main__":
    main()
