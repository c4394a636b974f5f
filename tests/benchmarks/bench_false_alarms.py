"""How often good test images are called anomalous, against the rate that was asked for.

    python tests/benchmarks/bench_false_alarms.py TASKS... [--out FOLDER]

TASKS are tasks in MVTec layout, or folders of such tasks. On each, the default study selects between two sizes of
CutPaste. Then the labels of the test images tell what the verdicts are worth: with the good images that the study kept
out, and again after a recalibration with half of the good test images (judged on the other half, over many draws). A
stopped run resumes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dsv_plugins import InputError, select
from dsv_plugins.bench.methods import auc_of
from dsv_plugins.bench.tasks import find_tasks, labels_of
from dsv_plugins.calibration import Calibration

RATES = (0.01, 0.05, 0.1)
SIZES = [0.005, 0.04]
DRAWS = 500


def found(held_out: np.ndarray, scores: np.ndarray, rate: float) -> float:
    """The share of the scores that are alarms; NaN if that rate cannot be promised."""
    try:
        return float(Calibration(held_out).alarms(scores, rate).mean())
    except InputError:
        return float("nan")


def recalibrated(good: np.ndarray, rate: float, generator: np.random.Generator) -> float:
    """The mean over random halves: one is the good images to decide by, the other is judged."""
    shares = []
    for _ in range(DRAWS):
        order = generator.permutation(len(good))
        half = len(good) // 2
        shares.append(found(good[order[:half]], good[order[half:]], rate))
    return float(np.mean(shares))


def shown(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bench-false-alarms"))
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    asked = [f"{rate:.0%}" for rate in RATES]
    heading = ["task", "kept out", "AUC", *asked, "anomalies found at 5%", "10%, recalibrated", "warns of"]
    print(f"| {' | '.join(heading)} |")
    print(f"|---|---:|---:|{'---:|' * (len(RATES) + 2)}---|", flush=True)
    rows = []
    for task in find_tasks(arguments.tasks):
        out = arguments.out / task.name
        result = select(task.train, task.test, grid={"patch_size": SIZES}, skip_bad=True, out=out)
        evaluation, labels = result.evaluation(result.choice.candidate), np.array(labels_of(out))
        held_out, test = evaluation.scores.holdout.numpy(), evaluation.scores.test.numpy()
        good = test[~labels]
        rates = [found(held_out, good, rate) for rate in RATES]
        rows.append([*rates, found(held_out, test[labels], 0.05), recalibrated(good, 0.1, generator)])
        reasons = {"mean colour": "light", "look unlike": "change", "no anomalies": "chance"}
        told = [word for text, word in reasons.items() if any(text in warning for warning in result.warnings)]
        warned = ", ".join(told)
        numbers = " | ".join(map(shown, rows[-1]))
        auc = f"{auc_of(evaluation, labels):.3f}".lstrip("0")
        print(f"| {task.name} | {len(held_out)} | {auc} | {numbers} | {warned} |", flush=True)
    means = [np.mean([value for value in column if not np.isnan(value)] or [np.nan]) for column in np.transpose(rows)]
    print(f"| mean |  |  | {' | '.join(map(shown, means))} |  |")


if __name__ == "__main__":
    main()
