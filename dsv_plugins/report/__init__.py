"""The report: one page that explains a choice, made from the run folder only, without plugins or training code."""

from __future__ import annotations

from dsv_plugins.report.charts import main_figure
from dsv_plugins.report.page import build_report
from dsv_plugins.report.reading import read_run
from dsv_plugins.report.terminal import candidates_table, render_candidates

__all__ = ["build_report", "candidates_table", "main_figure", "read_run", "render_candidates"]
