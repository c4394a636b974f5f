"""The answer in words and numbers: what was chosen, how clearly, and what the selectors agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv_plugins.run.records import CandidateRecord
from dsv_plugins.run.run import Run

__all__ = [
    "Agreement",
    "Answer",
    "PoolAUCs",
    "agreement",
    "answer",
    "model_in_words",
    "parts_in_words",
    "parts_of",
    "pool_aucs",
]

Array = NDArray[Any]
CLEAR, LIKELY = 0.9, 0.6
MOST_NAMED = 3
EQUAL_SHARES = 1e-6


@dataclass(frozen=True, slots=True)
class Answer:
    """The top of the page.

    Attributes:
        selector: The deciding selector.
        candidate: Its choice.
        loss: The loss of the choice.
        next: The candidate after it, if there is one.
        next_loss: The loss of that one.
        wins: The share of bootstrap resamples that the choice wins, if that is known.
        verdict: What that share means.
        seconds: How long the study took; None if that is not known.
        warnings: What speaks against trusting it.
    """

    selector: str
    candidate: CandidateRecord
    loss: float | None
    next: CandidateRecord | None
    next_loss: float | None
    wins: float | None
    verdict: str
    seconds: float | None
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike two selectors rank the candidates, for every two: Kendall's tau, None if it is undefined.

    One selector alone has no tau.
    """

    selectors: list[str]
    tau: list[list[float | None]]


@dataclass(frozen=True, slots=True)
class PoolAUCs:
    """The AUCs, if labels are known: of the model, of each selector's choice, best first, and of the pool."""

    model: float | None
    chosen: list[tuple[str, CandidateRecord, float]]
    best: float
    mean: float
    worst: float


def answer(run: Run) -> Answer:
    """Return what the deciding selector chose, and how clearly."""
    selector, chosen = run.selectors[0], run.chosen
    losses = {c.id: loss for c in run.candidates if (loss := c.losses.get(selector)) is not None}
    others = [candidate for candidate in run.candidates if candidate.id in losses and candidate.id != chosen.id]
    second = min(others, key=lambda candidate: losses[candidate.id], default=None)
    shares = run.confidence.get(selector, {})
    return Answer(
        selector=selector,
        candidate=chosen,
        loss=losses.get(chosen.id),
        next=second,
        next_loss=losses[second.id] if second else None,
        wins=shares.get(chosen.id),
        verdict=_verdict(run, shares) if shares and second else "",
        seconds=run.journal.elapsed(),
        warnings=_warnings(run),
    )


def model_in_words(run: Run) -> str:
    """Return what the model is, and which candidates count most in it."""
    if len(run.shares) == 1:
        return f"the model is {run.chosen.label}"
    shares = sorted(run.shares.items(), key=lambda entry: -entry[1])
    if shares[0][1] - shares[-1][1] < EQUAL_SHARES:
        return f"the model is all {len(shares)} candidates as one, each counted alike"
    most = ", ".join(f"{run.by_id[identifier].label} {share:.0%}" for identifier, share in shares[:MOST_NAMED])
    return f"the model is all {len(shares)} candidates as one, weighted by {run.selectors[0]}, most of all {most}"


def parts_of(run: Run) -> Mapping[str, float]:
    """Return what the model's score is made of, in words, with the share of each part; empty if it cannot say."""
    return run.model_record.parts if run.folder.model.is_dir() else {}


def parts_in_words(run: Run) -> str:
    """Return what decides in the model, the largest parts first; empty if the detector cannot say."""
    parts = sorted(parts_of(run).items(), key=lambda entry: -entry[1])
    named = [f"{name} {share:.0%}" for name, share in parts[:MOST_NAMED] if share > 0]
    return f"what decides: {', '.join(named)}" if named else ""


def agreement(run: Run) -> Agreement:
    """Kendall's tau between the losses of every two selectors."""
    if len(run.selectors) < 2:
        return Agreement(run.selectors, [])
    judged = [candidate for candidate in run.candidates if candidate.losses]
    columns = [
        np.array([math.inf if (loss := c.losses.get(name)) is None else loss for c in judged]) for name in run.selectors
    ]
    tau = [[_tau(one, other) for other in columns] for one in columns]
    return Agreement(run.selectors, tau)


def pool_aucs(run: Run) -> PoolAUCs | None:
    """Return the AUC of each selector's choice, and of the pool; None if no labels are known."""
    chosen = {name: choice.candidate.id for name, choice in run.selected.items()}
    if not run.aucs.keys() >= set(chosen.values()):  # or a later selection chose among others
        return None
    aucs = [(name, run.by_id[identifier], run.aucs[identifier]) for name, identifier in chosen.items()]
    values = list(run.aucs.values())
    return PoolAUCs(
        run.auc_record.model,
        sorted(aucs, key=lambda entry: -entry[2]),
        max(values),
        float(np.mean(values)),
        min(values),
    )


def _verdict(run: Run, shares: Mapping[str, float]) -> str:
    share = shares.get(run.chosen.id, 0.0)
    if share >= CLEAR:
        return "a clear choice"
    rival = max((c for c in run.candidates if c.id != run.chosen.id), key=lambda c: shares.get(c.id, 0.0))
    closeness = "a likely choice, with" if share >= LIKELY else "a close call, with"
    return f"{closeness} {rival.label} winning {shares.get(rival.id, 0.0):.0%}"


def _warnings(run: Run) -> list[str]:
    warnings = [f"{warning[:1].upper()}{warning[1:]}." for warning in run.warnings]
    places = [candidate.id for candidate in run.candidates if candidate.status == "finished"]
    if len(places) > 2 and run.chosen.id in (places[0], places[-1]) and len(run.choice.candidate.params) == 1:
        warnings.append("The choice lies at the edge of the grid; a wider grid may hold a better one.")
    return warnings


def _tau(one: Array, other: Array) -> float | None:
    from scipy.stats import kendalltau  # nearly a second, for those who compare selectors

    if len(one) < 2:
        return None
    value = float(kendalltau(one, other).statistic)
    return value if math.isfinite(value) else None
