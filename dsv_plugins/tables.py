"""Results as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dsv_plugins.result import CandidateResult, Result

__all__ = ["candidates_table", "render_candidates"]

FIXED_WIDTH = 70
"""What the columns other than losses need, roughly."""
LOSS_WIDTH = 12


def candidates_table(result: Result, *, width: int, aucs: Mapping[str, float] | None = None) -> Table:
    """A row for each candidate, with arrows at the choices and marks where training did not get to DSV's ground.

    Args:
        result: The study.
        width: Columns of text there are; as many selectors are shown as fit, the deciding one first.
        aucs: The AUC of each candidate by its id, where it is known.
    """
    selectors = list(result.selected)[: max(1, (width - FIXED_WIDTH) // LOSS_WIDTH)]
    table = Table(box=None, pad_edge=False)
    table.add_column("candidate", no_wrap=True)
    wins = result.confidence.get(selectors[0])
    for heading in (*selectors, *(["wins"] if wins else []), *(["AUC"] if aucs else []), "acc.", "conc.", "s"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    for entry in result.candidates:
        table.add_row(
            Text(str(entry.candidate)),
            *(_loss(entry, name, result) for name in selectors),
            *([_number(wins.get(entry.candidate.id), ".0%")] if wins else []),
            *([_number(aucs.get(entry.candidate.id), ".3f")] if aucs else []),
            _number(entry.health.training_accuracy if entry.health else None, ".2f"),
            _concentration(entry),
            _number(entry.seconds, ".0f"),
            Text(f"{entry.status}: {entry.reason}" if entry.reason else entry.status),
        )
    return table


def render_candidates(result: Result) -> str:
    """The table with every selector, as plain text."""
    width = FIXED_WIDTH + LOSS_WIDTH * len(result.selected) + max(len(entry.reason) for entry in result.candidates)
    text = StringIO()
    Console(file=text, width=width, no_color=True).print(candidates_table(result, width=width))
    return text.getvalue()


def _loss(entry: CandidateResult, selector: str, result: Result) -> Text:
    loss = (entry.losses or {}).get(selector)
    if loss is None:
        return Text("-  ")
    chosen = result.selected[selector].candidate.id == entry.candidate.id
    return Text(f"{loss:.4g} ←", "bold green") if chosen else Text(f"{loss:.4g}  ")


def _concentration(entry: CandidateResult) -> Text:
    if entry.health is None:
        return Text("-  ")
    value = entry.health.concentration
    text = "∞" if math.isinf(value) else f"{value:.2f}"
    return Text(f"{text}  ") if entry.concentrated else Text(f"{text} !", "yellow")


def _number(value: float | None, form: str) -> Text:
    return Text("-" if value is None else format(value, form))
