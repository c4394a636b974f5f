"""Finds plugins, keeps what failed with the provider to blame, and hands plugins out by name."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import TypeVar

import pluggy

from dsv_plugins import hookspecs
from dsv_plugins.errors import PluginConflictError, PluginError, PluginSettingsError, UnknownPluginError
from dsv_plugins.records import RECORDS, Plugin, factory_problems, record_problems

__all__ = ["DISABLE_VARIABLE", "ENTRY_POINT_GROUP", "Failure", "Provider", "Registered", "Registry", "build_registry"]

ENTRY_POINT_GROUP = "dsv_plugins"
DISABLE_VARIABLE = "DSV_DISABLE_PLUGINS"
DISTRIBUTION = "dsv-plugins"

BUILTIN_MODULES: tuple[str, ...] = (
    "dsv_plugins.builtin.augmentations",
    "dsv_plugins.builtin.detectors",
    "dsv_plugins.builtin.selectors",
)

Product = TypeVar("Product")
Record = TypeVar("Record", bound=Plugin[object])


@dataclass(frozen=True, slots=True)
class Provider:
    """Who brings a plugin: a distribution with its version, or a module handed to `build_registry`."""

    name: str
    version: str = ""
    entry_point: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class Registered:
    """A record and who brought it."""

    record: Plugin[object]
    provider: Provider


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that a provider got wrong. Its other plugins, and everyone else's, still work."""

    provider: Provider
    reason: str

    def __str__(self) -> str:
        where = f" (entry point {self.provider.entry_point!r})" if self.provider.entry_point else ""
        return f"{self.provider}{where}: {self.reason}"


class Registry:
    """The plugins that were found, and the failures on the way; made by `build_registry`."""

    def __init__(self, plugins: Iterable[Registered], failures: Iterable[Failure] = ()) -> None:
        self.plugins = tuple(plugins)
        self.failures = tuple(failures) + tuple(_conflicts(self.plugins))

    def of_kind(self, kind: type[Record]) -> list[Record]:
        """All records of one class, built-ins first."""
        return [plugin.record for plugin in self.plugins if isinstance(plugin.record, kind)]

    def get(self, kind: type[Record], name: str) -> Record:
        """The record of that class and name.

        Raises:
            UnknownPluginError: Nothing of that kind has that name.
            PluginConflictError: Two providers claim it.
        """
        record = self._find(kind.kind, name).record
        assert isinstance(record, kind)
        return record

    def provider(self, kind: type[Plugin[object]], name: str) -> Provider:
        """Who brings the plugin of that class and name; raises as `get` does."""
        return self._find(kind.kind, name).provider

    def create(self, kind: type[Plugin[Product]], name: str, params: Mapping[str, object] | None = None) -> Product:
        """Make the named plugin's object with these hyperparameters.

        Raises:
            PluginSettingsError: The factory does not take them; the message says what it takes.
            PluginError: The factory failed otherwise.
        """
        params = dict(params or {})
        found = self._find(kind.kind, name)
        record = found.record
        assert isinstance(record, kind)
        label = f"{kind.kind} {name!r} ({found.provider})"
        for problem in factory_problems(record.factory, params):
            raise PluginSettingsError(f"{label}: {problem}")
        try:
            return record.factory(**params)
        except (TypeError, ValueError) as error:
            raise PluginSettingsError(f"{label} refused {params}: {error}") from error
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(f"{label} could not be made: {_described(error)}") from error

    def _find(self, kind: str, name: str) -> Registered:
        found = [plugin for plugin in self.plugins if plugin.record.kind == kind and plugin.record.name == name]
        if not found:
            raise self.unknown(name, kind)
        if len(found) > 1:
            raise PluginConflictError(_conflict(kind, name, [plugin.provider for plugin in found]))
        return found[0]

    def unknown(self, name: str, kind: str | None = None) -> UnknownPluginError:
        """The error that says which names there are, of one kind or of all, and which plugins failed to load."""
        known = sorted({plugin.record.name for plugin in self.plugins if kind in (None, plugin.record.kind)})
        nearest = difflib.get_close_matches(name, known, n=1)
        parts = [f"no {kind or 'plugin'} is named {name!r}"]
        if nearest:
            parts.append(f"did you mean {nearest[0]!r}?")
        parts.append(f"known: {', '.join(known) or 'none'}")
        if self.failures:
            parts.append("failed to load: " + " | ".join(str(failure) for failure in self.failures))
        if os.environ.get(DISABLE_VARIABLE):
            parts.append(f"left out by {DISABLE_VARIABLE}: {os.environ[DISABLE_VARIABLE]}")
        return UnknownPluginError("; ".join(parts))


def build_registry(plugins: Sequence[object] = ()) -> Registry:
    """Collect the built-ins, the installed plugin packages and the given plugins.

    Args:
        plugins: Modules or objects with hook implementations, for use in a script without packaging.
    """
    found: list[Registered] = []
    failures: list[Failure] = []
    for provider, plugin in _load_all(plugins, failures):
        registered, failed = _collect(provider, plugin)
        found += registered
        failures += failed
    return Registry(found, failures)


def _load_all(plugins: Sequence[object], failures: list[Failure]) -> Iterator[tuple[Provider, object]]:
    builtin = Provider(DISTRIBUTION, metadata.version(DISTRIBUTION))
    for name in BUILTIN_MODULES:
        yield builtin, importlib.import_module(name)
    for provider, entry_point in _entry_points():
        try:
            yield provider, entry_point.load()
        except (Exception, SystemExit) as error:  # whatever a foreign module does on import, the rest must go on
            failures.append(Failure(provider, f"cannot be loaded: {_described(error)}"))
    for plugin in plugins:
        name = plugin.__name__ if isinstance(plugin, (ModuleType, type)) else type(plugin).__qualname__
        yield Provider(name), plugin


def _entry_points() -> Iterator[tuple[Provider, metadata.EntryPoint]]:
    disabled = {name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",")}
    seen: set[tuple[str, str, str]] = set()
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        distribution = entry_point.dist
        name = distribution.name if distribution else entry_point.value
        version = distribution.version if distribution else ""
        # The same distribution can stand on the path twice, as a checkout and as an installed copy.
        key = (name, entry_point.name, entry_point.value)
        if key not in seen and not disabled & {"*", name, entry_point.name}:
            seen.add(key)
            yield Provider(name, version, entry_point.name), entry_point


def _collect(provider: Provider, plugin: object) -> tuple[list[Registered], list[Failure]]:
    """One plugin's records and failures. A manager of its own for each plugin, so that none can spoil another's."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, name=str(provider))
    except pluggy.PluginValidationError as error:
        return [], [Failure(provider, " ".join(str(error).split()))]

    found: list[Registered] = []
    failures: list[Failure] = []
    hooks = manager.get_hookcallers(plugin) or []
    if not hooks:
        known = ", ".join(RECORDS)
        failures.append(Failure(provider, f"implements no hook; mark a function named {known} with @hookimpl"))
    for hook in hooks:
        if not hook.has_spec():
            failures.append(Failure(provider, _misspelled(hook.name)))
            continue
        for implementation in hook.get_hookimpls():
            if implementation.wrapper or implementation.hookwrapper:
                failures.append(Failure(provider, f"the hook {hook.name!r} is a wrapper; return records instead"))
                continue
            for outcome in _records(hook.name, implementation):
                if isinstance(outcome, str):
                    failures.append(Failure(provider, outcome))
                else:
                    found.append(Registered(outcome, provider))
    return found, failures


def _records(kind: str, implementation: pluggy.HookImpl) -> Iterator[Plugin[object] | str]:
    """The sound records that an implementation returns, and a line for everything else."""
    expected = RECORDS[kind]
    try:
        returned = implementation.function()
        records = [returned] if isinstance(returned, Plugin) or not isinstance(returned, Iterable) else list(returned)
    except (Exception, SystemExit) as error:
        yield f"the hook {kind!r} raised {_described(error)}"
        return
    for record in records:
        if not isinstance(record, expected):
            yield f"the hook {kind!r} returned {record!r:.80}; return {expected.__name__} records"
            continue
        problems = record_problems(record)
        yield from (f"{kind} {record.name!r}: {problem}" for problem in problems)
        if not problems:
            yield record


def _misspelled(name: str) -> str:
    nearest = difflib.get_close_matches(name, RECORDS, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the hooks are {', '.join(RECORDS)}"
    return f"there is no hook named {name!r}; {hint}"


def _conflicts(plugins: Sequence[Registered]) -> Iterator[Failure]:
    claims: dict[tuple[str, str], list[Provider]] = {}
    for plugin in plugins:
        claims.setdefault((plugin.record.kind, plugin.record.name), []).append(plugin.provider)
    for (kind, name), providers in claims.items():
        if len(providers) > 1:
            yield Failure(providers[-1], _conflict(kind, name, providers))


def _conflict(kind: str, name: str, providers: Sequence[Provider]) -> str:
    claimants = " and ".join(str(provider) for provider in providers)
    return (
        f"the {kind} {name!r} is provided by {claimants}; "
        f"uninstall one of them, or leave one out with {DISABLE_VARIABLE}={providers[-1].entry_point or providers[-1].name}"
    )


def _described(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
