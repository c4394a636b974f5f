"""One cell of the benchmark: a task, an augmentation and a seed, with the AUC of every candidate and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dsv_plugins.bench.aucs import auc_of, ensemble_auc
from dsv_plugins.bench.methods import AVERAGE, DEFAULT, MAIN, RANDOM, Method, losses_of
from dsv_plugins.bench.theory import Theory, theory_of
from dsv_plugins.errors import TrainingError
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.plugins.search import choose, rank
from dsv_plugins.run.ensemble import shares_by_loss
from dsv_plugins.run.records import finite_or_none
from dsv_plugins.types import Evaluation

__all__ = ["BEST_THREE", "ENSEMBLE", "MODEL", "POOLED", "WEIGHTED", "Cell", "MeasuredCandidate", "measure"]

POOLED = "all together"
"""The pool of the candidates of all augmentations; no plugin's name contains a space."""
ENSEMBLE, BEST_THREE = "Ensemble", f"Ensemble of {DEFAULT}'s best 3"
"""All candidates as one, each counted alike, and the best three by the default selector."""
MODEL = "model"
"""Stands for the model that a study keeps, in place of a candidate's id."""
WEIGHTED = {f"Weighted by {name}": name for name in dict.fromkeys((DEFAULT, MAIN))}
"""All candidates as one, weighted by the losses of a selector: what a study keeps by default is the first."""


@dataclass(frozen=True, slots=True)
class MeasuredCandidate:
    """One candidate: its hyperparameters, its AUC, the quantities of the theory, and pixel measures if it has any."""

    augmentation: str
    params: Mapping[str, object]
    auc: float
    theory: Theory
    pixels: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """Everything the tables are made of, for one task, augmentation and seed.

    Attributes:
        task: Name of the task.
        augmentation: Name of the augmentation, or `POOLED`.
        seed: Seed of the trainings.
        candidates: The pool, in grid order.
        losses: The loss of each candidate by each method; NaN for an unusable one.
        random: AUC of the training whose hyperparameters were redrawn for every image; None if there is none.
        ensembles: AUC of several candidates as one.
        model_pixels: The pixel measures of all candidates as one, if the study keeps that.
        seconds: How long the study took; None if it was interrupted.
        notes: Remarks on the measurement, a line each.
    """

    task: str
    augmentation: str
    seed: int
    candidates: Sequence[MeasuredCandidate]
    losses: Mapping[str, Sequence[float]]
    random: float | None = None
    ensembles: Mapping[str, float] = field(default_factory=dict)
    model_pixels: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    notes: Sequence[str] = ()

    @property
    def pool(self) -> list[float]:
        """The AUC of each candidate."""
        return [candidate.auc for candidate in self.candidates]

    @property
    def aucs(self) -> dict[str, float]:
        """The AUC of each method: the mean of the pool, the random training, ensembles, each selector's choice."""
        random = {} if self.random is None else {RANDOM: self.random}
        return {AVERAGE: float(np.mean(self.pool)), **random, **self.ensembles, **self._chosen(self.pool)}

    def pixels(self, measure: str) -> dict[str, float]:
        """The mean of a pixel measure of the pool, each selector's choice, and the best; empty if one has none."""
        pool = [candidate.pixels[measure] for candidate in self.candidates if measure in candidate.pixels]
        if len(pool) < len(self.candidates):
            return {}
        model = {next(iter(WEIGHTED)): self.model_pixels[measure]} if measure in self.model_pixels else {}
        return {AVERAGE: float(np.mean(pool)), **self._chosen(pool), **model, "best": max(pool)}

    @property
    def best(self) -> float:
        """The AUC of the best candidate."""
        return max(self.pool)

    @property
    def worst(self) -> float:
        """The AUC of the worst candidate."""
        return min(self.pool)

    def _chosen(self, pool: Sequence[float]) -> dict[str, float]:
        """What each selector's choice has, of a value for each candidate."""
        return {label: pool[choose(losses)] for label, losses in self.losses.items()}

    def as_json(self) -> dict[str, Any]:
        """The cell as one JSON object; a value that is not finite is null."""
        candidates = []
        for candidate in self.candidates:
            theory = {name: finite_or_none(value) for name, value in asdict(candidate.theory).items()}
            entry = {"augmentation": candidate.augmentation, "params": dict(candidate.params), "auc": candidate.auc}
            candidates.append({**entry, "pixels": dict(candidate.pixels), **theory})
        return {
            "task": self.task,
            "augmentation": self.augmentation,
            "seed": self.seed,
            "auc": {**self.aucs, "best": self.best, "worst": self.worst},
            "pixels": {name: self.pixels(name) for name in self.candidates[0].pixels},
            "seconds": self.seconds,
            "choices": {label: choose(losses) for label, losses in self.losses.items()},
            "losses": {label: [finite_or_none(loss) for loss in losses] for label, losses in self.losses.items()},
            "candidates": candidates,
            "notes": list(self.notes),
        }


def measure(
    name: tuple[str, str, int],
    evaluations: Sequence[Evaluation],
    labels: Sequence[bool],
    *,
    methods: Sequence[Method],
    registry: Registry,
    random: float | None = None,
    seconds: float | None = None,
    pixels: Mapping[str, Mapping[str, float]] = {},
    notes: Sequence[str] = (),
) -> Cell:
    """A pool of trained candidates, measured.

    The methods see the evaluations, which contain no labels; the labels are only used for the AUCs of the choices.

    Args:
        name: Task, augmentation and seed.
        evaluations: The pool.
        labels: Whether each test image is anomalous, in the order of the evaluations.
        methods: The methods to compare.
        registry: Where the selectors are found.
        random: AUC of the random training.
        seconds: How long the study took.
        pixels: The pixel measures of each candidate that has any, by its id, and of the `MODEL`.
        notes: Remarks made so far.

    Raises:
        TrainingError: No candidate has usable scores.
    """
    usable = [evaluation for evaluation in evaluations if evaluation.scores.test.isfinite().all()]
    rejected = [evaluation.candidate for evaluation in evaluations if evaluation not in usable]
    if not usable:
        raise TrainingError("no candidate has test scores that are all finite, so none has an AUC")
    losses, problems = losses_of(methods, usable, registry)
    return Cell(
        *name,
        candidates=[
            MeasuredCandidate(
                augmentation=evaluation.candidate.augmentation,
                params=evaluation.candidate.params,
                auc=auc_of(evaluation, labels),
                theory=theory_of(evaluation.embeddings, labels),
                pixels=pixels.get(evaluation.candidate.id, {}),
            )
            for evaluation in usable
        ],
        losses=losses,
        random=random,
        ensembles=_ensembles(usable, labels, losses),
        model_pixels=pixels.get(MODEL, {}),
        seconds=seconds,
        notes=[*notes, *(f"{candidate} has scores that are not finite" for candidate in rejected), *problems],
    )


def _ensembles(
    evaluations: Sequence[Evaluation], labels: Sequence[bool], losses: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    members = {ENSEMBLE: evaluations}
    if DEFAULT in losses:
        members[BEST_THREE] = [evaluations[place] for place in rank(losses[DEFAULT])[:3]]
    weighted = {
        label: ensemble_auc(evaluations, labels, shares_by_loss(losses[name]))
        for label, name in WEIGHTED.items()
        if name in losses
    }
    return {**{name: ensemble_auc(chosen, labels) for name, chosen in members.items()}, **weighted}
