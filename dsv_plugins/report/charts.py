"""The main chart: what each candidate's loss is, and its two parts beside it."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dsv_plugins.run.records import CandidateRecord
from dsv_plugins.run.run import Run

__all__ = ["panels", "plot"]

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, SKY, PURPLE, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00"
SERIES = (BLUE, GREEN, PURPLE, SKY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up")
LOG_FROM = 20
"""A range of hyperparameters with at least this ratio is drawn on a logarithmic axis."""
MOST_TICKS = 24
LONGEST_TICK = 28


@dataclass(frozen=True, slots=True)
class _Axis:
    """The positions of the candidates: by their hyperparameter if there is only one, else side by side."""

    title: str
    kind: str
    places: dict[str, float]
    labels: dict[str, str]


def panels(run: Run) -> list[go.Figure]:
    """Return a figure for the deciding selector's loss, one for discordance and one for separability.

    Each marker carries its candidate's place among `run.stored` as customdata.
    """
    deciding = run.selectors[0]
    axis = _axis(run.stored)
    figures = [_panel(run, axis, f"{deciding} loss · lower is better", lambda c: c.losses.get(deciding))]
    if run.aucs:
        _add_aucs(figures[0], run, axis)
    for name, note in (
        ("discordance", "lower is better"),
        ("separability", "higher is better; more than ½ counts as ½"),
    ):
        measured = {identifier: training.measures.get(name) for identifier, training in run.trainings.items()}
        if any(value is not None for value in measured.values()):
            figures.append(_panel(run, axis, f"{name} · {note}", lambda c, measured=measured: measured[c.id]))  # type: ignore[misc]
    return figures


def plot(run: Run) -> go.Figure:
    """Draw the panels side by side, for a notebook."""
    parts = panels(run)
    titles = [part.layout.title.text for part in parts]
    specs = [[{"secondary_y": True}] * len(parts)]
    figure = make_subplots(rows=1, cols=len(parts), subplot_titles=titles, specs=specs)
    for column, part in enumerate(parts, start=1):
        for trace in part.data:
            over = trace.yaxis == "y2"
            trace.update(xaxis=None, yaxis=None, showlegend=trace.showlegend is not False and column == 1)
            figure.add_trace(trace, row=1, col=column, secondary_y=over)
        figure.update_xaxes(part.layout.xaxis, row=1, col=column)
    return figure.update_layout(height=380, margin={"t": 60})


def _panel(run: Run, axis: _Axis, title: str, value: Callable[[CandidateRecord], float | None]) -> go.Figure:
    figure = go.Figure()
    for series, augmentation in enumerate(dict.fromkeys(each.candidate.augmentation for each in run.stored)):
        drawn = [
            (place, candidate, y)
            for place, candidate in enumerate(run.stored)
            if candidate.candidate.augmentation == augmentation and _finite(y := value(candidate))
        ]
        drawn.sort(key=lambda entry: axis.places[entry[1].id])
        colour = SERIES[series % len(SERIES)]
        figure.add_trace(
            go.Scatter(
                x=[axis.places[candidate.id] for _, candidate, _ in drawn],
                y=[y for _, _, y in drawn],
                customdata=[place for place, _, _ in drawn],
                text=[html.escape(candidate.label) for _, candidate, _ in drawn],
                hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
                name=html.escape(augmentation),
                mode="lines+markers" if axis.kind != "category" else "markers",
                line={"color": colour, "width": 2},
                marker={
                    "color": colour,
                    "opacity": 1,
                    "symbol": [
                        "star" if candidate.id == run.chosen.id else SYMBOLS[series % len(SYMBOLS)]
                        for _, candidate, _ in drawn
                    ],
                    "size": [16 if candidate.id == run.chosen.id else 9 for _, candidate, _ in drawn],
                },
            )
        )
    figure.update_layout(title={"text": title}, xaxis=_xaxis(axis))
    return figure


def _add_aucs(figure: go.Figure, run: Run, axis: _Axis) -> None:
    known = [(place, candidate) for place, candidate in enumerate(run.stored) if candidate.id in run.aucs]
    known.sort(key=lambda entry: axis.places[entry[1].id])
    figure.add_trace(
        go.Scatter(
            x=[axis.places[candidate.id] for _, candidate in known],
            y=[run.aucs[candidate.id] for _, candidate in known],
            customdata=[place for place, _ in known],
            text=[html.escape(candidate.label) for _, candidate in known],
            hovertemplate="%{text}<br>AUC %{y:.3f}<extra></extra>",
            name="AUC, unseen by selectors",
            mode="lines+markers" if axis.kind != "category" else "markers",
            line={"color": VERMILLION, "width": 2, "dash": "dot"},
            marker={"color": VERMILLION, "symbol": "x", "size": 8},
            yaxis="y2",
        )
    )
    figure.update_layout(
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "title": {"text": "AUC"},
            "showgrid": False,
            "tickmode": "auto",
            "tickformat": ".2f",
        }
    )


def _axis(candidates: Sequence[CandidateRecord]) -> _Axis:
    names = {name for candidate in candidates for name in candidate.candidate.params}
    varying = [name for name in sorted(names) if len({repr(c.candidate.params.get(name)) for c in candidates}) > 1]
    if len(varying) == 1:
        values = [candidate.candidate.params.get(varying[0]) for candidate in candidates]
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) == len(values):
            logarithmic = min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_FROM
            places = {candidate.id: number for candidate, number in zip(candidates, numbers, strict=True)}
            return _Axis(varying[0], "log" if logarithmic else "linear", places, {})
    places = {candidate.id: float(place) for place, candidate in enumerate(candidates)}
    labels = {candidate.id: _short(candidate.label) for candidate in candidates}
    return _Axis("candidates", "category", places, labels)


def _xaxis(axis: _Axis) -> dict[str, object]:
    if axis.kind != "category":
        decades = {"dtick": 1, "minor": {"dtick": "D1", "ticks": "outside", "ticklen": 3}} if axis.kind == "log" else {}
        return {"type": axis.kind, "title": {"text": html.escape(axis.title)}, **decades}
    if len(axis.places) > MOST_TICKS:
        return {"showticklabels": False, "title": {"text": axis.title}}
    return {
        "tickvals": list(axis.places.values()),
        "ticktext": [html.escape(axis.labels[identifier]) for identifier in axis.places],
        "tickangle": -40,
    }


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_TICK else label[: LONGEST_TICK - 1] + "…"


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
