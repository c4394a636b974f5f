"""The parser of the `dsv` command: one subcommand for each module."""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from dsv_plugins.cli import (
    audit,
    bench,
    check,
    demo,
    export,
    new,
    plugins,
    report,
    score,
    select,
    serve,
    update,
    watch,
)
from dsv_plugins.cli.output import tell
from dsv_plugins.errors import one_line

__all__ = ["build_parser"]

COMMANDS: tuple[ModuleType, ...] = (
    *(audit, select, score, update, export, serve, watch, report),
    *(demo, bench, plugins, check, new),
)
"""Each module has `add_arguments(parser)` and `run(arguments)`, and its docstring is the help text."""

EXIT_WRONG_CALL = 2


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
        # It shows the types of Python.
        reason = re.sub(
            r'Parser key "(\w+)": Expected a typing\.Literal\[(.*?)\]\. Got value: (.*)',
            r"--\1 is \3; give one of \2",
            reason,
        )
        # jsonargparse tells of a command's missing argument as "check.name", and from the parser above the command's.
        missing = re.search(r"required: (\w+)\.", reason)
        if missing:
            program, reason = f"{program} {missing[1]}", reason.replace(f"{missing[1]}.", "")
        tell(f"{program}: {reason}; see '{program} --help'")
        raise SystemExit(EXIT_WRONG_CALL)


def build_parser() -> tuple[ArgumentParser, dict[str, Callable[[Namespace], int]]]:
    """Return the parser, and what runs each command."""
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
