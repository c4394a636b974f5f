"""Errors that plugins raise, in lines that name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dsv_plugins.errors import DSVError, PluginError, describe_error, shown

__all__ = ["prefix_errors", "wrap_errors", "wrap_exits"]


@contextlib.contextmanager
def wrap_errors(label: str, doing: str = "failed") -> Iterator[None]:
    """Turn whatever a plugin raises in the block into a `PluginError` that names it, even a `sys.exit()`.

    Errors of ours pass, since they say already what is wrong, and so does a Ctrl-C.

    Args:
        label: What names the plugin: kind, name and provider.
        doing: What it did not do.
    """
    try:
        with wrap_exits(label):
            yield
    except (DSVError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise PluginError(f"{label} {doing}: {describe_error(error)}") from error


@contextlib.contextmanager
def wrap_exits(label: str) -> Iterator[None]:
    """Turn a `sys.exit()` of a plugin into a `PluginError`; for blocks in which errors need not be the plugin's."""
    try:
        yield
    except SystemExit as error:
        raise PluginError(f"{label} called sys.exit({'' if error.code is None else shown(error.code)})") from error


@contextlib.contextmanager
def prefix_errors(label: str, kind: type[DSVError] = DSVError) -> Iterator[None]:
    """Put the name of a plugin before the message of an error of ours, unless the message has it already."""
    try:
        yield
    except kind as error:
        if label in str(error):
            raise
        raise type(error)(f"{label}: {error}") from error
