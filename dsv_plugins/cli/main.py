"""The `dsv` command: its exit codes, its signals, and errors in one line."""

from __future__ import annotations

import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from dsv_plugins.cli.signals import end_at_once, interruptible, leave, received
from dsv_plugins.errors import DSVError, describe_error, one_line, shown

if TYPE_CHECKING:
    from jsonargparse import Namespace

__all__ = ["command", "main"]

EXIT_FAILED, EXIT_WRONG_CALL = 1, 2


def command() -> NoReturn:
    """The program `dsv`: a process that ends with the command."""
    try:
        with interruptible():
            code = main()
            end_at_once(code)
            leave(code)
    except (
        KeyboardInterrupt
    ):  # it came between the two: after the handlers were set, before `main` could catch anything
        leave(_interrupted("dsv"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 the work failed, 2 the call was wrong."""
    program = "dsv"
    with interruptible():
        try:
            # Imported here, so that an interrupt while they are imported is one line too.
            from dsv_plugins.cli.parser import build_parser
            from dsv_plugins.cli.terminal import Terminal, any_name_printable

            with any_name_printable():
                try:
                    given = list(sys.argv[1:] if argv is None else argv)
                    parser, runs = build_parser()
                    arguments = parser.parse_args(given)
                    program = f"dsv {arguments.command}"
                    own = arguments[arguments.command]
                    own.command_line = shlex.join(["dsv", *given])
                    return _run(program, runs[arguments.command], own)
                finally:
                    Terminal().flush()
        except (KeyboardInterrupt, Exception) as error:
            # A library may turn the interrupt that ends it into an error of its own.
            if isinstance(error, KeyboardInterrupt) or received() is not None:
                return _interrupted(program)
            if isinstance(error, DSVError):
                print(f"{program}: {one_line(str(error))}", file=sys.stderr)
                return error.exit_code
            # What a command raises is told by `_run`, so this is of the parser, which does not catch all it should.
            print(f"{program}: the call cannot be read ({describe_error(error)}); see 'dsv --help'", file=sys.stderr)
            return EXIT_WRONG_CALL


def _interrupted(program: str) -> int:
    print(f"{program}: interrupted; run the same command again", file=sys.stderr)
    return 128 + (received() or signal.SIGINT)


def _run(program: str, run: Callable[[Namespace], int], arguments: Namespace) -> int:
    from dsv_plugins.cli.output import own_output

    try:
        with own_output():
            return run(arguments)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if received() is not None:
            raise KeyboardInterrupt from error
        if arguments.debug:
            traceback.print_exc()
        if isinstance(error, DSVError):
            raise
        if isinstance(error, SystemExit):
            told = f"a plugin called sys.exit({shown(error.code)})"
        elif isinstance(error, KeyboardInterrupt):  # of nobody who pressed Ctrl-C
            told = "a plugin raised KeyboardInterrupt"
        else:
            told = f"unexpected {describe_error(error)}"
        print(f"{program}: {told}; add --debug to see where", file=sys.stderr)
        return EXIT_FAILED
