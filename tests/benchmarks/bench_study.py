"""What a study costs besides its trainings, and what a second worker brings, in one run on this machine.

    python tests/benchmarks/bench_study.py [--updates N]

Runs the same nine-candidate selection on the demo's task with one worker and with two, one thread each, and prints the
speed-up, the share of the time outside training and encoding, and the time from the start to the first update.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dsv_plugins.bench.demo_task import write_demo_task

CANDIDATES = 9
SIZES = ",".join(str(round(0.0025 * 2**step, 4)) for step in range(CANDIDATES))


def timed_selection(task: Path, run: Path, workers: int, updates: int) -> dict[str, float]:
    """Seconds of the whole, of the trainings and encodings in it, and until the first update was reported."""
    command = [sys.executable, "-m", "dsv_plugins", "select", str(task), "--out", str(run), "--workers", str(workers)]
    command += ["--grid", f"patch_size={SIZES}", "--updates", str(updates), "--json"]
    started = time.time()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any((run / "progress").glob("*")):
        time.sleep(0.02)
    first = min(file.stat().st_mtime for file in (run / "progress").glob("*")) - started
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    whole = time.time() - started
    evaluations = [json.loads(file.read_text()) for file in run.glob("candidates/*/evaluation.json")]
    return {"whole": whole, "work": sum(sum(e["timings"].values()) for e in evaluations), "first": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=300)
    updates = parser.parse_args().updates
    with tempfile.TemporaryDirectory() as folder:
        write_demo_task(Path(folder, "task"))
        one = timed_selection(Path(folder, "task"), Path(folder, "one"), 1, updates)
        two = timed_selection(Path(folder, "task"), Path(folder, "two"), 2, updates)
    print(f"{CANDIDATES} candidates of {updates} updates, one thread each\n")
    print("| workers | seconds | of which training and encoding | outside | first update reported after |")
    print("|---|---|---|---|---|")
    for workers, seconds in ((1, one), (2, two)):
        outside = 1 - seconds["work"] / workers / seconds["whole"]
        print(
            f"| {workers} | {seconds['whole']:.0f} | {seconds['work']:.0f} | {outside:.1%} | {seconds['first']:.1f} s |"
        )
    print(f"\ntwo workers are {one['whole'] / two['whole']:.2f} times as fast as one")


if __name__ == "__main__":
    main()
