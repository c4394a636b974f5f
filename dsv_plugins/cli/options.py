"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli.config import WrongValueError
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.records import RECORDS

__all__ = ["add_false_alarms", "add_plugins", "check_rates", "check_target", "kind_of"]


def add_false_alarms(parser: ArgumentParser) -> None:
    """Declare `--false-alarms`."""
    parser.add_argument(
        "--false-alarms",
        type=float,
        help="the share of good images that may be called anomalous "
        "(default: 0.05, or the lowest rate that the held-out images can promise)",
    )


def add_plugins(parser: ArgumentParser) -> None:
    """Declare `--plugins`."""
    parser.add_argument("--plugins", type=str, default="", help="files or modules with plugins, as fog.py,my.module")


def kind_of(value: str) -> str:
    """Return the kind of a plugin: the name of its hook, with hyphens as well, and "detector" for short."""
    given = value.replace("-", "_")
    kind = "detector_encoder" if given == "detector" else given
    if kind not in RECORDS:
        raise WrongValueError(f"{value!r} is no kind of plugin; give one of {', '.join(RECORDS)}")
    return kind


def check_rates(arguments: Namespace, *names: str) -> None:
    """Refuse rates that are not between 0 and 1; those that were not given are fine."""
    from dsv_plugins.calibration import check_rate

    for name in names:
        if arguments[name] is not None:
            check_rate(f"--{name.replace('_', '-')}", arguments[name])


def check_target(out: str | None) -> None:
    """Refuse what cannot be a file, before anything is computed for it.

    A file is written aside and renamed, which would replace a device: for root, even `/dev/null`.
    """
    if out is None:
        return
    target = Path(out).absolute()
    if not target.parent.is_dir():
        raise InputError(f"{out} cannot be written, since its folder is not there; make it first")
    if (target.exists() and not target.is_file()) or target.parent == Path("/dev"):
        raise InputError(f"{out or 'an empty name'} cannot be written, since it is no file; give the name of one")
