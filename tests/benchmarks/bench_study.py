"""What a study costs besides its trainings, and what a second worker brings, in one run on this machine.

    python tests/benchmarks/bench_study.py [--detector NAME] [--detector-params JSON] [--candidates N]

Runs the same selection on the demo's task with one worker and with two, one thread each, and prints the speed-up, the
share of the time in which no candidate is trained or encoded, and the time from the start to the first update. A shared
start counts as training; a second worker cannot help with it, so that without one the speed-up is larger.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dsv_plugins.bench.demo_task import write_demo_task

SMALLEST, LARGEST = 0.0025, 0.64


def timed_selection(task: Path, run: Path, workers: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of the whole, of the trainings and encodings in it, and until the first update was reported."""
    command = [sys.executable, "-m", "dsv_plugins", "select", str(task), "--out", str(run), "--workers", str(workers)]
    command += ["--detector", options.detector, "--detector-params", options.detector_params]
    sizes = np.geomspace(SMALLEST, LARGEST, options.candidates).round(5)
    command += ["--grid", f"patch_size={','.join(map(str, sizes))}", "--json"]
    started = time.time()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any((run / "progress").glob("*")):
        time.sleep(0.02)
    first = min(file.stat().st_mtime for file in (run / "progress").glob("*")) - started
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    whole = time.time() - started
    evaluations = [json.loads(file.read_text()) for file in run.glob("candidates/*/evaluation.json")]
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    trainings = [event for event in journal if event["event"] in ("finished", "shared start")]
    shared = sum(event["seconds"] for event in trainings if event["event"] == "shared start")
    own = sum(sum(evaluation["timings"].values()) for evaluation in evaluations)
    busy = covered([(event["time"] - event["seconds"], event["time"]) for event in trainings])
    storing = sum(event["seconds"] for event in trainings) - shared - own
    return {
        "whole": whole,
        "own": own,
        "shared": shared,
        "outside": whole - busy + storing / workers,
        "first": first,
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of some spans of time."""
    length, end = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        length += max(0.0, ended - max(begun, end))
        end = max(end, ended)
    return length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", default="patch-fusion")
    parser.add_argument("--detector-params", default="{}")
    parser.add_argument("--candidates", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_demo_task(Path(folder, "task"))
        one = timed_selection(Path(folder, "task"), Path(folder, "one"), 1, options)
        two = timed_selection(Path(folder, "task"), Path(folder, "two"), 2, options)
    print(f"{options.candidates} candidates of {options.detector} {options.detector_params}, one thread\n")
    print(
        "| workers | seconds | shared start | training and encoding of all candidates | outside | first update after |"
    )
    print("|---|---|---|---|---|---|")
    for workers, seconds in ((1, one), (2, two)):
        print(
            f"| {workers} | {seconds['whole']:.0f} | {seconds['shared']:.0f} | {seconds['own']:.0f} "
            f"| {seconds['outside']:.1f} s, {seconds['outside'] / seconds['whole']:.1%} | {seconds['first']:.1f} s |"
        )
    print(f"\ntwo workers are {one['whole'] / two['whole']:.2f} times as fast as one")


if __name__ == "__main__":
    main()
