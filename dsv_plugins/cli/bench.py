"""Measure on labelled tasks how well every selector chooses, against every baseline: the protocol of the paper."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.markup import escape

from dsv_plugins.cli.flags import add_study_flags, study_settings
from dsv_plugins.cli.select import conduct
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.errors import InputError, TrainingError

__all__ = ["add_arguments", "run"]

EXIT_PARTLY_FAILED = 1
ON_TERMINAL = ("auc", "rank", "choices", "wilcoxon", "variations")
"""The other tables have a row for every task, and are in the files."""
DECIDED_HERE = frozenset(
    {"augmentation", "selector", "search", "search_params", "rungs", "rung_factor", "seed", "skip_bad", "out"}
)
"""Settings of a study that are not the user's here: every selector judges every candidate."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("folders", nargs="+", type=str, help="labelled tasks in MVTec layout, or folders of such tasks")
    parser.add_argument(
        "--augmentations", default="cutout,cutavg,cutdiff,cutpaste", help="the augmentations to compare on, as a,b,c"
    )
    add_study_flags(parser, leave_out=DECIDED_HERE)
    parser.add_argument("--seeds", type=int, default=1, help="how many times everything is trained")
    parser.add_argument(
        "--thin", type=_shares, default=[], help="judge again with anomalies thinned to these shares, as 0.3,0.1,0.05"
    )
    parser.add_argument("--brighten", type=float, help="judge again with brighter normal test images, as 1.05")
    parser.add_argument("--out", default="dsv-bench", help="where everything goes; the same command resumes it")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: Namespace) -> int:
    """Run the benchmark, or resume it, and show its tables."""
    from dsv_plugins.bench.output import FILES, described_outcome, tabulate, write
    from dsv_plugins.bench.protocol import Bench
    from dsv_plugins.bench.table import as_rich
    from dsv_plugins.bench.tasks import find_tasks
    from dsv_plugins.bench.variations import Variations
    from dsv_plugins.store.remote_copy import is_address

    if is_address(arguments.out):
        raise InputError(f"--out is {arguments.out}; a benchmark needs a folder of this machine")
    progress = Console(stderr=arguments.json)
    settings = study_settings(arguments, leave_out=DECIDED_HERE)
    bench = Bench(
        tasks=find_tasks([Path(folder) for folder in arguments.folders]),
        out=Path(arguments.out).absolute(),
        augmentations=_listed(arguments.augmentations),
        seeds=arguments.seeds,
        settings=settings,
        variations=Variations(arguments.thin, arguments.brighten),
    )
    outcome = bench.run(
        conduct=lambda study: conduct(study, as_json=arguments.json, command=arguments.command_line),
        report=lambda line: progress.print(f"[bold]{escape(line)}[/bold]", soft_wrap=True, highlight=False),
    )
    if not outcome.cells:
        raise TrainingError(f"no part succeeded; the first: {next(iter(outcome.failures.values()))}")
    tables = tabulate(outcome.cells, outcome.varied)
    asked = {
        "tasks": [task.name for task in bench.tasks],
        "augmentations": list(bench.augmentations),
        "seeds": bench.seeds,
        "thin": arguments.thin,
        "brighten": arguments.brighten,
        **settings,
    }
    described = described_outcome(outcome, tables, asked)
    write(bench.out, outcome, tables, described)
    terminal = Terminal()
    if arguments.json:
        terminal.print_json_object(described)
    else:
        for table in tables:
            if table.name in ON_TERMINAL:
                terminal.print(as_rich(table))
                terminal.print(literal(table.note), soft_wrap=True)
                terminal.print()
        for part, reason in outcome.failures.items():
            terminal.print(literal(f"{part} failed: {reason}", style="yellow"), soft_wrap=True)
        terminal.print(literal(f"all of it is in {bench.out}: {', '.join(FILES)}"), soft_wrap=True)
    return EXIT_PARTLY_FAILED if outcome.failures else 0


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _shares(value: object) -> list[float]:
    """The shares: a list in a YAML file, `0.3,0.1` on the command line."""
    shares = value if isinstance(value, list) else _listed(str(value))
    try:
        return [float(share) for share in shares]
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{value!r} is not of the form share,share, as in 0.3,0.1") from None
