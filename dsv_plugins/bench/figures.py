"""The figures of the paper, on one page that works offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from numbers import Real
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dsv_plugins.bench.cells import POOLED, Cell
from dsv_plugins.bench.methods import MAIN
from dsv_plugins.bench.output import Table
from dsv_plugins.bench.statistics import MEAN
from dsv_plugins.plugins.search import choose

__all__ = ["figures_page"]

CURVES = ("AUC", "L_DSV", "L_dis", "L_sep")
PANEL = 220
"""Height of a row of panels in pixels."""


def figures_page(cells: Sequence[Cell], tables: Sequence[Table]) -> str:
    """Return a page with AUC and losses against the patch size for each task, the ablation, and the p-values."""
    by_name = {table.name: table for table in tables}
    figures = [_ablation(by_name["ablation"]), _p_values(by_name["wilcoxon"])]
    for task in dict.fromkeys(cell.task for cell in cells):
        of_task = [cell for cell in cells if cell.task == task and cell.augmentation != POOLED]
        figures.append(_curves(task, [cell for cell in of_task if cell.seed == of_task[0].seed]))
    # The page contains the library once, with the first figure.
    parts = [figure.to_html(full_html=False, include_plotlyjs=index == 0) for index, figure in enumerate(figures)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>dsv bench</title></head>\n'
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def _curves(task: str, cells: Sequence[Cell]) -> go.Figure:
    """Draw a column for each augmentation, a row for the AUC and for each loss; a ring marks the choice of DSV."""
    titles = [escape(cell.augmentation) for cell in cells]
    figure = make_subplots(len(CURVES), len(cells), shared_xaxes=True, column_titles=titles, row_titles=list(CURVES))
    for column, cell in enumerate(cells, start=1):
        positions = _positions(cell.candidates)
        losses = cell.losses.get(MAIN, [])
        chosen = [bool(losses) and index == choose(losses) for index in range(len(positions))]
        marker = {
            "size": [14 if ring else 6 for ring in chosen],
            "symbol": ["circle-open" if ring else "circle" for ring in chosen],
        }
        parts = [[candidate[part] for candidate in cell.candidates] for part in ("discordance", "separability")]
        for row, values in enumerate((cell.pool, losses, *parts), start=1):
            line = go.Scatter(x=positions[: len(values)], y=values, mode="lines+markers", marker=marker)
            figure.add_trace(line, row=row, col=column)
        if all(isinstance(position, Real) for position in positions):
            figure.update_xaxes(type="log", col=column)
    title = f"{escape(task)}: AUC and losses against the patch size"
    return figure.update_layout(title=title, showlegend=False, height=PANEL * len(CURVES) + 80)


def _positions(candidates: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return where candidates are on the axis: at their patch sizes if these tell them apart, else at their params."""
    sizes = [candidate["params"].get("patch_size") for candidate in candidates]
    if len(set(sizes)) == len(sizes) and all(isinstance(size, Real) for size in sizes):
        return sizes
    return [escape(", ".join(f"{name}={value}" for name, value in each["params"].items())) for each in candidates]


def _ablation(table: Table) -> go.Figure:
    tasks = table.frame.drop(MEAN, level="task")
    labels = [[escape(name) for name in tasks.index.get_level_values(level)] for level in ("augmentation", "task")]
    bars = [go.Bar(name=escape(part), x=labels, y=tasks[part].tolist()) for part in tasks]
    return go.Figure(bars).update_layout(title=table.title, barmode="group", yaxis_title="AUC")


def _p_values(table: Table) -> go.Figure:
    names = [escape(method) for method in table.frame]
    scale = {"zmin": 0, "zmax": 1, "colorscale": "Viridis", "texttemplate": "%{z:.2g}", "hoverongaps": False}
    figure = go.Figure(go.Heatmap(z=table.frame.to_numpy().tolist(), x=names, y=names, **scale))
    figure.update_layout(title=table.title, height=40 * len(names) + 240)
    return figure.update_yaxes(autorange="reversed")
