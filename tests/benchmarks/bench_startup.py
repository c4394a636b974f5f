"""What commands cost besides trainings, in one run on this machine: processor time, as ratios to importing torch.

    python tests/benchmarks/bench_startup.py

Each command is timed several times, and so is `import torch`; whatever else the machine does slows both. The study has
nine candidates of one update on forty small images, so that it is mostly what surrounds a training. Processes that end
after their parent are counted too. It needs Linux.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bench_detectors

PR_SET_CHILD_SUBREAPER = 36
REPEATS = 3
TRAIN, TEST = 30, 10
BUDGET = "{image_size: 64}"


def processor_seconds(command: list[str]) -> float:
    """Processor time of a command and of all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    bench_detectors.TRAIN, bench_detectors.TEST = TRAIN, TEST
    dsv, torch = [sys.executable, "-m", "dsv_plugins"], [sys.executable, "-c", "import torch, os; os._exit(0)"]
    with tempfile.TemporaryDirectory() as folder:
        task, run = Path(folder, "task"), Path(folder, "run")
        bench_detectors.write_task(task)
        image = str(next((task / "test").rglob("*.png")))
        select = [*dsv, "select", str(task), "--workers", "2", "--detector-params", BUDGET]
        select += ["--grid", f"patch_size={bench_detectors.SIZES}", "--out"]
        first = [processor_seconds([*select, str(run if turn == 0 else f"{run}-{turn}")]) for turn in range(REPEATS)]
        commands = {
            "dsv --help": [*dsv, "--help"],
            "dsv plugins": [*dsv, "plugins"],
            "dsv score RUN one.png": [*dsv, "score", str(run), image],
            "dsv select, finished": [*select, str(run)],
        }
        found = {name: [processor_seconds(command) for _ in range(REPEATS)] for name, command in commands.items()}
        unit = statistics.median(processor_seconds(torch) for _ in range(REPEATS))
    print("| command | seconds of processor time | ratio to importing torch |")
    print("|---|---:|---:|")
    print(f"| import torch | {unit:.2f} | 1.00 |")
    for name, seconds in {**found, "dsv select, nine candidates of one update, two workers": first}.items():
        print(f"| {name} | {statistics.median(seconds):.2f} | {statistics.median(seconds) / unit:.2f} |")


if __name__ == "__main__":
    main()
