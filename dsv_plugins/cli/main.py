"""The `dsv` command: its parser, its exit codes, and errors in one line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from types import ModuleType
from typing import NoReturn

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli import check, plugins
from dsv_plugins.errors import DSVError

__all__ = ["main"]

COMMANDS: tuple[ModuleType, ...] = (plugins, check)
"""Each module has `add_arguments(parser)` and `run(arguments)`, and its docstring is the help text."""

EXIT_DONE, EXIT_FAILED, EXIT_WRONG_CALL, EXIT_INTERRUPTED = 0, 1, 2, 130


class _Parser(ArgumentParser):
    """Says in one line what is wrong with a call, where argparse prints the usage first."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        reason = " ".join(message.split())
        print(f"{self.prog.replace(' [options]', '')}: {reason}; see '{self._help_call()}'", file=sys.stderr)
        raise SystemExit(EXIT_WRONG_CALL)

    def _help_call(self) -> str:
        return self.prog.replace(" [options]", "") + " --help"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 the work failed, 2 the call was wrong."""
    parser, runs = _build_parser()
    arguments = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    command = arguments.command
    try:
        return runs[command](arguments[command])
    except DSVError as error:
        if arguments[command].debug:
            traceback.print_exc()
        print(f"dsv {command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"dsv {command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        return EXIT_DONE
    except Exception as error:
        if arguments[command].debug:
            traceback.print_exc()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"dsv {command}: unexpected {reason}; run again with --debug to see where", file=sys.stderr)
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
        name = module.__name__.rpartition(".")[2]
        description = " ".join((module.__doc__ or "").split())
        subparser = _Parser(description=description)
        module.add_arguments(subparser)
        subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        commands.add_subcommand(name, subparser, help=description)
        runs[name] = module.run
    return parser, runs
