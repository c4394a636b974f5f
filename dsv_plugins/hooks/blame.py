"""Errors that plugins raise, in lines that name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dsv_plugins.errors import DSVError, PluginError, describe_error

__all__ = ["blamed"]


@contextlib.contextmanager
def blamed(label: str, doing: str = "failed") -> Iterator[None]:
    """Turn whatever a plugin raises in the block into a `PluginError` that names it, even a `sys.exit()`.

    Errors of ours pass, since they say already what is wrong, and so does a Ctrl-C.

    Args:
        label: What names the plugin: kind, name and provider.
        doing: What it did not do.
    """
    try:
        yield
    except (DSVError, KeyboardInterrupt, GeneratorExit):
        raise
    except SystemExit as error:
        raise PluginError(f"{label} called sys.exit({error.code if error.code is not None else ''})") from error
    except BaseException as error:
        raise PluginError(f"{label} {doing}: {describe_error(error)}") from error
