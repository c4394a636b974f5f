"""Results as text."""

from __future__ import annotations

import math
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from dsv_plugins.result import CandidateResult, Result

__all__ = ["candidates_table", "render_candidates"]

TEXT_WIDTH = 160


def candidates_table(result: Result) -> Table:
    """A row for each candidate, its losses, and a mark on each selector's choice and on what is not concentrated."""
    table = Table(box=None, pad_edge=False)
    table.add_column("candidate", no_wrap=True)
    for name in result.selected:
        table.add_column(escape(name), justify="right", no_wrap=True)
    for heading in ("accuracy", "conc.", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    for entry in result.candidates:
        table.add_row(
            escape(str(entry.candidate)),
            *(_loss(entry, name, result) for name in result.selected),
            _number(entry.health.training_accuracy if entry.health else None, ".2f"),
            _concentration(entry),
            _number(entry.seconds, ".0f"),
            escape(f"{entry.status}: {entry.reason}" if entry.reason else entry.status),
        )
    return table


def render_candidates(result: Result) -> str:
    """The table as plain text."""
    text = StringIO()
    Console(file=text, width=TEXT_WIDTH, no_color=True).print(candidates_table(result))
    return text.getvalue()


def _loss(entry: CandidateResult, selector: str, result: Result) -> str:
    loss = (entry.losses or {}).get(selector)
    if loss is None:
        return "-"
    chosen = result.selected[selector].candidate.id == entry.candidate.id
    return f"[bold green]{loss:.4g} ←[/bold green]" if chosen else f"{loss:.4g}  "


def _concentration(entry: CandidateResult) -> str:
    if entry.health is None:
        return "-"
    value = entry.health.concentration
    text = "∞" if math.isinf(value) else f"{value:.2f}"
    return f"{text}  " if entry.concentrated else f"[yellow]{text} ![/yellow]"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
