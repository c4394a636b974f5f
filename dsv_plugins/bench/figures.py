"""The figures of the paper, on one page that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from numbers import Real

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dsv_plugins.bench.analysis import MEAN
from dsv_plugins.bench.cells import POOLED, Cell, MeasuredCandidate
from dsv_plugins.bench.methods import MAIN
from dsv_plugins.bench.table import Table
from dsv_plugins.plugins.search import choose

__all__ = ["figures_page"]

CURVES = ("AUC", "L_DSV", "L_dis", "L_sep")
PANEL = 220
"""Height of a row of panels in pixels."""


def figures_page(cells: Sequence[Cell], tables: Sequence[Table]) -> str:
    """A page with AUC and losses against the patch size for each task, the ablation, and the p-values."""
    by_name = {table.name: table for table in tables}
    figures = [_ablation(by_name["ablation"]), _p_values(by_name["wilcoxon"])]
    by_task: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.augmentation != POOLED:
            by_task.setdefault(cell.task, []).append(cell)
    figures += [_curves(task, group) for task, group in by_task.items()]
    # The page contains the library once, with the first figure.
    parts = [figure.to_html(full_html=False, include_plotlyjs=index == 0) for index, figure in enumerate(figures)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>dsv bench</title></head>\n'
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def _curves(task: str, cells: Sequence[Cell]) -> go.Figure:
    """A column for each augmentation, a row for the AUC and for each loss; a ring marks the choice of DSV.

    The curves are those of the task's first seed.
    """
    first_seed = min(cell.seed for cell in cells)
    cells = [cell for cell in cells if cell.seed == first_seed]
    figure = make_subplots(
        rows=len(CURVES),
        cols=len(cells),
        shared_xaxes=True,
        column_titles=[escape(cell.augmentation) for cell in cells],
        row_titles=list(CURVES),
    )
    for column, cell in enumerate(cells, start=1):
        places = _places(cell.candidates)
        losses = cell.losses.get(MAIN)
        chosen = None if losses is None else choose(losses)
        curves = (
            cell.pool,
            losses,
            [candidate.theory.discordance for candidate in cell.candidates],
            [candidate.theory.separability for candidate in cell.candidates],
        )
        for row, values in enumerate(curves, start=1):
            if values is None:
                continue
            sizes = [14 if index == chosen else 6 for index in range(len(places))]
            symbols = ["circle-open" if index == chosen else "circle" for index in range(len(places))]
            line = go.Scatter(x=places, y=list(values), mode="lines+markers", marker={"size": sizes, "symbol": symbols})
            figure.add_trace(line, row=row, col=column)
        if all(isinstance(place, Real) for place in places):
            figure.update_xaxes(type="log", col=column)
    title = f"{escape(task)}: AUC and losses against the patch size"
    return figure.update_layout(title=title, showlegend=False, height=PANEL * len(CURVES) + 80)


def _places(candidates: Sequence[MeasuredCandidate]) -> list[float | str]:
    """The places of candidates on the axis: their patch sizes if these tell them apart, else all hyperparameters."""
    sizes = [candidate.params.get("patch_size") for candidate in candidates]
    if len({str(size) for size in sizes}) == len(sizes):
        numbers = [float(size) for size in sizes if isinstance(size, Real)]
        if len(numbers) == len(sizes):
            return list(numbers)
    return [escape(", ".join(f"{name}={value}" for name, value in each.params.items())) for each in candidates]


def _ablation(table: Table) -> go.Figure:
    tasks = table.frame.drop(MEAN, level="task")
    labels = [[escape(name) for name in tasks.index.get_level_values(level)] for level in ("augmentation", "task")]
    bars = [go.Bar(name=escape(part), x=labels, y=tasks[part].tolist()) for part in tasks]
    return go.Figure(bars).update_layout(title=table.title, barmode="group", yaxis_title="AUC")


def _p_values(table: Table) -> go.Figure:
    matrix = table.frame.to_numpy().tolist()
    methods = [escape(method) for method in table.frame]
    heatmap = go.Heatmap(
        z=matrix, x=methods, y=methods, zmin=0, zmax=1, colorscale="Viridis", texttemplate="%{z:.2g}", hoverongaps=False
    )
    figure = go.Figure(heatmap).update_layout(title=table.title, height=40 * len(methods) + 240)
    return figure.update_yaxes(autorange="reversed")
