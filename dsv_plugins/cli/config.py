"""`--config`: a YAML file with options, read with care, since it may come from others."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ActionConfigFile

from dsv_plugins.errors import describe_error

__all__ = ["ConfigFile", "WrongValueError"]

DEEPEST = 20
"""No option needs a list in a list in a list."""


class WrongValueError(ArgumentTypeError, ValueError):
    """A value that an option does not take: the first class is what a command line expects, the other a file."""


class ConfigFile(ActionConfigFile):
    """The action of `--config`."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Check the file, and take the options that are in it."""
        _check(values)
        try:
            super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call, unused-ignore]
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:  # of which a parser makes no line
            raise TypeError(f"--config {values} cannot be read as options ({describe_error(error)})") from error


def _check(value: str) -> None:
    """Refuse YAML that could take all memory: aliases of aliases, and lists nested without end.

    Raises:
        TypeError: It is such YAML. That is what a parser makes one line of.
    """
    try:
        if Path(value).is_char_device():
            raise TypeError(f"--config {value} is a device; give a file")
        text = Path(value).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TypeError(f"--config {value} is not text in UTF-8 ({error.reason})") from error
    except (OSError, ValueError):
        text = value  # options in place of a file; the parser tells if it is none
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise TypeError(f"--config {value} has the alias *{event.anchor}; write the value out")
            if depth > DEEPEST:
                raise TypeError(f"--config {value} has values nested more than {DEEPEST} deep; no option takes such")
    except yaml.YAMLError:
        return  # the parser tells where
