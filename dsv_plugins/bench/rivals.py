"""What a user could take instead: detectors that learn without augmentations, measured on the same images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd

from dsv_plugins.bench.cells import BEST_THREE, ENSEMBLE, WEIGHTED, Cell
from dsv_plugins.bench.frames import BEST, auc_frame, by_augmentation, cell_frame, strict_means
from dsv_plugins.bench.methods import AVERAGE, DEFAULT
from dsv_plugins.bench.pixels import AUPRO
from dsv_plugins.bench.statistics import DECIMALS, signed_rank_p
from dsv_plugins.bench.table import Table
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.study import Study

__all__ = ["Rival", "rival_study", "rivals_table"]

CHOICE = f"choice of {DEFAULT}"


@dataclass(frozen=True, slots=True)
class Rival:
    """A rival on one task.

    Attributes:
        task: Name of the task.
        detector: Name of the detector plugin.
        auc: Its AUC.
        seconds: How long its study took; None if that was interrupted.
        pixels: Its pixel measures, if the task has masks and the detector heatmaps.
    """

    task: str
    detector: str
    auc: float
    seconds: float | None
    pixels: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The rival as one JSON object."""
        return asdict(self)


def rival_study(study: Study, detector: str, registry: Registry) -> Study:
    """A study of a rival on the images of another study, at the same size.

    Raises:
        DSVError: There is no such detector, or it learns from augmentations: then it is no rival, but has candidates.
    """
    image_size = plan_study(study, registry).image_size
    rival = replace(
        study,
        detector=detector,
        detector_params={"image_size": image_size},
        selector=DEFAULT,
        out=study.folder().with_name(f"{detector}-{study.seed}"),
    )
    if plan_study(rival, registry).learns_from_augmentation:
        raise InputError(f"{detector} learns from augmentations; compare it in a benchmark of its own, with --detector")
    return rival


def rivals_table(cells: Sequence[Cell], rivals: Sequence[Rival], *, merges: bool = False) -> Table:
    """What a study delivers beside what its candidates could deliver and what the rivals do, over the same tasks.

    Args:
        cells: The measurements.
        rivals: Those of the rivals.
        merges: Whether a study delivers all candidates as one, weighted, and not its choice.
    """
    aucs = auc_frame(cells)
    weighted = next(iter(WEIGHTED))
    first, second = (weighted, DEFAULT) if merges else (DEFAULT, weighted)
    order = (first, BEST, AVERAGE, second, BEST_THREE, ENSEMBLE)
    delivered = weighted if merges else CHOICE
    ours = aucs[[name for name in order if name in aucs]]
    tasks = strict_means(ours.rename(columns={DEFAULT: CHOICE}), "augmentation", "task")
    seconds = strict_means(
        cell_frame(cells, lambda cell: {delivered: math.nan if cell.seconds is None else cell.seconds}),
        "augmentation",
        "task",
    )
    pixels = strict_means(
        cell_frame(cells, lambda cell: cell.pixels(AUPRO)).rename(columns={DEFAULT: CHOICE}), "augmentation", "task"
    )
    theirs, their_seconds, their_pixels = (
        pd.DataFrame([{"task": each.task, each.detector: value} for each, value in zip(rivals, values, strict=True)])
        .groupby("task")
        .first()
        for values in (
            [each.auc for each in rivals],
            [each.seconds for each in rivals],
            [each.pixels.get(AUPRO) for each in rivals],
        )
    )
    rows = {
        augmentation: _compared(
            group.droplevel(0).join(theirs),
            seconds.loc[augmentation].join(their_seconds),
            pixels.loc[augmentation].join(their_pixels),
            delivered,
        )
        for augmentation, group in by_augmentation(tasks)
    }
    return Table(
        "rivals",
        "What a user gets",
        pd.concat(rows, names=["augmentation", "method"]),
        note="Mean over the tasks that have all of them. The first row is what a study delivers. Better and worse "
        "count the tasks in which it has a higher or a lower AUC; p is from the two-sided Wilcoxon signed-rank test. "
        "Seconds are those of a whole study, on average; those of an interrupted one are not known. AUPRO is of the "
        "heatmaps, over the tasks with masks.",
        forms={"p": ".2g", "seconds": ".0f"},
    )


def _compared(aucs: pd.DataFrame, seconds: pd.DataFrame, pixels: pd.DataFrame, delivered: str) -> pd.DataFrame:
    """A row for each column of AUCs, compared with what is delivered."""
    aucs = aucs.dropna()
    gains = aucs.rsub(aucs[delivered], axis=0).round(DECIMALS)
    return pd.DataFrame(
        {
            "AUC": aucs.mean(),
            "better": (gains > 0).sum(),
            "worse": (gains < 0).sum(),
            "p": pd.Series({name: signed_rank_p(aucs[delivered], aucs[name]) for name in aucs.columns.drop(delivered)}),
            "AUPRO": pixels.reindex(index=aucs.index, columns=aucs.columns).astype(float).mean(),
            "seconds": seconds.reindex(index=aucs.index, columns=aucs.columns).astype(float).mean(),
        },
        index=aucs.columns,
    )
