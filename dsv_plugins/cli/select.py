"""Select the augmentation for a folder of good images and a folder of unlabelled ones, and train its detector."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace
from rich.markup import escape

from dsv_plugins.cli.flags import add_study_flags, study_settings
from dsv_plugins.cli.report import write_report
from dsv_plugins.cli.terminal import Terminal, literal, progress_console
from dsv_plugins.errors import InputError, quoted

if TYPE_CHECKING:
    from dsv_plugins.run.run import Run
    from dsv_plugins.study.study import Study

__all__ = ["add_arguments", "conduct", "run", "show"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("folder", nargs="?", type=str, help="a task in MVTec layout: train/good, and test/* unlabelled")
    parser.add_argument(
        "--train", type=str, help="good images, in place of FOLDER: a folder, a pattern, or a txt or csv file of paths"
    )
    parser.add_argument(
        "--test",
        type=str,
        help="unlabelled images, likewise; without them nothing is chosen, and one candidate or the ensemble is kept",
    )
    add_study_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and an estimate of the time, and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: Namespace) -> int:
    """Run the study, or show its plan."""
    from dsv_plugins.study.study import Study

    train, test = _folders(arguments)
    study = Study(train, test, **study_settings(arguments))
    if arguments.dry_run:
        from dsv_plugins.cli.plan import show_plan

        show_plan(study, as_json=arguments.json)
    else:
        found = conduct(study, as_json=arguments.json, command=arguments.command_line)
        show(found, as_json=arguments.json, report=write_report(found))
    return 0


def conduct(study: Study, *, as_json: bool, command: str) -> Run:
    """Run a study with a display on the terminal; if it is interrupted, say how to resume."""
    from dsv_plugins.study.display import Display

    console = progress_console(as_json=as_json)
    try:
        with Display(console) as display:
            return study.run(display, command=command)
    except KeyboardInterrupt:
        if study.folder().exists():
            console.print(
                f"what is finished is kept in {escape(str(study.folder()))}",
                soft_wrap=True,
                highlight=False,
            )
        raise


def show(found: Run, *, as_json: bool, report: Path | None) -> None:
    """Print what a study found."""
    from dsv_plugins.report.summary import model_in_words, parts_in_words
    from dsv_plugins.report.terminal import candidates_table, concentration_legend, hidden_losses

    terminal = Terminal()
    if as_json:
        terminal.print_json_object({**found.as_json(), "report": str(report) if report else None})
        return
    terminal.print(candidates_table(found, width=terminal.width))
    for remark in (concentration_legend(found), hidden_losses(found, width=terminal.width)):
        if remark:
            terminal.print(literal(remark), soft_wrap=True)
    several = len(found.kept) > 1
    if several or len(found.candidates) == 1:
        advice = "; --keep choice keeps one" if several else ""
        terminal.print(literal(f"{model_in_words(found)}{advice}"), soft_wrap=True)
    if parts := parts_in_words(found):
        terminal.print(literal(parts), soft_wrap=True)
    verb = "ranks first" if several else "chooses"
    for name, choice in found.selected.items() if len(found.candidates) > 1 else ():
        terminal.print(literal(f"{name} {verb} {choice.candidate}, loss {choice.loss:.4g}"), soft_wrap=True)
    if found.findings is not None:
        terminal.print(literal(str(found.findings)), soft_wrap=True)
    terminal.print(literal(f"run folder: {found.path}"), soft_wrap=True)
    if report is not None:
        terminal.print(literal(f"report: {report}"), soft_wrap=True)
    command = f"dsv score {quoted(found.path)} FOLDER_OR_FILES"
    terminal.print(literal(f"judge new images with: {command}"), soft_wrap=True)


def _folders(arguments: Namespace) -> tuple[Path | str, Path | str | None]:
    from dsv_plugins.data.images import split_folder

    if arguments.folder and (arguments.train or arguments.test):
        raise InputError("give either FOLDER or --train and --test, not both")
    if arguments.folder:
        return split_folder(Path(arguments.folder))
    if not arguments.train:
        raise InputError("give the FOLDER of a task, or --train with good images and --test with unlabelled ones")
    return arguments.train, arguments.test
