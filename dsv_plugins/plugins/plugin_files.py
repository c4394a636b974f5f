"""Plugins without a package: a file, the name of a module, a record, or any object with hooks."""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

from dsv_plugins.errors import InputError, shortened
from dsv_plugins.plugins.fingerprint import CONTENT
from dsv_plugins.plugins.records import Plugin
from dsv_plugins.plugins.specs import hookimpl

__all__ = ["PLUGINS_VARIABLE", "PluginFile", "as_plugins", "loaded", "names_of", "plugins_of_environment"]

PLUGINS_VARIABLE = "DSV_PLUGINS"
"""Files and modules to load beside the installed packages, as a,b,c."""


@dataclass(frozen=True, slots=True)
class PluginFile:
    """A file with hooks. It carries its content, so that workers on other machines need not have the file.

    Attributes:
        path: Where it was read.
        content: What it said then.
    """

    path: str
    content: bytes

    @property
    def name(self) -> str:
        """What the table of plugins calls it."""
        return Path(self.path).name

    def load(self) -> ModuleType:
        """Return the module; the same one for the same content."""
        name = f"dsv_plugin_file_{hashlib.sha256(os.fsencode(self.path) + self.content).hexdigest()[:16]}"
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # it may import files beside it, now or when it is used, as a script may
        if name not in sys.modules:
            module = ModuleType(name)
            module.__file__ = self.path
            setattr(module, CONTENT, self.content)
            sys.modules[name] = module  # dataclasses look for the module of their class there
            try:
                exec(compile(self.content, self.path, "exec"), module.__dict__)  # noqa: S102 — that is its purpose
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def as_plugins(given: object) -> tuple[object, ...]:
    """Return what a user gave as plugins, one thing or several, or several of these, in one row with files read.

    Raises:
        InputError: A file cannot be read.
    """
    if isinstance(given, str):
        return tuple(_read(part.strip()) for part in given.split(",") if part.strip())
    if isinstance(given, (list, tuple)):
        return tuple(plugin for each in given for plugin in as_plugins(each))
    return (_read(given),)


def plugins_of_environment() -> tuple[object, ...]:
    """Return the plugins that `DSV_PLUGINS` names."""
    return as_plugins(os.environ.get(PLUGINS_VARIABLE, ""))


def names_of(plugins: Iterable[object]) -> list[str]:
    """Return the files and modules among plugins, by which a user can give them again."""
    named = [each.path if isinstance(each, PluginFile) else each for each in plugins]
    return [each for each in named if isinstance(each, str)]


def loaded(plugin: object) -> object:
    """Return the module or object whose hooks are called; a file is run, and a module is imported."""
    if isinstance(plugin, PluginFile):
        return plugin.load()
    if isinstance(plugin, str):
        return importlib.import_module(plugin)
    if isinstance(plugin, Plugin):
        return SimpleNamespace(**{plugin.kind: hookimpl(lambda: plugin)})
    return plugin


def _read(plugin: object) -> object:
    """Return a file with its content, and everything else as it is."""
    is_file = isinstance(plugin, Path) or (isinstance(plugin, str) and (plugin.endswith(".py") or os.sep in plugin))
    if not is_file:
        return plugin
    path = Path(str(plugin)).absolute()
    try:
        if path.is_char_device():  # `/dev/zero` would fill the memory
            raise OSError(errno.EINVAL, "it is a device")
        return PluginFile(str(path), path.read_bytes())
    except (OSError, ValueError) as error:  # the second of a name that no file can have
        reason = getattr(error, "strerror", error)
        raise InputError(f"the plugin file {shortened(str(path))} cannot be read ({reason}); check its name") from error
