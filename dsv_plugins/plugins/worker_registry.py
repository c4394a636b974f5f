"""The registry of a worker process, whose jobs come one after the other with the same plugins."""

from __future__ import annotations

import functools
import os
import sys

from dsv_plugins.plugins.registry import DISABLE_VARIABLE, Registry, build_registry
from dsv_plugins.plugins.unpackaged import PluginFile, plugins_of_environment

__all__ = ["registry_of_process"]


def registry_of_process(plugins: tuple[object, ...]) -> Registry:
    """The plugins, as `build_registry` finds them; not built anew for each job of a worker.

    Only files and modules are known to be the same by their names; with others it is built anew.
    """
    named = all(isinstance(plugin, (str, PluginFile)) for plugin in plugins)
    surroundings = (plugins_of_environment(), os.environ.get(DISABLE_VARIABLE), tuple(map(_changed, sys.path)))
    return _registry_of_names(plugins, surroundings) if named else build_registry(plugins)


def _changed(folder: str) -> tuple[str, int]:
    """A folder and when something was last installed into it or removed."""
    try:
        return folder, os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return folder, 0


@functools.lru_cache(maxsize=1)
def _registry_of_names(plugins: tuple[object, ...], surroundings: object) -> Registry:
    return build_registry(plugins)
