"""Time and peak memory of the DSV loss beside two straightforward implementations, as a Markdown table.

    python tests/benchmarks/bench_losses.py [--threads 2] [--rows 250 500 ...] [--million]
    python tests/benchmarks/bench_losses.py --side-by-side [--rows 250 500 ...]
    python tests/benchmarks/bench_losses.py --judging

Each measurement has a process of its own, which makes its embeddings before the clock starts; memory is what the
computation adds to the peak. The straightforward ones hold every distance and every projection, and use float32:
"matrices" takes the distances from torch.cdist, "broadcast" subtracts every row from every other.

`--side-by-side` and `--judging` measure processor time on one thread, by turns in one process: their ratios stand on a
busy machine too. The first compares the three mean distances of DSV with three calls of torch.cdist, for embeddings
1,000 away from the origin. The second judges nine candidates by all selectors, with 100 resamples where each candidate
is judged alone: as a study does, and one resample after the other.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypedDict

import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from dsv_plugins import Candidate, Embeddings, Evaluation, Scores, SelectorPlugin, build_registry
from dsv_plugins.losses import dsv, set_distance
from dsv_plugins.study import bootstrap
from dsv_plugins.study.judging import judge_pool

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


def by_turns(works: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The median processor time of each work, measured by turns for about that long."""
    times: dict[str, list[float]] = {name: [] for name in works}
    rounds = 0
    while rounds < 3 or sum(map(sum, times.values())) < seconds:
        for name, work in works.items():
            start = time.process_time()
            work()
            times[name].append(time.process_time() - start)
        rounds += 1
    return {name: median(measured) for name, measured in times.items()}


def side_by_side(sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    print(
        "| rows | three `cdist` | three `set_distance` | ratio | largest error | of `cdist` | `dsv`: matrices / ours |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for rows in sizes:
        generator = torch.Generator().manual_seed(0)
        sets = [torch.randn(rows, WIDTH, generator=generator).add_(1000 + shift) for shift in (0.0, 0.5, 0.2)]
        pairs = [(sets[0], sets[1]), (sets[0], sets[2]), (sets[1], sets[2])]

        def naive(pairs: list[tuple[Tensor, Tensor]] = pairs) -> list[float]:
            return [float(torch.cdist(a, b).mean()) for a, b in pairs]

        def ours(pairs: list[tuple[Tensor, Tensor]] = pairs) -> list[float]:
            return [float(set_distance(a, b)) for a, b in pairs]

        works: dict[str, Callable[[], object]] = {
            "naive": naive,
            "ours": ours,
            "matrices": lambda sets=sets: float(matrices(*sets)),  # type: ignore[misc]
            "dsv": lambda sets=sets: float(dsv(*sets)),  # type: ignore[misc]
        }
        times = by_turns(works, seconds=5)
        # By differences in float64, of at most 1,000 rows against all: that takes long enough.
        oracle = [cdist(a[:1000].double(), b.double()).mean() for a, b in pairs]
        parts = [(a[:1000], b) for a, b in pairs]
        errors = [max(abs(x / y - 1) for x, y in zip(f(parts), oracle, strict=True)) for f in (ours, naive)]
        cells = [f"{rows:,}", *(f"{1000 * times[name]:,.1f} ms" for name in ("naive", "ours"))]
        cells += [f"×{times['naive'] / times['ours']:.2f}", *(f"{error:.0e}" for error in errors)]
        print(f"| {' | '.join(cells)} | ×{times['matrices'] / times['dsv']:.2f} |", flush=True)


class OnlyLosses:
    """A selector without the optional method, as those of third parties are."""

    def __init__(self, selector: str) -> None:
        self.selector = build_registry().create(SelectorPlugin, selector)

    def losses(self, evaluations: Sequence[Evaluation]) -> Sequence[float]:
        return self.selector.losses(evaluations)


def candidate(place: int, width: int = 432) -> Evaluation:
    generator = torch.Generator().manual_seed(place)

    def cloud(rows: int, shift: float) -> Tensor:
        return torch.randn(rows, width, generator=generator) * (1 + place / 10) + shift

    train, augmented, test, holdout = cloud(200, 0.0), cloud(200, 0.5), cloud(100, 0.2), cloud(40, 0.0)
    scores = (each.norm(dim=1) for each in (train, test, holdout, augmented))
    return Evaluation(
        Candidate("cutout", {"patch_size": place}), Embeddings(train, augmented, test, holdout), Scores(*scores)
    )


def judging() -> None:
    torch.set_num_threads(1)
    bootstrap.MAX_RESAMPLES = 100
    registry = build_registry()
    names = [record.name for record in registry.of_kind(SelectorPlugin)]
    pool = [candidate(place) for place in range(9)]

    def together() -> None:
        judge_pool(registry, names, pool, seed=0, confidence=True, note=print)

    def apart() -> None:
        for name in names:
            selector, alone = OnlyLosses(name), registry.get(SelectorPlugin, name).judges_alone
            selector.losses(pool)
            bootstrap.win_shares(selector, pool, seed=0, judges_alone=alone)

    times = by_turns({"together": together, "apart": apart}, seconds=10)
    print(f"{len(names)} selectors, nine candidates: {times['together']:.2f} s of processor time")
    ratio = times["apart"] / times["together"]
    print(f"one resample after the other: {times['apart']:.2f} s (×{ratio:.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: 2)")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="sizes of each of the three sets")
    parser.add_argument(
        "--million", action="store_true", help="also the sampled distance of 1,000,000 rows; takes 7 GB"
    )
    parser.add_argument("--side-by-side", action="store_true", help="ratios of processor time, in one process")
    parser.add_argument("--judging", action="store_true", help="all selectors with their bootstraps")
    parser.add_argument("--measure", choices=IMPLEMENTATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side_by_side:
        side_by_side(options.rows)
        return
    if options.judging:
        judging()
        return
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
