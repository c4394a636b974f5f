"""Writes the page as one file with everything inside, so that it opens anywhere and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from dsv_plugins.errors import StoreError
from dsv_plugins.report.charts import panels
from dsv_plugins.report.details import DrawingLimits, details
from dsv_plugins.report.summary import agreement, answer, model_in_words, parts_of, pool_aucs
from dsv_plugins.report.verdicts import verdicts
from dsv_plugins.run.checksums import RESTORE
from dsv_plugins.run.folder import write_text
from dsv_plugins.run.run import Run

__all__ = ["build"]


def build(run: Run, target: Path | str | None = None) -> Path:
    """Write the report of a run folder as one self-contained HTML page.

    Args:
        run: A finished study.
        target: Where to write the page; `report.html` in the run folder if None.

    Returns:
        Where the page is.

    Raises:
        StoreError: The run folder has no selection, a file of it is damaged, or the page cannot be written.
    """
    _check_stored(run)
    limits = DrawingLimits.of(run)
    figures = panels(run) if len(run.candidates) > 1 else []  # one loss says nothing
    judged = verdicts(run)
    content = {
        **details(run, limits),
        "panels": [json.loads(figure.to_json()) for figure in figures],
        "model": judged and {"histogram": judged.histogram, "threshold": judged.threshold},
    }
    scripts = [Markup(script) for script in (get_plotlyjs(), _asset("report.js"))]  # noqa: S704 — ours, not data
    environment = Environment(
        loader=PackageLoader("dsv_plugins.report", "assets"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("report.html").render(
        run=run,
        command=run.journal.command(),
        held_out=len(run.files.get("holdout", ())),
        answer=answer(run),
        model=model_in_words(run),
        parts=sorted(parts_of(run).items(), key=lambda entry: -entry[1]),
        shares=sorted(run.shares.items(), key=lambda entry: -entry[1]),
        agreement=agreement(run),
        aucs=pool_aucs(run),
        flagged=judged.images if judged else [],
        titles=[figure.layout.title.text for figure in figures],
        limits=limits.notes(run),
        films=content.pop("films"),
        style=Markup(_asset("report.css")),  # noqa: S704 — ours, not data
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        data=Markup(_embedded(content)),  # noqa: S704 — no `<` is left in it
    )
    target = run.folder.report if target is None else Path(target)
    write_text(target, page)
    return target


def _check_stored(run: Run) -> None:
    """Demand what is stored of the choices and the model; that of others may have been removed to save space."""
    stored = {entry.id for entry in run.stored}
    for name, choice in run.selected.items():
        if choice.candidate.id not in stored:
            raise StoreError(f"{run.path} has no evaluation of the candidate that {name} chose; {RESTORE}")
    for candidate in run.kept:
        if candidate.id not in stored:
            raise StoreError(f"{run.path} has no evaluation of {candidate}, which it keeps; {RESTORE}")


def _embedded(content: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (resources.files("dsv_plugins.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Return what the page's security policy lets run: these scripts, and none that a name could smuggle in."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"
