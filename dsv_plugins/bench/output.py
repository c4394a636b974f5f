"""The files of a benchmark: its tables as Markdown and CSV, everything as JSON, the figures as a page."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dsv_plugins.bench.analysis import ablation_table, correlations_table, theory_table
from dsv_plugins.bench.comparison import aucs_table, choices_table, p_values_table, ranks_table, tasks_table
from dsv_plugins.bench.frames import auc_frame
from dsv_plugins.bench.pixels import pixels_tables
from dsv_plugins.bench.protocol import BenchResult
from dsv_plugins.bench.rivals import rivals_table
from dsv_plugins.bench.table import Table, as_csv, as_json, as_markdown
from dsv_plugins.bench.variations import variations_table
from dsv_plugins.run.folder import write_json, write_text
from dsv_plugins.run.records import finite

__all__ = ["FILES", "describe", "tabulate", "write"]

FILES = TABLES, SHEET, OBJECT, FIGURES = "tables.md", "tables.csv", "bench.json", "figures.html"
PACKAGES = ("dsv-plugins", "torch", "torchvision", "lightning", "scipy", "scikit-learn", "pandas")


def tabulate(result: BenchResult) -> list[Table]:
    """All tables, the summaries first."""
    cells, varied = result.cells, result.varied
    aucs = auc_frame(cells)
    summaries = [rivals_table(cells, result.rivals, merges=result.merges)] if result.rivals else []
    summaries += [make(aucs) for make in (aucs_table, ranks_table, choices_table, p_values_table)]
    summaries += pixels_tables(cells)
    summaries += [variations_table(varied)] if varied else []
    return [*summaries, tasks_table(aucs), ablation_table(aucs), correlations_table(cells), theory_table(cells)]


def describe(result: BenchResult, tables: Sequence[Table], settings: Mapping[str, object]) -> dict[str, Any]:
    """The benchmark as one JSON object, with what is needed to run it again.

    Args:
        result: The measurements.
        tables: Their tables, from `tabulate`.
        settings: The settings of the benchmark.
    """
    content = {
        "settings": dict(settings),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "tables": as_json(tables),
        "cells": [cell.as_json() for cell in result.cells],
        "rivals": [each.as_json() for each in result.rivals],
        "variations": [each.as_json() for each in result.varied],
        "failures": dict(result.failures),
    }
    return finite(content)  # type: ignore[no-any-return]


def write(out: Path, result: BenchResult, tables: Sequence[Table], description: Mapping[str, object]) -> None:
    """Write the four files, each atomically."""
    from dsv_plugins.bench.figures import figures_page  # importing plotly is slow

    write_json(out / OBJECT, description)
    write_text(out / TABLES, f"{as_markdown(tables)}{_remarks(result)}")
    write_text(out / SHEET, as_csv(tables))
    write_text(out / FIGURES, figures_page(result.cells, tables))


def _remarks(result: BenchResult) -> str:
    """The failures, and the notes of the cells, as further sections."""
    failed = [f"- {part}: {reason}" for part, reason in result.failures.items()]
    notes = [
        f"- {cell.task}, {cell.augmentation}, seed {cell.seed}: {note}" for cell in result.cells for note in cell.notes
    ]
    sections = [("Failures", failed), ("Notes", notes)]
    return "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections if lines)
