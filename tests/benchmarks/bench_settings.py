"""What each setting of the pretrained detector is worth: its AUC on labelled tasks, and the CPU seconds it takes.

    python tests/benchmarks/bench_settings.py TASKS... [--out FOLDER]

TASKS are tasks in MVTec layout, or folders of such tasks. One setting at a time differs from the preset `quick`;
CutPaste at two sizes, one seed. Seconds are those that all processes spent on the CPU, so that other programs on the
machine hardly change them. A run that was stopped resumes, but then its seconds are too few.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

SIZES = [0.005, 0.04]
SETTINGS: dict[str, dict[str, object]] = {
    "`quick`": {},
    "`large`": {"preset": "large"},
    "128 px": {"image_size": 128},
    "256 px": {"image_size": 256},
    "1 copy": {"copies": 1},
    "30 updates": {"updates": 30},
    "120 updates": {"updates": 120},
    "learning rate 0.003": {"learning_rate": 3e-3},
    "learning rate 0.0003": {"learning_rate": 3e-4},
}


def measure(tasks: list[Path], params: dict[str, object], out: Path) -> dict[str, float]:
    """The AUC of the mean candidate, of the best one and of the default choice, averaged over the tasks."""
    from dsv_plugins import select
    from dsv_plugins.bench.aucs import labels_of, measure_aucs
    from dsv_plugins.bench.tasks import find_tasks

    rows = []
    for task in find_tasks(tasks):
        result = select(
            task.train,
            task.test,
            grid={"patch_size": SIZES},
            detector_params=params,
            holdout=0.0,
            confidence=False,
            skip_bad=True,
            out=out / task.name,
        )
        aucs = measure_aucs(result, labels_of(result.run))
        rows.append([aucs.mean, aucs.best, *aucs.chosen.values()])
    return dict(zip(("mean", "best", "chosen"), np.mean(rows, axis=0).tolist(), strict=True))


def in_a_process(setting: str, arguments: list[str]) -> tuple[dict[str, float], float]:
    """What `measure` returns for a setting, and the CPU seconds of that."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    command = [sys.executable, __file__, *arguments, "--only", setting]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(printed), spent() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bench-settings"))
    parser.add_argument("--only", choices=SETTINGS, help="print what this setting reaches, as JSON")
    arguments = parser.parse_args()
    if arguments.only:
        place = list(SETTINGS).index(arguments.only)
        print(json.dumps(measure(arguments.tasks, SETTINGS[arguments.only], arguments.out / str(place))))
        return
    print("| setting | mean | best | default choice | CPU time |\n|---|---:|---:|---:|---:|", flush=True)
    reference = None
    for setting in SETTINGS:
        aucs, seconds = in_a_process(setting, sys.argv[1:])
        reference = reference or seconds
        numbers = " | ".join(f"{auc:.3f}".lstrip("0") for auc in aucs.values())
        print(f"| {setting} | {numbers} | {seconds / reference:.2f} |", flush=True)


if __name__ == "__main__":
    main()
