"""The AUC of several candidates as one: ensembles of the best k, on the candidates of a benchmark.

    python tests/benchmarks/bench_ensembles.py OUT [--selectors dsv,cosine]

OUT is the folder of a `dsv bench`. Prints, for each selector and k, the AUC of the mean of the rank-normalised test
scores of its best k candidates, in the mean over all pools, and the largest regret to the best single candidate.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import torch

from dsv_plugins import SelectorPlugin, build_registry
from dsv_plugins.bench.methods import auc_of, ensemble_auc
from dsv_plugins.bench.tasks import labels_of
from dsv_plugins.plugins.search import rank
from dsv_plugins.run.artifacts import EvaluationFolder

COUNTS = (1, 2, 3, 5, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--selectors", default="dsv,cosine,separability,mc")
    options = parser.parse_args()
    torch.set_num_threads(1)
    registry = build_registry()
    names = options.selectors.split(",")
    aucs: dict[tuple[str, int], list[float]] = {(name, count): [] for name in names for count in COUNTS}
    best = []
    for run in sorted(file.parent for file in options.out.glob("*/*-[0-9]/selection.json")):
        pool = [EvaluationFolder(folder).load() for folder in sorted((run / "candidates").glob("[!.]*"))]
        labels = labels_of(run)
        best.append(max(auc_of(evaluation, labels) for evaluation in pool))
        for name in names:
            order = rank(registry.create(SelectorPlugin, name).losses(pool))
            for count in COUNTS:
                aucs[name, count].append(ensemble_auc([pool[index] for index in order[:count]], labels))
    print(f"{len(best)} pools, best single candidate {fmean(best):.3f}\n")
    print("| selector | " + " | ".join(f"k = {count}" for count in COUNTS) + " |")
    print("|---|" + "---:|" * len(COUNTS))
    for name in names:
        cells = []
        for count in COUNTS:
            regret = max(top - auc for top, auc in zip(best, aucs[name, count], strict=True))
            cells.append(f"{fmean(aucs[name, count]):.3f} ({regret:.2f})")
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
