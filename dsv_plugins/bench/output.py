"""What a benchmark leaves behind: its tables as Markdown and CSV, everything as JSON, the figures as a page."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dsv_plugins.bench.analysis import ablation_table, correlations_table, theory_table
from dsv_plugins.bench.cells import Cell
from dsv_plugins.bench.comparison import aucs_table, choices_table, p_values_table, ranks_table, tasks_table
from dsv_plugins.bench.protocol import Outcome
from dsv_plugins.bench.table import Table, as_csv, as_json, as_markdown
from dsv_plugins.bench.variations import Varied, variations_table
from dsv_plugins.store.folder import write_json, write_text

__all__ = ["FILES", "described_outcome", "tabulate", "write"]

FILES = TABLES, SHEET, OBJECT, FIGURES = "tables.md", "tables.csv", "bench.json", "figures.html"
PACKAGES = ("dsv-plugins", "torch", "torchvision", "lightning", "scipy", "scikit-learn")


def tabulate(cells: Sequence[Cell], varied: Sequence[Varied] = ()) -> list[Table]:
    """Every table, the most telling ones first; several seeds enter as their mean."""
    telling = [make(cells) for make in (aucs_table, ranks_table, choices_table, p_values_table)]
    telling += [variations_table(varied)] if varied else []
    return [*telling, *(make(cells) for make in (tasks_table, ablation_table, correlations_table, theory_table))]


def described_outcome(outcome: Outcome, tables: Sequence[Table], settings: Mapping[str, object]) -> dict[str, Any]:
    """The benchmark as one JSON object, with what a reader needs to run it again.

    Args:
        outcome: What was measured.
        tables: What `tabulate` made of it.
        settings: What was asked for.
    """
    return {
        "settings": dict(settings),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "tables": as_json(tables),
        "cells": [cell.as_json() for cell in outcome.cells],
        "variations": [each.as_json() for each in outcome.varied],
        "failures": dict(outcome.failures),
    }


def write(out: Path, outcome: Outcome, tables: Sequence[Table], described: Mapping[str, object]) -> None:
    """Write the four files, each in one step."""
    from dsv_plugins.bench.figures import figures_page  # plotly takes its time

    write_json(out / OBJECT, described)
    write_text(out / TABLES, f"{as_markdown(tables)}{_remarks(outcome)}")
    write_text(out / SHEET, as_csv(tables))
    write_text(out / FIGURES, figures_page(outcome.cells, tables))


def _remarks(outcome: Outcome) -> str:
    """What failed, and what to know of the cells, as further sections."""
    failed = [f"- {part}: {reason}" for part, reason in outcome.failures.items()]
    notes = [
        f"- {cell.task}, {cell.augmentation}, seed {cell.seed}: {note}" for cell in outcome.cells for note in cell.notes
    ]
    sections = [("Failures", failed), ("Notes", notes)]
    return "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections if lines)
