"""What would SWSA choose? Detectors judged by synthetic anomalies of other augmentations than their own.

    python tests/benchmarks/bench_swsa.py OUT

OUT is the folder of a `dsv bench` with a holdout. For every candidate, held-out normals are told from copies of them
under the three built-in augmentations that it was not trained on; the candidate with the largest AUROC is chosen. This
needs the trained detectors, where a selector sees embeddings and scores only, so that it is a script and no plugin.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import torch
from sklearn.metrics import roc_auc_score

from dsv_plugins import AugmentationPlugin, build_registry
from dsv_plugins.bench.aucs import auc_of, labels_of
from dsv_plugins.bench.protocol import AUGMENTATIONS
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.store.artifacts import EvaluationFolder
from dsv_plugins.training.evaluate import make_detector
from dsv_plugins.transforms import as_float

SIZES = (0.0025, 0.64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    torch.set_num_threads(1)
    registry = build_registry()
    chosen, best = [], []
    for run in sorted(file.parent for file in parser.parse_args().out.glob("*/*-[0-9]/selection.json")):
        normals = open_dataset(run / "data").holdout
        if normals is None:
            raise SystemExit(f"{run} has no held-out images; run dsv bench with --holdout 0.15")
        pool = []
        for folder in sorted((run / "candidates").glob("[!.]*")):
            stored = EvaluationFolder(folder)
            evaluation = stored.load()
            detector = make_detector(registry, evaluation.candidate)
            detector.load(stored.detector)
            generator = torch.Generator().manual_seed(0)
            others = [name for name in AUGMENTATIONS if name != evaluation.candidate.augmentation]
            copies = torch.cat(
                [
                    registry.create(AugmentationPlugin, name, {"patch_size": SIZES})(
                        as_float(normals), generator=generator
                    )
                    for name in others
                ]
            )
            scores = torch.cat([detector.score(normals), detector.score(copies)])
            labels = [False] * len(normals) + [True] * len(copies)
            pool.append((roc_auc_score(labels, scores), auc_of(evaluation, labels_of(run))))
        chosen.append(max(pool)[1])
        best.append(max(auc for _, auc in pool))
        print(f"{run.parent.name}, {run.name}: {chosen[-1]:.3f}, best {best[-1]:.3f}", flush=True)
    regrets = [top - auc for top, auc in zip(best, chosen, strict=True)]
    print(
        f"{len(chosen)} pools: mean {fmean(chosen):.3f}, mean regret {fmean(regrets):.3f}, largest {max(regrets):.3f}"
    )


if __name__ == "__main__":
    main()
