"""Would the choices be as good with fewer anomalies, or with test normals that look unlike the train images?

The selectors judge the trained candidates again on changed test sets; nothing is trained. The labels decide what is
changed, and what the choices are worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsv_plugins.bench.aucs import auc_of
from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.grouping import mean
from dsv_plugins.bench.methods import AVERAGE, SIDELINES, Method, losses_of
from dsv_plugins.bench.table import Row, Table
from dsv_plugins.data.dataset import open_dataset
from dsv_plugins.errors import InputError
from dsv_plugins.hooks.registry import Registry
from dsv_plugins.hooks.search import choose
from dsv_plugins.seeding import derived_seed
from dsv_plugins.store.folder import RunFolder
from dsv_plugins.study.bootstrap import on_rows
from dsv_plugins.study.result import Result
from dsv_plugins.types import Evaluation

__all__ = ["FULL", "Variations", "Varied", "variations_table", "vary"]

FULL, BEST = "full", "best"
DRAWS = 5


@dataclass(frozen=True)
class Variations:
    """What to change in the test sets.

    Attributes:
        thin: Shares of the test set to which anomalies are thinned, in several draws each.
        brighten: What the pixels of the normal test images are multiplied by; None to leave them.
    """

    thin: Sequence[float] = ()
    brighten: float | None = None

    def __bool__(self) -> bool:
        return bool(self.thin) or self.brighten is not None

    def check(self) -> None:
        """See that there is a sense in them.

        Raises:
            InputError: A share or the factor is out of range.
        """
        for share in self.thin:
            if not 0 < share < 1:
                raise InputError(f"thin has the share {share}; give shares of the test set between 0 and 1")
        if self.brighten is not None and not self.brighten > 0:
            raise InputError(f"brighten is {self.brighten}; give a factor above 0, as 1.05")


@dataclass(frozen=True, slots=True)
class Varied:
    """What the methods' choices are worth on one changed test set.

    Attributes:
        task: Name of the task.
        augmentation: Name of the augmentation.
        seed: Seed of the trainings.
        variation: What is changed, in words.
        aucs: The AUC of each method's choice, the mean over the draws.
    """

    task: str
    augmentation: str
    seed: int
    variation: str
    aucs: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return asdict(self)


def vary(
    cell: Cell,
    evaluations: Sequence[Evaluation],
    labels: Sequence[bool],
    result: Result,
    *,
    variations: Variations,
    methods: Sequence[Method],
    registry: Registry,
) -> list[Varied]:
    """Judge the candidates of a cell again on each changed test set.

    With fewer anomalies a choice is worth the AUC that its detector has on the full test set, which is the better
    estimate of the same thing; with brighter normals, that on the changed one.

    Args:
        cell: What was measured on the full test set.
        evaluations: Its candidates.
        labels: Whether each test image is anomalous.
        result: The study, with the detectors.
        variations: What to change.
        methods: What to compare; parts and variants of DSV stay out.
        registry: Where the selectors are found.
    """
    if not variations:
        return []
    name = (cell.task, cell.augmentation, cell.seed)
    compared = [method for method in methods if method.label not in SIDELINES]
    usable = [evaluation for evaluation in evaluations if evaluation.scores.test.isfinite().all()]
    varied = [Varied(*name, FULL, {**cell.aucs, BEST: cell.best})]
    for share in variations.thin:
        draws_of_rows = thinned_rows(labels, share, cell.seed)
        pools = [[on_rows(each, {"test": rows}) for each in usable] for rows in draws_of_rows]
        draws = [_worth(pool, cell.pool, compared, registry) for pool in pools]
        if draws:
            shared = [label for label in draws[0] if all(label in draw for draw in draws)]
            means = {label: mean(draw[label] for draw in draws) for label in shared}
            varied.append(Varied(*name, f"{share:.0%} anomalies", means))
    if variations.brighten is not None:
        pool = _brightened(usable, labels, result, variations.brighten)
        aucs = [auc_of(evaluation, labels) for evaluation in pool]
        worth = _worth(pool, aucs, compared, registry)
        varied.append(Varied(*name, f"normals × {variations.brighten:g}", worth))
    return varied


def variations_table(varied: Sequence[Varied]) -> Table:
    """The mean AUC of each method's choices on each changed test set, beside the full one."""
    variations = list(dict.fromkeys(each.variation for each in varied))
    cells: dict[tuple[str, str, int], dict[str, Varied]] = {}
    for each in varied:
        cells.setdefault((each.task, each.augmentation, each.seed), {})[each.variation] = each
    # A task with too few anomalies for a share has no such variation; only cells that have all compare on equal terms.
    complete = [cell for cell in cells.values() if len(cell) == len(variations)]
    rows: list[Row] = []
    if complete:
        everywhere = [each.aucs for cell in complete for each in cell.values()]
        for method in (label for label in complete[0][FULL].aucs if all(label in aucs for aucs in everywhere)):
            rows.append(((method,), tuple(mean(cell[name].aucs[method] for cell in complete) for name in variations)))
    return Table(
        "variations",
        "Average AUC on changed test sets",
        ("method",),
        tuple(variations),
        rows,
        note=f"Over all tasks and augmentations, {len(complete)} of {len(cells)} cells. Selectors see only a part of "
        f"the anomalies, {DRAWS} draws each, and their choice counts with its AUC on the full test set; or they see "
        "normal test images made brighter, and their choice counts with its AUC on these.",
    )


def thinned_rows(labels: Sequence[bool], share: float, seed: int) -> Iterator[Tensor]:
    """The rows of each draw: all normal images, and so many anomalous ones that they are this share of the whole.

    None where there are not enough anomalous ones; one at the least. Candidates of one task and seed share the draws.
    """
    anomalous = np.flatnonzero(labels)
    normal = np.flatnonzero(~np.asarray(labels))
    count = max(1, round(share / (1 - share) * len(normal)))
    if count > len(anomalous):
        return
    for draw in range(DRAWS):
        generator = np.random.default_rng(derived_seed(seed, draw, count))
        yield torch.from_numpy(np.sort([*normal, *generator.choice(anomalous, count, replace=False)]))


def _worth(
    pool: Sequence[Evaluation], aucs: Sequence[float], methods: Sequence[Method], registry: Registry
) -> dict[str, float]:
    """The AUC of each method's choice, beside the mean and the best of the pool."""
    losses, _ = losses_of(methods, pool, registry)
    chosen = {label: aucs[choose(values)] for label, values in losses.items()}
    return {AVERAGE: float(np.mean(aucs)), **chosen, BEST: max(aucs)}


def _brightened(pool: Sequence[Evaluation], labels: Sequence[bool], result: Result, factor: float) -> list[Evaluation]:
    """The pool with the normal test images encoded and scored anew, brighter."""
    normal = ~torch.tensor(labels)
    images = open_dataset(RunFolder(result.run).data).test[normal]
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
