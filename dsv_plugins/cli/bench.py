"""Compare all selectors and baselines on labelled tasks, with the protocol of the paper."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.markup import escape

from dsv_plugins.cli.config import WrongValueError
from dsv_plugins.cli.flags import add_study_flags, study_settings
from dsv_plugins.cli.select import conduct
from dsv_plugins.cli.terminal import Terminal, literal, progress_console
from dsv_plugins.errors import InputError, TrainingError

__all__ = ["add_arguments", "run"]

EXIT_PARTLY_FAILED = 1
ON_TERMINAL = (
    "rivals",
    "auc",
    "rank",
    "choices",
    "wilcoxon",
    "pixels-auroc",
    "pixels-aupro",
    "pixels-pimo",
    "variations",
)
"""The other tables have a row for every task and are only written to files."""
DECIDED_HERE = frozenset(
    {
        *("augmentation", "selector", "selector_params", "keep", "search", "search_params", "rungs", "rung_factor"),
        *("seed", "skip_bad", "out", "tile", "overlap"),
    }
)
"""Settings of a study that the benchmark decides: every selector judges every candidate."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("folders", nargs="+", type=str, help="labelled tasks in MVTec layout, or folders of such tasks")
    parser.add_argument(
        "--augmentations", default="cutout,cutavg,cutdiff,cutpaste", help="the augmentations to compare on, as a,b,c"
    )
    add_study_flags(parser, leave_out=DECIDED_HERE)
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default="0",
        help="a list of seeds, as 0,1,2; everything is trained once with each of them, and a single number is one seed",
    )
    parser.add_argument(
        "--thin", type=_shares, default=[], help="judge again with anomalies reduced to these shares, as 0.3,0.1,0.05"
    )
    parser.add_argument("--brighten", type=float, help="judge again with brighter normal test images, as 1.05")
    parser.add_argument(
        "--rivals",
        default="",
        help="detectors without augmentations to compare with, as patch-memory,anomalib-patchcore",
    )
    parser.add_argument("--out", default="dsv-bench", help="the folder of all results; the same command resumes it")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: Namespace) -> int:
    """Run the benchmark, or resume it, and show its tables."""
    from dsv_plugins.bench.output import FILES, as_text, describe, write
    from dsv_plugins.bench.protocol import Bench
    from dsv_plugins.bench.tables import tabulate
    from dsv_plugins.bench.tasks import find_tasks
    from dsv_plugins.run.remote_copy import is_address

    if is_address(arguments.out):
        raise InputError(f"--out is {arguments.out}; a benchmark needs a folder on this machine")
    progress = progress_console(as_json=arguments.json)
    settings = study_settings(arguments, leave_out=DECIDED_HERE)
    bench = Bench(
        tasks=find_tasks([Path(folder) for folder in arguments.folders]),
        out=Path(arguments.out).absolute(),
        augmentations=_listed(arguments.augmentations),
        seeds=arguments.seeds,
        settings=settings,
        thin=arguments.thin,
        brighten=arguments.brighten,
        rivals=_listed(arguments.rivals),
    )
    result = bench.run(
        conduct=lambda study: conduct(study, as_json=arguments.json, command=arguments.command_line),
        report=lambda line: progress.print(f"[bold]{escape(line)}[/bold]", soft_wrap=True, highlight=False),
    )
    if not result.cells:
        raise TrainingError(f"every part failed; the first: {next(iter(result.failures.values()))}")
    tables = tabulate(result)
    given = {
        "tasks": [task.name for task in bench.tasks],
        "augmentations": list(bench.augmentations),
        "seeds": list(bench.seeds),
        "thin": arguments.thin,
        "brighten": arguments.brighten,
        "rivals": list(bench.rivals),
        **settings,
    }
    description = describe(result, tables, given)
    write(bench.out, result, tables, description)
    terminal = Terminal()
    if arguments.json:
        terminal.print_json_object(description)
    else:
        for table in tables:
            if table.name in ON_TERMINAL:
                terminal.write(f"{as_text(table, terminal.width)}\n")
                terminal.print(literal(table.note))
                terminal.print()
        for name, reason in result.failures.items():
            terminal.print(literal(f"{name} failed: {reason}", style="yellow"), soft_wrap=True)
        terminal.print(literal(f"results in {bench.out}: {', '.join(FILES)}"), soft_wrap=True)
    return EXIT_PARTLY_FAILED if result.failures else 0


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _shares(value: object) -> list[float]:
    """Read shares from a list in a YAML file, or from `0.3,0.1` on the command line."""
    try:
        return [float(share) for share in _parts(value)]
    except ValueError:
        raise WrongValueError(f"{value!r} is not of the form share,share, as in 0.3,0.1") from None


def _seeds(value: object) -> list[int]:
    """Read seeds from a list or a number in a YAML file, or from `0,1,2` on the command line."""
    try:
        return [int(seed) for seed in _parts(value)]
    except ValueError:
        raise WrongValueError(f"{value!r} is not a list of seeds, as in 0,1,2") from None


def _parts(value: object) -> list[str]:
    return [str(part) for part in value] if isinstance(value, list) else _listed(str(value))
