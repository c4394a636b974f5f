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

from dsv_plugins.report.charts import panels
from dsv_plugins.report.details import DrawingLimits, details
from dsv_plugins.report.flagged import flagged_images
from dsv_plugins.report.reading import read_run
from dsv_plugins.report.summary import agreement, answer, model_in_words, pool_aucs
from dsv_plugins.run.folder import RunFolder, write_text

__all__ = ["build_report"]


def build_report(run: Path, target: Path | None = None) -> Path:
    """Write the report of a run folder as one self-contained HTML page.

    Args:
        run: The run folder of a finished study.
        target: Where to write the page; `report.html` in the run folder if None.

    Returns:
        Where the page is.

    Raises:
        StoreError: The run folder has no selection, a file of it is damaged, or the page cannot be written.
    """
    record = read_run(run)
    limits = DrawingLimits.of(record)
    figures = panels(record)
    content = {**details(record, limits), "panels": [json.loads(figure.to_json()) for figure in figures]}
    scripts = [Markup(script) for script in (get_plotlyjs(), _asset("report.js"))]  # noqa: S704 — ours, not data
    environment = Environment(
        loader=PackageLoader("dsv_plugins.report", "assets"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("report.html").render(
        run=record,
        answer=answer(record),
        model=model_in_words(record),
        parts=sorted(record.parts().items(), key=lambda entry: -entry[1]),
        shares=sorted(record.kept.items(), key=lambda entry: -entry[1]),
        agreement=agreement(record),
        aucs=pool_aucs(record),
        flagged=flagged_images(record),
        titles=[figure.layout.title.text for figure in figures],
        limits=limits.notes(record),
        films=content.pop("films"),
        style=Markup(_asset("report.css")),  # noqa: S704 — ours, not data
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        data=Markup(_embedded(content)),  # noqa: S704 — no `<` is left in it
    )
    target = RunFolder(run).report if target is None else target
    write_text(target, page)
    return target


def _embedded(content: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (resources.files("dsv_plugins.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What the page's security policy lets run: these scripts, and none that a name could smuggle in."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"
