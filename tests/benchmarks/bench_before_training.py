"""Can candidates be told apart before any training, and what do fewer of them cost?

    python tests/benchmarks/bench_before_training.py OUT

OUT is the folder of a `dsv bench` with the default detector. The selectors judge what the frozen network makes of the
train, augmented and test images. Prints how well each of them orders the trained candidates, the AUC of the one that it
would have trained alone and of its best three as one, and beside them candidates that nobody had to choose.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, Evaluation, SelectorPlugin, build_registry, rank
from dsv_plugins.bench.aucs import auc_of, ensemble_auc, labels_of
from dsv_plugins.bench.statistics import rank_correlation, signed_rank_p
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.store.artifacts import EvaluationFolder
from dsv_plugins.transforms import as_float
from dsv_plugins.types import Candidate, Embeddings, Scores

SELECTORS = ("dsv", "cosine", "mmd", "base", "separability", "discordance")
"""Those that look at augmented images. To the others all candidates are the same as long as nothing is trained."""
BEST = 3
BATCH = 64
ALL = "all as one"

REGISTRY = build_registry()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    runs = sorted(file.parent for file in parser.parse_args().out.glob("*/*-[0-9]/selection.json"))
    trainings: dict[str, int] = {}
    aucs: dict[str, list[float]] = {}
    correlations: dict[str, list[float]] = {name: [] for name in SELECTORS}
    for run in runs:
        pool = sorted((EvaluationFolder(path).load() for path in (run / "candidates").glob("[!.]*")), key=patch_size)
        labels = labels_of(run)
        each = [auc_of(evaluation, labels) for evaluation in pool]
        losses = losses_before_training(run, [evaluation.candidate for evaluation in pool])
        for name, kept in trained_by(pool, losses).items():
            trainings[name] = len(kept)
            aucs.setdefault(name, []).append(ensemble_auc(kept, labels))
        for name, auc in (("any one", float(np.mean(each))), ("the best one, by labels", max(each))):
            trainings[name] = 1
            aucs.setdefault(name, []).append(auc)
        for name in SELECTORS:
            correlations[name].append(rank_correlation([-loss for loss in losses[name]], each))
        print(
            f"{run.parent.name}: {', '.join(f'{name} {values[-1]:.3f}' for name, values in aucs.items())}", flush=True
        )
    print_aucs(trainings, {name: by_task(values, runs) for name, values in aucs.items()})
    print_correlations(correlations)


def trained_by(pool: Sequence[Evaluation], losses: Mapping[str, Sequence[float]]) -> dict[str, list[Evaluation]]:
    """Which of the candidates, in the order of their sizes, each way of saving trainings would have trained."""
    ways = {ALL: list(pool), "the smallest": list(pool[:1])}
    for count in (5, 3, 1):
        ways[f"{count} over the grid"] = [pool[int((place + 0.5) * len(pool) / count)] for place in range(count)]
    for name in SELECTORS:
        best = [pool[place] for place in rank(losses[name])]
        ways |= {f"the best of `{name}`": best[:1], f"the best {BEST} of `{name}`": best[:BEST]}
    return ways


def losses_before_training(run: Path, candidates: Sequence[Candidate]) -> dict[str, Sequence[float]]:
    """What each selector says of the candidates if the network is not trained."""
    dataset = open_dataset(run / "data")
    detector = REGISTRY.create(DetectorEncoderPlugin, "frozen-timm", {})
    detector.fit(dataset.train, lambda images, *, generator: images)
    train, test = detector.encode(dataset.train), detector.encode(dataset.test)
    no_scores = Scores(train=torch.zeros(len(train)), test=torch.zeros(len(test)))
    evaluations = []
    for candidate in candidates:
        augmented = embedded_copies(candidate, dataset.train, detector.encode)
        evaluations.append(Evaluation(candidate, Embeddings(train=train, augmented=augmented, test=test), no_scores))
    return {name: REGISTRY.create(SelectorPlugin, name).losses(evaluations) for name in SELECTORS}


def embedded_copies(candidate: Candidate, images: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """The embedding of one augmented copy of each image."""
    augmentation = REGISTRY.create(AugmentationPlugin, candidate.augmentation, candidate.augmentation_params)
    generator = torch.Generator().manual_seed(candidate.seed)
    batches = torch.split(images, BATCH)
    return torch.cat([encode(augmentation(as_float(batch), generator=generator)) for batch in batches])


def by_task(values: Sequence[float], runs: Sequence[Path]) -> list[float]:
    """The mean over the seeds of each task."""
    tasks = np.array([run.parent.name for run in runs])
    return [float(np.mean(np.asarray(values)[tasks == task])) for task in np.unique(tasks)]


def patch_size(evaluation: Evaluation) -> float:
    return float(str(evaluation.candidate.params["patch_size"]))


def print_aucs(trainings: Mapping[str, int], aucs: Mapping[str, Sequence[float]]) -> None:
    print(f"\n| {len(aucs[ALL])} tasks | trainings | AUC | better : worse than {ALL} | p |\n|---|---:|---:|---:|---:|")
    for name, values in sorted(aucs.items(), key=lambda item: -np.mean(item[1])):
        differences = np.subtract(values, aucs[ALL])
        compared = f"{(differences > 0).sum()} : {(differences < 0).sum()} | {signed_rank_p(values, aucs[ALL]):.2g}"
        print(f"| {name} | {trainings[name]} | {np.mean(values):.3f} | {compared} |")


def print_correlations(correlations: Mapping[str, Sequence[float]]) -> None:
    print("\n| before any training | mean rank correlation with the AUC | lowest | highest |\n|---|---:|---:|---:|")
    for name, values in correlations.items():
        finite = [value for value in values if math.isfinite(value)]
        print(f"| `{name}` | {np.mean(finite):.2f} | {min(finite):.2f} | {max(finite):.2f} |")


if __name__ == "__main__":
    main()
