"""The `dsv` command: its parser, its exit codes, and errors in one line."""

from __future__ import annotations

import re
import shlex
import sys
import traceback
from argparse import SUPPRESS, Action
from collections.abc import Callable, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from dsv_plugins.cli import bench, check, demo, export, plugins, report, score, select
from dsv_plugins.cli.terminal import Terminal, any_name_printable
from dsv_plugins.errors import DSVError, describe_error, one_line

__all__ = ["main"]

COMMANDS: tuple[ModuleType, ...] = (select, score, export, report, demo, bench, plugins, check)
"""Each module has `add_arguments(parser)` and `run(arguments)`, and its docstring is the help text."""

EXIT_FAILED, EXIT_WRONG_CALL, EXIT_INTERRUPTED = 1, 2, 130


class _HelpFormatter(DefaultHelpFormatter):
    """Shows a default if it says something, and no Python types."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        is_telling = action.default not in (None, SUPPRESS, False, "", {}, [])
        return f"{text} (default: {action.default})" if is_telling else text


class _Parser(ArgumentParser):
    """Says in one line what is wrong with a call; argparse would print the usage first."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_HelpFormatter, **settings)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        program, reason = self.prog.replace(" [options]", ""), one_line(message).rstrip(".")
        # jsonargparse names five commands and elides the others, which are what a user looks for here.
        names = ",".join(_name(module) for module in COMMANDS)
        reason = re.sub(r"\{[\w,]+, \.\.\.\}", f"{{{names}}}", reason)
        # Older versions, such as those that anomalib takes, word a missing argument in another way.
        reason = re.sub(r"Option '([\w.]+)' is required but not provided.*", r"arguments are required: \1", reason)
        # jsonargparse tells of a command's missing argument as "check.name", and from the parser above the command's.
        missing = re.search(r"required: (\w+)\.", reason)
        if missing:
            program, reason = f"{program} {missing[1]}", reason.replace(f"{missing[1]}.", "")
        print(f"{program}: {reason}; see '{program} --help'", file=sys.stderr)
        raise SystemExit(EXIT_WRONG_CALL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 the work failed, 2 the call was wrong."""
    with any_name_printable():
        try:
            given = list(sys.argv[1:] if argv is None else argv)
            parser, runs = _build_parser()
            arguments = parser.parse_args(given)
            own = arguments[arguments.command]
            own.command_line = shlex.join(["dsv", *given])
            return _run(arguments.command, runs[arguments.command], own)
        finally:
            Terminal().flush()


def _run(command: str, run: Callable[[Namespace], int], arguments: Namespace) -> int:
    try:
        return run(arguments)
    except KeyboardInterrupt:
        print(f"dsv {command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        if isinstance(error, DSVError):
            print(f"dsv {command}: {one_line(str(error))}", file=sys.stderr)
            return error.exit_code
        print(f"dsv {command}: unexpected {describe_error(error)}; add --debug to see where", file=sys.stderr)
        return EXIT_FAILED


def _build_parser() -> tuple[ArgumentParser, dict[str, Callable[[Namespace], int]]]:
    parser = _Parser(
        prog="dsv",
        description="Selects augmentation hyperparameters for self-supervised anomaly detectors, without labels.",
    )
    parser.add_argument("--version", action="version", version=f"dsv-plugins {metadata.version('dsv-plugins')}")
    commands = parser.add_subcommands(dest="command", required=True)
    runs: dict[str, Callable[[Namespace], int]] = {}
    for module in COMMANDS:
        name = _name(module)
        description = " ".join((module.__doc__ or "").split())
        subparser = _Parser(description=description)
        module.add_arguments(subparser)
        subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        # Untyped in the versions of jsonargparse that anomalib takes.
        commands.add_subcommand(name, subparser, help=description)  # type: ignore[no-untyped-call, unused-ignore]
        runs[name] = module.run
    return parser, runs


def _name(command: ModuleType) -> str:
    return command.__name__.rpartition(".")[2]
