"""Turn a run folder into one page that shows why its choice was made, and that works offline."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli.options import check_target
from dsv_plugins.cli.output import tell
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.errors import one_line

if TYPE_CHECKING:
    from dsv_plugins.run.run import Run

__all__ = ["add_arguments", "run", "write_report"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run", type=str, help="the run folder of a finished `dsv select` or `dsv demo`")
    parser.add_argument("--out", type=str, help="where to write the page; report.html in the run folder by default")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")


def run(arguments: Namespace) -> int:
    """Write the page, and show it where asked."""
    from dsv_plugins.report import build
    from dsv_plugins.run.run import Run

    check_target(arguments.out)
    page = build(Run(arguments.run), Path(arguments.out) if arguments.out else None)
    Terminal().print(literal(f"report: {page}"), soft_wrap=True)
    if arguments.open:
        webbrowser.open(page.absolute().as_uri())
    return 0


def write_report(run: Run) -> Path | None:
    """Write the report of a study that has just ended; if that fails, the selection stands and a line says why."""
    try:
        from dsv_plugins.report import build

        return build(run)
    except Exception as error:
        tell(f"no report: {one_line(str(error)) or type(error).__name__}")
        return None
