"""The report of a run: `build(run)` writes the page, `plot(run)` draws its main chart, `table(run)` is text."""

from __future__ import annotations

from dsv_plugins.report.charts import plot
from dsv_plugins.report.page import build
from dsv_plugins.report.terminal import table

__all__ = ["build", "plot", "table"]
