"""The candidates of a run as a table of text."""

from __future__ import annotations

import math
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsv_plugins.run.records import CandidateRecord
from dsv_plugins.run.run import Run

__all__ = ["candidates_table", "concentration_legend", "hidden_losses", "table"]

NUMBERS_WIDTH, STATUS_WIDTH, LOSS_WIDTH = 32, 30, 12
"""What the columns of numbers, of the status and of one loss need."""


def candidates_table(run: Run, *, width: int) -> Table:
    """Return a row for each candidate: arrows mark the choices, and `!` a concentration above what DSV presumes.

    The status is shown if not all are finished.

    Args:
        run: The run folder's content.
        width: Columns of text there are; as many selectors are shown as fit, the deciding one first.
    """
    selectors = run.selectors[: _fitting(run, width)]
    rows = Table(box=None, pad_edge=False)
    rows.add_column("candidate", no_wrap=True)
    wins, aucs = run.confidence.get(selectors[0]), run.aucs
    for heading in (*selectors, *(["wins"] if wins else []), *(["AUC"] if aucs else []), "acc.", "conc.", "s"):
        rows.add_column(Text(heading), justify="right", no_wrap=True)
    unfinished = any(entry.status != "finished" for entry in run.candidates)
    if unfinished:
        rows.add_column("status", overflow="fold")
    for entry in run.candidates:
        rows.add_row(
            Text(entry.label),
            *(_loss(entry, name, run) for name in selectors),
            *([_number(wins.get(entry.id), ".0%")] if wins else []),
            *([_number(aucs.get(entry.id), ".3f")] if aucs else []),
            _number(entry.health.training_accuracy if entry.health else None, ".2f"),
            _concentration(entry),
            _number(run.seconds.get(entry.id), ".0f"),
            *([Text(f"{entry.status}: {entry.reason}" if entry.reason else entry.status)] if unfinished else []),
        )
    return rows


def table(run: Run) -> str:
    """Return the table of the candidates with every selector, as plain text."""
    width = _fixed_width(run) + LOSS_WIDTH * len(run.selectors) + max(len(entry.reason) for entry in run.candidates)
    text = StringIO()
    console = Console(file=text, width=width, no_color=True)
    console.print(candidates_table(run, width=width))
    if legend := concentration_legend(run):
        console.print(legend, soft_wrap=True)
    return text.getvalue()


def hidden_losses(run: Run, *, width: int) -> str:
    """Return which selectors the table has no column for; empty if it shows all."""
    hidden = run.selectors[_fitting(run, width) :]
    return f"no room for the losses of {', '.join(hidden)}: they are in the report" if hidden else ""


def _fitting(run: Run, width: int) -> int:
    """Return how many selectors have a column; that of the deciding one is always there."""
    return max(1, (width - _fixed_width(run)) // LOSS_WIDTH)


def _fixed_width(run: Run) -> int:
    """Return what the columns other than losses need."""
    unfinished = any(entry.status != "finished" for entry in run.candidates)
    return max(len(entry.label) for entry in run.candidates) + NUMBERS_WIDTH + (STATUS_WIDTH if unfinished else 0)


def concentration_legend(run: Run) -> str:
    """Return what `!` means in the table; empty if no candidate has it."""
    finished = [entry.health for entry in run.candidates if entry.status == "finished"]
    marked = any(health is not None and not health.concentrated for health in finished)
    meaning = "the normal images are not as close together as DSV presumes; it matters to dsv and discordance only"
    return f"! conc. (concentration): {meaning}" if marked else ""


def _loss(entry: CandidateRecord, selector: str, run: Run) -> Text:
    loss = entry.losses.get(selector)
    if loss is None:
        return Text("-  ")
    chosen = run.selected[selector].candidate.id == entry.id
    return Text(f"{loss:.4g} ←", "bold green") if chosen else Text(f"{loss:.4g}  ")


def _concentration(entry: CandidateRecord) -> Text:
    if entry.health is None:
        return Text("-  ")
    value = entry.health.concentration
    text = "∞" if math.isinf(value) else f"{value:.2f}"
    return Text(f"{text}  ") if entry.health.concentrated else Text(f"{text} !", "yellow")


def _number(value: float | None, form: str) -> Text:
    return Text("-" if value is None else format(value, form))
