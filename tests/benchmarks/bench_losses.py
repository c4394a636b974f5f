"""Time and peak memory of the DSV loss beside two straightforward implementations, as a Markdown table.

    python tests/benchmarks/bench_losses.py [--threads 2] [--rows 250 500 ...] [--million]

Each measurement has a process of its own, which makes its embeddings before the clock starts; memory is what the
computation adds to the peak. The straightforward ones hold every distance and every projection, and use float32:
"matrices" takes the distances from torch.cdist, "broadcast" subtracts every row from every other.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor

from dsv_plugins.losses import dsv, set_distance

WIDTH = 512
ROWS = (250, 500, 1000, 2000, 4000, 8000)
MEMORY_LIMIT = 6e9


class Measurement(TypedDict):
    seconds: float
    mebibytes: float
    value: float


def all_pairs_dsv(
    distances: Callable[[Tensor, Tensor], Tensor], train: Tensor, augmented: Tensor, test: Tensor
) -> Tensor:
    scale = distances(train, augmented).mean()
    l_dis = distances(torch.cat([train, augmented]), test).mean() / scale
    origin = train.mean(dim=0)
    directions = torch.nn.functional.normalize(augmented - origin, dim=1)
    l_sep = (directions @ (test - origin).T).std(correction=0) / scale
    return l_dis - l_sep.clamp(max=0.5) / l_dis


def matrices(train: Tensor, augmented: Tensor, test: Tensor) -> Tensor:
    return all_pairs_dsv(torch.cdist, train, augmented, test)


def broadcast(train: Tensor, augmented: Tensor, test: Tensor) -> Tensor:
    return all_pairs_dsv(lambda a, b: (a[:, None] - b).norm(dim=2), train, augmented, test)


def sampled(train: Tensor, augmented: Tensor, test: Tensor) -> Tensor:
    return set_distance(train, test).value


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    each.__name__: each for each in (dsv, matrices, broadcast, sampled)
}
# The largest tensor of each, the one over train ∪ augmented and test.
EXPECTED_BYTES: dict[str, Callable[[int], float]] = {
    "matrices": lambda rows: 4.0 * 2 * rows**2,
    "broadcast": lambda rows: 4.0 * 2 * rows**2 * WIDTH,
}


def measure(name: str, rows: int, threads: int) -> Measurement:
    """Measure in this process: the best of up to ten runs, as many as ten seconds hold."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    train, augmented, test = (torch.randn(rows, WIDTH, generator=generator).add_(shift) for shift in (0.0, 0.5, 0.2))
    work = IMPLEMENTATIONS[name]
    work(train[:32], augmented[:32], test[:32])
    before = peak()
    seconds: list[float] = []
    while len(seconds) < 10 and sum(seconds) < 10:
        start = time.perf_counter()
        value = float(work(train, augmented, test))
        seconds.append(time.perf_counter() - start)
    return Measurement(seconds=min(seconds), mebibytes=peak() - before, value=value)


def peak() -> float:
    per_mebibyte = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mebibyte


def measured_apart(name: str, rows: int, threads: int) -> Measurement | None:
    """Measure in a process of its own; None where the implementation would need too much memory."""
    if name in EXPECTED_BYTES and EXPECTED_BYTES[name](rows) > MEMORY_LIMIT:
        return None
    command = [sys.executable, __file__, "--threads", str(threads), "--measure", name, "--rows", str(rows)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    result: Measurement = json.loads(output)
    return result


def table_row(rows: int, threads: int) -> str:
    ours, *others = (measured_apart(name, rows, threads) for name in ("dsv", "matrices", "broadcast"))
    assert ours is not None
    cells = [f"{rows:,}", f"{ours['seconds']:.3f} s", f"{ours['mebibytes']:,.0f} MiB"]
    for other in others:
        if other is None:
            cells += ["", "over 6 GB"]
            continue
        assert abs(other["value"] / ours["value"] - 1) < 1e-3, "the implementations disagree"
        time_ratio = other["seconds"] / ours["seconds"]
        memory_ratio = other["mebibytes"] / max(ours["mebibytes"], 1)
        cells.append(f"{other['seconds']:.3f} s (×{time_ratio:.2g})")
        cells.append(f"{other['mebibytes']:,.0f} MiB (×{memory_ratio:.2g})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: 2)")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="sizes of each of the three sets")
    parser.add_argument(
        "--million", action="store_true", help="also the sampled distance of 1,000,000 rows; takes 7 GB"
    )
    parser.add_argument("--measure", choices=IMPLEMENTATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.rows[0], options.threads)))
        return
    print(
        f"Three sets of width {WIDTH}, {options.threads} threads, torch {torch.__version__}; (×): relative to `dsv`\n"
    )
    print("| rows | `dsv` time | memory | matrices time | memory | broadcast time | memory |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for rows in options.rows:
        print(table_row(rows, options.threads), flush=True)
    if options.million:
        result = measured_apart("sampled", 1_000_000, options.threads)
        assert result is not None
        seconds, mebibytes = f"{result['seconds']:.3f} s", f"{result['mebibytes']:,.0f} MiB"
        print(f"| `set_distance`, 1,000,000 × 1,000,000 sampled | {seconds} | {mebibytes} | | | | |")


if __name__ == "__main__":
    main()
