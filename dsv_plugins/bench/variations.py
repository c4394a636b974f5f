"""Choices on changed test sets: with fewer anomalies, or with normal test images brighter than the train images.

The selectors judge the trained candidates again on the changed test sets; nothing is trained. Labels are only used to
change the test sets and to compute AUCs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dsv_plugins.bench.aucs import auc_of
from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.frames import BEST
from dsv_plugins.bench.methods import AVERAGE, SIDELINES, Method, losses_of
from dsv_plugins.bench.table import Table
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.plugins.search import choose
from dsv_plugins.run.run import Run
from dsv_plugins.seeding import derived_seed
from dsv_plugins.study.bootstrap import on_rows
from dsv_plugins.types import Evaluation

__all__ = ["FULL", "Variations", "VariedAUCs", "variations_table", "vary"]

FULL = "full"
DRAWS = 5


@dataclass(frozen=True)
class Variations:
    """The changes to make to the test sets.

    Attributes:
        thin: Shares of the test set to which anomalies are reduced, in several draws each.
        brighten: The factor by which the pixels of the normal test images are multiplied; None to leave them.
    """

    thin: Sequence[float] = ()
    brighten: float | None = None

    def __bool__(self) -> bool:
        return bool(self.thin) or self.brighten is not None

    def check(self) -> None:
        """Check the settings.

        Raises:
            InputError: A share or the factor is out of range, or a share is given twice.
        """
        if len({_thinned_name(share) for share in self.thin}) < len(self.thin):
            raise InputError(f"thin has a share twice: {', '.join(map(str, self.thin))}; give each once")
        for share in self.thin:
            if not 0 < share < 1:
                raise InputError(f"thin has the share {share}; give shares of the test set between 0 and 1")
        if self.brighten is not None and not self.brighten > 0:
            raise InputError(f"brighten is {self.brighten}; give a factor above 0, as 1.05")


@dataclass(frozen=True, slots=True)
class VariedAUCs:
    """The AUCs of the methods' choices in one cell, on one changed test set.

    Attributes:
        task: Name of the task.
        augmentation: Name of the augmentation.
        seed: Seed of the trainings.
        variation: The change, in words.
        aucs: The AUC of each method's choice, as the mean over the draws.
    """

    task: str
    augmentation: str
    seed: int
    variation: str
    aucs: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """The AUCs as one JSON object."""
        return asdict(self)


def vary(
    cell: Cell,
    evaluations: Sequence[Evaluation],
    labels: Sequence[bool],
    result: Run,
    *,
    variations: Variations,
    methods: Sequence[Method],
    registry: Registry,
) -> list[VariedAUCs]:
    """The AUCs of the methods' choices in a cell on the full and on each changed test set.

    With fewer anomalies, the AUC of a choice is that on the full test set, which is the better estimate; with brighter
    normals, it is that on the changed test set.

    Args:
        cell: The cell, measured on the full test set.
        evaluations: Its candidates.
        labels: Whether each test image is anomalous.
        result: The study, with the detectors.
        variations: The changes.
        methods: The methods to compare; parts and variants of DSV are left out.
        registry: Where the selectors are found.
    """
    if not variations:
        return []
    name = (cell.task, cell.augmentation, cell.seed)
    compared = [method for method in methods if method.label not in SIDELINES]
    usable = [evaluation for evaluation in evaluations if evaluation.scores.test.isfinite().all()]
    varied = [VariedAUCs(*name, FULL, {**cell.aucs, BEST: cell.best})]
    for share in variations.thin:
        draws_of_rows = thinned_rows(labels, share, cell.seed)
        pools = [[on_rows(each, {"test": rows}) for each in usable] for rows in draws_of_rows]
        draws = pd.DataFrame([_choices_aucs(pool, cell.pool, compared, registry) for pool in pools])
        if len(draws):  # a method that fails in one draw is left out
            means = draws.dropna(axis=1).mean().to_dict()
            varied.append(VariedAUCs(*name, _thinned_name(share), means))
    if variations.brighten is not None:
        pool = _brightened(usable, labels, result, variations.brighten)
        aucs = [auc_of(evaluation, labels) for evaluation in pool]
        chosen = _choices_aucs(pool, aucs, compared, registry)
        varied.append(VariedAUCs(*name, f"normals × {variations.brighten:g}", chosen))
    return varied


def variations_table(varied: Sequence[VariedAUCs]) -> Table:
    """The mean AUC of each method's choices on each changed test set, beside the full one."""
    cell = ["augmentation", "task", "seed"]
    names = [(each.augmentation, each.task, each.seed, each.variation) for each in varied]
    index = pd.MultiIndex.from_tuples(names, names=[*cell, "variation"])
    aucs = pd.DataFrame([each.aucs for each in varied], index=index)
    variations = aucs.index.unique("variation")
    # A task with too few anomalies for a share lacks that variation; only cells that have all are compared.
    complete = aucs.groupby(level=cell).filter(lambda group: len(group) == len(variations)).dropna(axis=1)
    tasks = complete.groupby(level=["augmentation", "task", "variation"]).mean()
    means = tasks.groupby(level="variation").mean().reindex(variations)
    return Table(
        "variations",
        "Average AUC on changed test sets",
        means.T.dropna().rename_axis(index="method"),
        note=f"Mean over all tasks and augmentations that have every test set, {_cells(complete)} of {_cells(aucs)} "
        f"cells. With fewer anomalies, selectors see only a part of them, in {DRAWS} draws, and a choice counts with "
        "its AUC on the full test set. With brighter normal images, it counts with its AUC on the changed test set.",
    )


def _cells(aucs: pd.DataFrame) -> int:
    return len(aucs.index.droplevel("variation").unique())


def _thinned_name(share: float) -> str:
    return f"{100 * share:g}% anomalies"


def thinned_rows(labels: Sequence[bool], share: float, seed: int) -> Iterator[Tensor]:
    """The rows of each draw: all normal images, and as many anomalous ones as make up this share of the whole.

    At least one is anomalous; there are no draws if too few are. Candidates of one task and seed share the draws.
    """
    anomalous = np.flatnonzero(labels)
    normal = np.flatnonzero(~np.asarray(labels))
    count = max(1, round(share / (1 - share) * len(normal)))
    if count > len(anomalous):
        return
    for draw in range(DRAWS):
        generator = np.random.default_rng(derived_seed(seed, draw, count))
        yield torch.from_numpy(np.sort([*normal, *generator.choice(anomalous, count, replace=False)]))


def _choices_aucs(
    pool: Sequence[Evaluation], aucs: Sequence[float], methods: Sequence[Method], registry: Registry
) -> dict[str, float]:
    """The AUC of each method's choice, of the mean and of the best of the pool."""
    losses, _ = losses_of(methods, pool, registry)
    chosen = {label: aucs[choose(values)] for label, values in losses.items()}
    return {AVERAGE: float(np.mean(aucs)), **chosen, BEST: max(aucs)}


def _brightened(pool: Sequence[Evaluation], labels: Sequence[bool], result: Run, factor: float) -> list[Evaluation]:
    """The pool with the normal test images made brighter, encoded and scored again."""
    normal = ~torch.tensor(labels)
    images = open_dataset(result.folder.data).test[normal]
    brighter = (images.float() * factor).round().clamp(max=255).to(torch.uint8)
    changed = []
    for evaluation in pool:
        detector = result.load_detector(evaluation.candidate)
        embeddings, scores = evaluation.embeddings.test.clone(), evaluation.scores.test.clone()
        embeddings[normal], scores[normal] = detector.encode(brighter), detector.score(brighter)
        changed.append(
            replace(
                evaluation,
                embeddings=replace(evaluation.embeddings, test=embeddings),
                scores=replace(evaluation.scores, test=scores),
            )
        )
    return changed
