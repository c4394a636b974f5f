"""Judge the images that arrive in a folder, and append score, p-value and verdict of each to a CSV file."""

from __future__ import annotations

import time
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveFloat

from dsv_plugins.cli.options import add_false_alarms, add_plugins, check_rates, check_target
from dsv_plugins.cli.output import note, tell

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run", type=str, help="the run folder of `dsv select`")
    parser.add_argument("folder", type=str, help="the folder in which images arrive")
    parser.add_argument("--out", type=str, required=True, help="the CSV file; rows are appended, and never twice")
    parser.add_argument(
        "--every",
        type=PositiveFloat,
        default=1.0,
        help="seconds between two looks; an image is judged if it is the same",
    )
    add_false_alarms(parser)
    add_plugins(parser)


def run(arguments: Namespace) -> int:
    """Judge what arrives, until Ctrl-C or SIGTERM."""
    check_rates(arguments, "false_alarms")
    check_target(arguments.out)

    from dsv_plugins.run.model import NO_CALIBRATION, load
    from dsv_plugins.serving.watch import Watch

    model = load(arguments.run, false_alarms=arguments.false_alarms, plugins=arguments.plugins)
    watch = Watch(model, Path(arguments.folder), Path(arguments.out), note)
    if model.calibration is None:
        note(f"no p-values and no verdicts: {NO_CALIBRATION}")
    tell(f"dsv watch: waits for images in {arguments.folder}; Ctrl-C ends it")
    while True:
        watch.judge_new()
        time.sleep(arguments.every)
