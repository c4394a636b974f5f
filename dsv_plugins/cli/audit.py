"""Look for what is wrong with images before anything is trained: copies, sizes, light, and good images with defects."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli.output import tell
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.errors import InputError, one_line

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "folder", nargs="?", type=str, help="a task in MVTec layout: train/good, and test/* unlabelled; or good images"
    )
    parser.add_argument("--train", type=str, help="good images, in place of FOLDER, as for dsv select")
    parser.add_argument("--test", type=str, help="unlabelled images, likewise, to compare with the good ones")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: Namespace) -> int:
    """Print what was found. Nothing is changed, and no image is removed."""
    from dsv_plugins.data.images import split_folder
    from dsv_plugins.plugins.registry import build_registry
    from dsv_plugins.study.audit import audit

    if bool(arguments.folder) == bool(arguments.train):
        raise InputError("give either a FOLDER or --train, with good images")
    train, test = arguments.train, arguments.test
    if arguments.folder:
        folder = Path(arguments.folder)
        is_task = (folder / "train").is_dir() and (folder / "test").is_dir()
        train, test = split_folder(folder) if is_task and not test else (folder, test)
    notes: list[str] = []
    found = audit(train, test, build_registry(), notes.append)
    for note in notes:
        tell(f"note: {one_line(note)}")
    terminal = Terminal()
    if arguments.json:
        terminal.print_json_object(asdict(found))
    for line in [] if arguments.json else found.lines():
        terminal.print(literal(line), soft_wrap=True)
    return 0
