"""The `dsv` command: its exit codes, its signals, and errors in one line."""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from dsv_plugins.cli.output import own_output, steady_streams, tell
from dsv_plugins.cli.signals import end_at_once, interruptible, leave, received
from dsv_plugins.errors import DSVError, InputError, describe_error, quoted, shown

if TYPE_CHECKING:
    from jsonargparse import Namespace

__all__ = ["command", "main"]

EXIT_FAILED, EXIT_WRONG_CALL = 1, 2
ADDRESSES = 5_000_000_000
"""Bytes of addresses with which a study on two workers is known to end well; with 4 GB it does not."""


def command() -> NoReturn:
    """The program `dsv`: a process that ends with the command."""
    try:
        with interruptible():
            steady_streams()
            code = main()
            end_at_once(code)
            leave(code)
    except KeyboardInterrupt:  # it came after the handlers were set, and before `main` could catch anything
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
                    own.command_line = " ".join(map(quoted, ["dsv", *given]))
                    return _run(program, runs[arguments.command], own)
                finally:
                    Terminal().flush()
        except (KeyboardInterrupt, Exception) as error:
            # A library may turn the interrupt that ends it into an error of its own.
            if isinstance(error, KeyboardInterrupt) or received() is not None:
                return _interrupted(program)
            if isinstance(error, DSVError):
                tell(f"{program}: {error}")
                return error.exit_code
            # What a command raises is told by `_run`, so this is of the parser, which does not catch all it should.
            tell(f"{program}: the call cannot be read ({describe_error(error)}); see 'dsv --help'")
            return EXIT_WRONG_CALL


def _interrupted(program: str) -> int:
    tell(f"{program}: interrupted; run the same command again")
    return 128 + (received() or signal.SIGINT)


def _note_limit_of_memory() -> None:
    """Say what may end the command: with so little memory, a library in C may do it without a word of ours."""
    if sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY and limit < ADDRESSES:
            tell(
                f"note: memory is limited to {limit / 1e9:.1f} GB (ulimit -v), and PyTorch reserves about "
                f"{ADDRESSES / 1e9:.0f}; raise the limit if this command ends early"
            )


def _run(program: str, run: Callable[[Namespace], int], arguments: Namespace) -> int:
    _note_limit_of_memory()
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
        elif isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{shown(str(error.filename))} is too long for a path; give a shorter one") from error
        else:
            told = f"unexpected {describe_error(error)}"
        tell(f"{program}: {told}; add --debug to see where")
        return EXIT_FAILED
