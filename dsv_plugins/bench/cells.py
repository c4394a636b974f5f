"""One cell of the benchmark: a task, an augmentation and a seed, with the AUC of every method on every test set.

Changed test sets have fewer anomalies, or normal images brighter than the train images. The selectors judge the trained
candidates again; nothing is trained. Labels are only used to change the test sets and to compute AUCs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dsv_plugins.bench.methods import DEFAULT, WEIGHTED, WORST, auc_of, losses_of, method_aucs, method_values
from dsv_plugins.bench.studies import Trained
from dsv_plugins.errors import TrainingError
from dsv_plugins.losses import concentration, discordance, separability, set_distance
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.plugins.search import choose
from dsv_plugins.seeding import derived_seed
from dsv_plugins.study.bootstrap import on_rows
from dsv_plugins.types import Embeddings

__all__ = ["DRAWS", "FULL", "POOLED", "Cell", "measure", "theory_of", "thinned_rows", "vary"]

POOLED = "all together"
"""The pool of the candidates of all augmentations; no plugin's name contains a space."""
FULL = "full"
"""The test set as it is."""
DRAWS = 5
"""How often anomalies are drawn for a share."""
RELATIVE = ("h_d", "h_s", "discordance", "separability", "concentration")
"""The quantities of the theory that are divided by d(train, augmented)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Everything the tables are made of, for one task, augmentation and seed.

    Attributes:
        task: Name of the task.
        augmentation: Name of the augmentation, or `POOLED`.
        seed: Seed of the trainings.
        candidates: What is known of each candidate of the pool, in grid order: augmentation, params, auc, pixels, and
            the quantities of the theory.
        losses: The loss of each candidate by each selector; NaN for an unusable one.
        aucs: The AUC of each method, by test set.
        pixels: What each method has of each pixel measure; empty if a candidate has none.
        seconds: How long the study took; None if it was interrupted.
        notes: Remarks on the measurement, a line each.
    """

    task: str
    augmentation: str
    seed: int
    candidates: Sequence[Mapping[str, Any]]
    losses: Mapping[str, Sequence[float]]
    aucs: Mapping[str, Mapping[str, float]]
    pixels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float | None = None
    notes: Sequence[str] = ()

    @property
    def pool(self) -> list[float]:
        """Return the AUC of each candidate."""
        return [candidate["auc"] for candidate in self.candidates]

    def as_json(self) -> dict[str, Any]:
        """Return the cell on the full test set as one JSON object."""
        content = asdict(self)
        choices = {name: choose(losses) for name, losses in self.losses.items()}
        return {**content, "auc": content.pop("aucs")[FULL], "choices": choices}


def measure(name: tuple[str, str, int], pool: Trained, selectors: Sequence[str], registry: Registry) -> Cell:
    """Measure a pool of trained candidates on the full test set.

    The selectors see the evaluations, which contain no labels; the labels are only used for the AUCs of the choices.

    Args:
        name: Task, augmentation and seed.
        pool: The candidates.
        selectors: The selectors to compare.
        registry: Where the selectors are found.

    Raises:
        TrainingError: No candidate has usable scores.
    """
    usable, labels = pool.usable, pool.labels
    if not usable:
        raise TrainingError("no candidate has test scores that are all finite, so none has an AUC")
    losses, problems = losses_of(selectors, usable, registry)
    rejected = [each.candidate for each in pool.evaluations if each not in usable]
    candidates = [
        {
            "augmentation": each.candidate.augmentation,
            "params": dict(each.candidate.params),
            "auc": auc_of(each, labels),
            "pixels": dict(pool.pixels.get(each.candidate.id, {})),
            **theory_of(each.embeddings, labels),
        }
        for each in usable
    ]
    measures = pd.DataFrame([each["pixels"] for each in candidates]).dropna(axis=1)  # those that all candidates have
    pixels = {measure: method_values(values.tolist(), losses) for measure, values in measures.items()}
    for measure, found in pixels.items():
        del found[WORST]
        if measure in pool.model_pixels:
            found[f"{WEIGHTED}{DEFAULT}"] = pool.model_pixels[measure]
    return Cell(
        *name,
        candidates=candidates,
        losses=losses,
        aucs={FULL: method_aucs(usable, labels, losses, pool.random)},
        pixels=pixels,
        seconds=pool.seconds,
        notes=[*pool.notes, *(f"{each} has scores that are not finite" for each in rejected), *problems],
    )


def theory_of(embeddings: Embeddings, labels: Sequence[bool]) -> dict[str, float]:
    """Return the theory's quantities for one candidate, by name.

    Let A be the anomalous test embeddings and D = d(train, augmented).

    - alignment: d(augmented, A), which is small for a good choice.
    - h_d: (d(train, A) + d(augmented, A)) / D - 1, which is 0 if the anomalies lie between train and augmented.
    - h_s: d(train, A) / D, how far the anomalies are from the normals. It is the other part of the alignment, since
      d(augmented, A) = D · (h_d - h_s + 1) exactly. With normals in one point and anomalies in one direction, L_sep is
      √(γ(1 - γ)) · h_s for a share γ of anomalies, hence at most half of it.
    - discordance: L_dis, the paper's approximation of h_d.
    - separability: L_sep without its cap, the paper's approximation of h_s.
    - concentration: d(train, train) / D, which the theory assumes to be far below one.

    Args:
        embeddings: Of the candidate.
        labels: Whether each test image is anomalous; both kinds must occur.
    """
    train, augmented, test = embeddings.train, embeddings.augmented, embeddings.test
    anomalous = test[torch.tensor(labels)]
    scale = float(set_distance(train, augmented))
    alignment = float(set_distance(augmented, anomalous))
    if not scale:
        return {"alignment": alignment, **dict.fromkeys(RELATIVE, math.nan)}
    from_train = float(set_distance(train, anomalous))
    return {
        "alignment": alignment,
        "h_d": (from_train + alignment) / scale - 1,
        "h_s": from_train / scale,
        "discordance": float(discordance(train, augmented, test)),
        "separability": float(separability(train, augmented, test)),
        "concentration": float(concentration(train, augmented)),
    }


def vary(
    pool: Trained, thin: Sequence[float], selectors: Sequence[str], registry: Registry, *, seed: int
) -> dict[str, dict[str, float]]:
    """Return the AUC of each method on each changed test set, by the name of the change.

    With fewer anomalies, the AUC of a choice is that on the full test set, which is the better estimate, and the mean
    over the draws; with brighter normals, it is that on the changed test set. A share for which there are too few
    anomalies is left out, and so is a selector that fails in one draw.
    """
    varied: dict[str, dict[str, float]] = {}
    for share in thin:
        draws = []
        for rows in thinned_rows(pool.labels, share, seed):
            losses, _ = losses_of(selectors, [on_rows(each, {"test": rows}) for each in pool.usable], registry)
            draws.append(method_aucs(pool.usable, pool.labels, losses))
        if draws:
            varied[f"{100 * share:g}% anomalies"] = pd.DataFrame(draws).dropna(axis=1).mean().to_dict()
    for name, brighter in pool.brighter.items():
        losses, _ = losses_of(selectors, brighter, registry)
        varied[name] = method_aucs(brighter, pool.labels, losses)
    return varied


def thinned_rows(labels: Sequence[bool], share: float, seed: int) -> Iterator[Tensor]:
    """Yield the rows of each draw: all normal images, and as many anomalous ones as make up this share of the whole.

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
