"""Cells whose tables are known, and statistics by counting."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

from dsv_plugins.bench.cells import FULL, POOLED, Cell


def oracle_ranks(values: list[float]) -> list[Fraction]:
    """Average ranks of a row, the largest value first, by counting."""
    return [
        Fraction(sum(other > value for other in values)) + Fraction(sum(other == value for other in values) + 1, 2)
        for value in values
    ]


def oracle_signed_rank_p(differences: list[float]) -> float:
    """The exact two-sided p-value: every assignment of signs to the ranks is as likely as any other."""
    kept = [difference for difference in differences if difference]
    if not kept:
        return 1.0
    ranks = oracle_ranks([-abs(difference) for difference in kept])
    observed = sum(rank for rank, difference in zip(ranks, kept, strict=True) if difference > 0)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    lower, upper = sum(each <= observed for each in sums), sum(each >= observed for each in sums)
    return min(1.0, 2 * min(lower, upper) / len(sums))


def cell(
    task: str,
    augmentation: str,
    aucs: list[float],
    losses: dict[str, list[float]],
    *,
    seed: int = 0,
    random: float | None = None,
) -> Cell:
    """A cell in which alignment falls and the parts of DSV follow their quantities as the AUC rises."""
    theory = [
        {"alignment": 1 - auc, "h_d": -auc, "h_s": auc, "discordance": -auc, "separability": auc, "concentration": 0.25}
        for auc in aucs
    ]
    candidates = [
        {
            "augmentation": augmentation,
            "params": {"patch_size": 0.01 * 2**index},
            "auc": auc,
            "pixels": {},
            **theory[index],
        }
        for index, auc in enumerate(aucs)
    ]
    known = {"Average": sum(aucs) / len(aucs), **({} if random is None else {"Random": random})}
    known |= {name: chosen(aucs, each) for name, each in losses.items()}
    known |= {"best": max(aucs), "worst": min(aucs)}
    known |= {f"Always {index}": auc for index, auc in enumerate(aucs)}
    return Cell(task, augmentation, seed, candidates, losses, {FULL: known}, notes=["a note"])


def chosen(values: list[float], losses: list[float]) -> float:
    """The value of the candidate with the smallest loss; one whose loss is unusable ranks last."""
    return values[min(range(len(values)), key=lambda index: math.inf if math.isnan(losses[index]) else losses[index])]


PERFECT, SECOND, WORST = "dsv", "base", "mc"


def known_cells(seeds: int = 1) -> list[Cell]:
    """The loss of `dsv` is perfect, `base` takes the first candidate, `mc` the worst."""
    cells = []
    for seed in range(seeds):
        for task, aucs, random in (
            ("bolt", [0.6, 0.9, 0.3], 0.9),
            ("nut", [0.5, 0.7 + 0.1 * seed, 0.6], 0.55),
        ):
            losses = {
                SECOND: [0.0, 1.0, 2.0],
                WORST: list(aucs),
                PERFECT: [-auc for auc in aucs],
                "discordance": [-auc for auc in aucs],
                "separability": [math.nan, 1.0, 0.0],
                "dsv-reference": [1.0, 1.0, 0.0],
            }
            cells.append(cell(task, "cutout", aucs, losses, seed=seed, random=random))
            cells.append(cell(task, POOLED, aucs, losses, seed=seed))
    return cells
