"""What each setting of the pretrained detector is worth: its AUC on labelled tasks, and the CPU seconds it takes.

    python tests/benchmarks/bench_settings.py TASKS... [--out FOLDER]

TASKS are folders as `dsv bench` takes them. One setting at a time differs from the preset `quick`; CutPaste at two
sizes, one seed. Seconds are those of all processes, which another program on the machine hardly changes. A run that was
stopped resumes, but then its seconds are too few.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

SIZES = "0.005,0.04"
SETTINGS: dict[str, dict[str, object]] = {
    "`quick`": {},
    "128 px": {"image_size": 128},
    "256 px": {"image_size": 256},
    "1 copy": {"copies": 1},
    "30 updates": {"updates": 30},
    "120 updates": {"updates": 120},
    "learning rate 0.0003": {"learning_rate": 3e-4},
    "learning rate 0.003": {"learning_rate": 3e-3},
    "`best`": {"preset": "best"},
}


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(tasks: list[str], params: dict[str, object], out: Path) -> tuple[dict[str, float], float]:
    """The mean AUC of each method over the tasks, and the CPU seconds of all of it."""
    command = [sys.executable, "-m", "dsv_plugins", "bench", *tasks, "--augmentations", "cutpaste", "--out", str(out)]
    command += ["--grid", f"patch_size={SIZES}", "--detector-params", json.dumps(params), "--json"]
    before = children_seconds()
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    (row,) = json.loads(printed)["tables"]["auc"]
    return row, children_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("bench-settings"))
    arguments = parser.parse_args()
    print("| setting | mean | best | `cosine` | CPU time |\n|---|---:|---:|---:|---:|", flush=True)
    reference = None
    for index, (name, params) in enumerate(SETTINGS.items()):
        row, seconds = measured(arguments.tasks, params, arguments.out / str(index))
        reference = reference or seconds
        aucs = " | ".join(f"{row[method]:.3f}".lstrip("0") for method in ("Average", "best", "cosine"))
        print(f"| {name} | {aucs} | {seconds / reference:.2f} |", flush=True)


if __name__ == "__main__":
    main()
