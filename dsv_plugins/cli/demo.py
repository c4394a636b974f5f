"""Make a small inspection task from a real texture, select on it, and show the AUC of each selector's choice."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from dsv_plugins.cli.report import write_report
from dsv_plugins.cli.select import conduct, show
from dsv_plugins.cli.terminal import Terminal, literal

if TYPE_CHECKING:
    from dsv_plugins.run.records import AUCRecord
    from dsv_plugins.run.run import Run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--texture", default="gravel", help="gravel, brick or grass")
    parser.add_argument("--workers", type=int, help="trainings at once; by default one on each core")
    parser.add_argument("--seed", type=int, default=0, help="fixes every draw")
    parser.add_argument("--out", default="dsv-demo", help="where the task and the run go")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: Namespace) -> int:
    """Run the demo, or resume it."""
    from dsv_plugins.bench.demo_task import write_demo_task
    from dsv_plugins.bench.methods import usable_selectors
    from dsv_plugins.bench.studies import measure_aucs
    from dsv_plugins.bench.tasks import labels_of
    from dsv_plugins.data.images import split_folder
    from dsv_plugins.plugins.registry import build_registry
    from dsv_plugins.run.checksums import verify
    from dsv_plugins.study.study import Study

    folder = Path(arguments.out).absolute() / f"{arguments.texture}-{arguments.seed}"
    task = folder / "task"
    # The default; and wrong settings show here, before anything is written.
    (decides,) = Study(task, task, workers=arguments.workers, seed=arguments.seed).selectors
    if not task.exists() or verify(task) is not None:
        write_demo_task(task, arguments.texture, arguments.seed)
    registry = build_registry()
    train, test = split_folder(task)
    study = Study(
        train,
        test,
        augmentation="cutpaste",
        selector=[decides, *sorted(usable_selectors(registry, holdout=0.0) - {decides})],
        workers=arguments.workers,
        seed=arguments.seed,
        out=folder / "run",
    )
    result = conduct(study, as_json=arguments.json, command=arguments.command_line)
    aucs = measure_aucs(result, labels_of(result.path))
    report = write_report(result)
    terminal = Terminal()
    if arguments.json:
        terminal.print_json_object({**result.as_json(), "report": str(report) if report else None, "auc": asdict(aucs)})
        return 0
    show(result, as_json=False, report=report)
    _show_aucs(result, aucs, terminal)
    terminal.print(f"the model that is kept: {aucs.model:.3f}")
    terminal.print(literal(f"the images are in {task}"), soft_wrap=True)
    return 0


def _show_aucs(result: Run, aucs: AUCRecord, terminal: Terminal) -> None:
    terminal.print("\nthe AUC of each choice, since the labels of this task are known:")
    table = Table("selector", "chooses", "AUC", box=None, pad_edge=False)
    for name, auc in sorted(aucs.chosen.items(), key=lambda item: -item[1]):
        table.add_row(name, str(result.selected[name].candidate), f"{auc:.3f}")
    terminal.print(table)
    pool = aucs.candidates.values()
    terminal.print(f"best candidate {max(pool):.3f}, mean {fmean(pool):.3f}, worst {min(pool):.3f}")
