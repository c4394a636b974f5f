"""Where plugins are found: built in, in installed packages, in `DSV_PLUGINS`, and given by the caller."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

from dsv_plugins.errors import PluginError, did_you_mean
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.plugins.plugin_files import PluginFile, loaded
from dsv_plugins.plugins.records import Plugin

__all__ = [
    "DISABLE_VARIABLE",
    "DISTRIBUTION",
    "ENTRY_POINT_GROUP",
    "Failure",
    "Provider",
    "find_plugins",
    "traced",
    "unknown_disabled",
]

ENTRY_POINT_GROUP = "dsv_plugins"
DISABLE_VARIABLE = "DSV_DISABLE_PLUGINS"
TRACE_VARIABLE = "DSV_TRACE_PLUGINS"
"""If it is set, every import and every call of a hook is printed to the standard error, with provider and time."""
DISTRIBUTION = "dsv-plugins"

BUILTIN_MODULES: tuple[str, ...] = (
    "dsv_plugins.builtin.augmentations.cut",
    "dsv_plugins.builtin.detectors.patch_memory.patch_settings",
    "dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet18_settings",
    "dsv_plugins.builtin.selectors.selector_records",
    "dsv_plugins.builtin.searches",
    "dsv_plugins.builtin.executors.local",
)


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider of a plugin: a distribution with its version, or a module given to `build_registry`."""

    name: str
    version: str = ""
    entry_point: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()

    @property
    def is_ours(self) -> bool:
        """Whether its plugins are built in."""
        return self.name == DISTRIBUTION and not self.entry_point

    def is_called(self, name: str) -> bool:
        """Return whether a user may mean it by a name."""
        return normalized(self.name) == normalized(name)

    def links(self) -> dict[str, str]:
        """Return the addresses that the distribution gives, such as its home page, by their labels."""
        try:
            given = metadata.metadata(self.name)
        except metadata.PackageNotFoundError:
            return {}
        pairs = [address.partition(",") for address in given.get_all("Project-URL", [])]
        return {label.strip(): address.strip() for label, _, address in pairs}


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that a provider got wrong. Its other plugins, and everyone else's, still work."""

    provider: Provider
    reason: str

    def __str__(self) -> str:
        where = f" (entry point {self.provider.entry_point!r})" if self.provider.entry_point else ""
        return f"{self.provider}{where}: {self.reason}"


def find_plugins(given: Sequence[object]) -> Iterator[tuple[Provider, object]]:
    """Yield every module or object with hooks, and a `Failure` in place of one that cannot be loaded.

    Args:
        given: Plugins that are in no package.
    """
    builtin = Provider(DISTRIBUTION, metadata.version(DISTRIBUTION))
    for name in BUILTIN_MODULES:
        yield builtin, importlib.import_module(name)
    disabled = _disabled()
    for provider, entry_point in _entry_points():
        if not disabled & {"*", *_names(provider)}:
            yield provider, _loaded(provider, repr(entry_point.value), entry_point.load)
    for each in given:
        provider = Provider(_name_of(each))
        yield provider, _loaded(provider, "it", functools.partial(loaded, each))


def unknown_disabled() -> list[Failure]:
    """Return a line for each name in `DSV_DISABLE_PLUGINS` that disables nothing."""
    known = {name for provider, _ in _entry_points() for name in _names(provider)}
    lines = []
    for name in sorted(_disabled() - known - {"*", ""}):
        meant = did_you_mean(name, known) or f"installed are {', '.join(sorted(known)) or 'none'}"
        lines.append(Failure(Provider(DISABLE_VARIABLE), f"no package with plugins is named {name!r}; {meant}"))
    return lines


@contextlib.contextmanager
def traced(label: str) -> Iterator[None]:
    """Print how long the block takes, if the user asks for that."""
    started = time.perf_counter()
    try:
        yield
    finally:
        if os.environ.get(TRACE_VARIABLE):
            print(f"{label} {1000 * (time.perf_counter() - started):.1f} ms", file=sys.stderr)


def normalized(name: str) -> str:
    """Return a distribution's name as package indexes compare it: `Dsv_Example` and `dsv-example` are one."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _loaded(provider: Provider, what: str, load: Callable[[], object]) -> object:
    try:
        with wrap_errors(what, "cannot be loaded"), traced(f"{provider}: import"):
            return load()
    except PluginError as error:
        return Failure(provider, str(error))


def _entry_points() -> list[tuple[Provider, metadata.EntryPoint]]:
    """Return all entry points, in an order that does not depend on where they are installed."""
    found = []
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        # A package that was only partly removed may have no name and version.
        name = (entry_point.dist and entry_point.dist.name) or entry_point.value
        version = (entry_point.dist and entry_point.dist.version) or ""
        found.append((Provider(name, version, entry_point.name), entry_point))
    return sorted(found, key=lambda pair: (normalized(pair[0].name), pair[0].entry_point))


def _disabled() -> set[str]:
    return {normalized(name) for name in os.environ.get(DISABLE_VARIABLE, "").split(",")}


def _names(provider: Provider) -> set[str]:
    """Return the names by which a package's plugins can be disabled."""
    return {normalized(provider.name), normalized(provider.entry_point)}


def _name_of(plugin: object) -> str:
    if isinstance(plugin, PluginFile):
        return plugin.name
    if isinstance(plugin, str):
        return plugin
    if isinstance(plugin, Plugin):
        return str(getattr(plugin.factory, "__module__", type(plugin.factory).__module__))
    return plugin.__name__ if isinstance(plugin, (ModuleType, type)) else type(plugin).__qualname__
