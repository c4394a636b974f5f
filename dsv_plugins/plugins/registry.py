"""Finds plugins, records failures with their provider, and creates plugins by name."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import TypeVar

import pluggy

from dsv_plugins.errors import (
    PluginConflictError,
    PluginError,
    PluginSettingsError,
    UnknownPluginError,
    describe_error,
    did_you_mean,
    shown,
)
from dsv_plugins.plugins import specs
from dsv_plugins.plugins.failures import blamed
from dsv_plugins.plugins.fingerprint import fingerprint
from dsv_plugins.plugins.records import (
    RECORDS,
    Plugin,
    factory_problems,
    product_problem,
    record_problems,
    required_arguments,
)
from dsv_plugins.plugins.unpackaged import PLUGINS_VARIABLE, PluginFile, as_plugins, loaded, plugins_of_environment
from dsv_plugins.plugins.versions import api_problem

__all__ = ["DISABLE_VARIABLE", "ENTRY_POINT_GROUP", "Failure", "Provider", "Registered", "Registry", "build_registry"]

ENTRY_POINT_GROUP = "dsv_plugins"
DISABLE_VARIABLE = "DSV_DISABLE_PLUGINS"
TRACE_VARIABLE = "DSV_TRACE_PLUGINS"
"""If it is set, every call of a hook is printed to the standard error, with its provider and its time."""
DISTRIBUTION = "dsv-plugins"
HEAVY = ("torch", "torchvision", "lightning", "anomalib", "timm", "ray", "tensorflow")
"""Libraries that take seconds to import."""

BUILTIN_MODULES: tuple[str, ...] = (
    "dsv_plugins.builtin.augmentations.hook",
    "dsv_plugins.builtin.detectors.hook",
    "dsv_plugins.builtin.selectors.hook",
    "dsv_plugins.builtin.searches",
    "dsv_plugins.builtin.executors.hook",
)

Product = TypeVar("Product")
Value = TypeVar("Value")
Record = TypeVar("Record", bound=Plugin[object])


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider of a plugin: a distribution with its version, or a module given to `build_registry`."""

    name: str
    version: str = ""
    entry_point: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()

    def links(self) -> dict[str, str]:
        """The addresses that the distribution gives, such as its home page, by their labels."""
        try:
            given = metadata.metadata(self.name)
        except metadata.PackageNotFoundError:
            return {}
        pairs = [address.partition(",") for address in given.get_all("Project-URL", [])]
        return {label.strip(): address.strip() for label, _, address in pairs}


@dataclass(frozen=True, slots=True)
class Registered:
    """A record and its provider."""

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
    """The plugins that were found, and those that failed; made by `build_registry`.

    Attributes:
        plugins: Every sound plugin with its provider.
        failures: What could not be loaded, and names that two providers claim, each with the provider and the reason.
        advice: What works and should be changed: hooks that import slow libraries although nobody uses their plugins
            yet, and hooks that are deprecated.
    """

    def __init__(
        self, plugins: Iterable[Registered], failures: Iterable[Failure] = (), advice: Iterable[Failure] = ()
    ) -> None:
        self.plugins = tuple(plugins)
        self.advice = tuple(advice)
        self._not_loaded = tuple(failures)
        self.failures = self._not_loaded + tuple(_conflicts(self.plugins))
        self._fingerprints: dict[tuple[str, str], str] = {}

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
        """The provider of the plugin of that class and name; raises as `get` does."""
        return self._find(kind.kind, name).provider

    def identity(self, kind: type[Plugin[object]], name: str) -> str:
        """What tells a plugin from an earlier one of the same name: its provider and a fingerprint of its code."""
        found, key = self._find(kind.kind, name), (kind.kind, name)
        if key not in self._fingerprints:
            self._fingerprints[key] = fingerprint(found.record.factory)
        code = self._fingerprints[key]
        return f"{found.provider} [{code}]" if code else str(found.provider)

    def label(self, kind: type[Plugin[object]], name: str) -> str:
        """What names a plugin in an error: its kind, its name and its provider; raises as `get` does."""
        return f"{kind.kind} {name!r} ({self.provider(kind, name)})"

    def create(self, kind: type[Plugin[Product]], name: str, params: Mapping[str, object] | None = None) -> Product:
        """Make the named plugin's object with these hyperparameters.

        Raises:
            PluginSettingsError: The factory does not take them; the message says what it takes.
            PluginError: The factory failed otherwise.
        """
        params = dict(params or {})
        record = self._find(kind.kind, name).record
        assert isinstance(record, kind)
        label = self.label(kind, name)
        for problem in factory_problems(record.factory, params):
            raise PluginSettingsError(f"{label}: {problem}")
        with blamed(label, "could not be made"):
            try:
                made = record.factory(**params)
            except (TypeError, ValueError) as error:
                raise PluginSettingsError(f"{label} refused {shown(params, 200)}: {describe_error(error)}") from error
        if problem := product_problem(made, kind):
            raise PluginError(f"{label} made an object of class {type(made).__name__}, which {problem}")
        return made

    def _find(self, kind: str, name: str) -> Registered:
        found = [plugin for plugin in self.plugins if plugin.record.kind == kind and plugin.record.name == name]
        if not found:
            raise self.unknown(name, kind)
        if len(found) > 1:
            raise PluginConflictError(_conflict(kind, name, [plugin.provider for plugin in found]))
        return found[0]

    def unknown(self, name: str, kind: str | None = None) -> UnknownPluginError:
        """The error that says which names there are, of one kind or of all, and which plugins failed to load."""
        given = [failure for failure in self._not_loaded if not failure.provider.entry_point]
        if given:  # nobody who gave a file that failed wants to read what else there is
            reasons = " | ".join(map(str, given))
            return UnknownPluginError(f"no {kind or 'plugin'} is named {name!r}, since one failed to load: {reasons}")
        known = sorted({plugin.record.name for plugin in self.plugins if kind in (None, plugin.record.kind)})
        elsewhere = sorted({plugin.record.kind for plugin in self.plugins if plugin.record.name == name})
        meant = did_you_mean(name, known)
        parts = [f"no {kind or 'plugin'} is named {name!r}"]
        if elsewhere:
            parts.append(f"that is the name of a plugin of kind {' and '.join(elsewhere)}")
        elif meant:
            parts[0] += f" ({meant})"
        parts.append(f"known: {', '.join(known) or 'none'}")
        if not elsewhere and not meant:
            parts.append(f"for another, install its package, or give its file with --plugins or {PLUGINS_VARIABLE}")
        if self._not_loaded:
            parts.append("failed to load: " + " | ".join(str(failure) for failure in self._not_loaded))
        if os.environ.get(DISABLE_VARIABLE):
            parts.append(f"left out by {DISABLE_VARIABLE}: {os.environ[DISABLE_VARIABLE]}")
        return UnknownPluginError("; ".join(parts))


def build_registry(plugins: object = ()) -> Registry:
    """Collect the built-ins, the installed plugin packages, those of the variable `DSV_PLUGINS` and the given plugins.

    Args:
        plugins: What is in no package, one thing or several: files, names of modules, records, or modules and objects
            with hook implementations.

    Raises:
        InputError: A file cannot be read.
    """
    found: list[Registered] = []
    failures: list[Failure] = []
    advice: list[Failure] = []
    imported = _heavy_imports()
    for provider, plugin in _load_all((*plugins_of_environment(), *as_plugins(plugins)), failures):
        for outcome in _outcomes(plugin, str(provider)):
            if isinstance(outcome, str):
                failures.append(Failure(provider, outcome))
            elif isinstance(outcome, Warning):
                advice.append(Failure(provider, str(outcome)))
            else:
                found.append(Registered(outcome, provider))
        if new := _heavy_imports() - imported:
            imported |= new
            advice.append(
                Failure(provider, f"imports {', '.join(sorted(new))} with its hooks; import it in the factory instead")
            )
    return Registry(found, failures, advice)


def _heavy_imports() -> set[str]:
    return {name for name in HEAVY if name in sys.modules}


def _load_all(plugins: Sequence[object], failures: list[Failure]) -> Iterator[tuple[Provider, object]]:
    builtin = Provider(DISTRIBUTION, metadata.version(DISTRIBUTION))
    for name in BUILTIN_MODULES:
        yield builtin, importlib.import_module(name)
    installed: list[object] = []
    for provider, entry_point in _entry_points():
        try:
            plugin = _attempt(_traced(entry_point.load, f"{provider}: import"))
        except PluginError as error:
            failures.append(Failure(provider, f"{entry_point.value!r} cannot be loaded: {error}"))
        else:
            installed.append(plugin)
            yield provider, plugin
    for given in plugins:
        provider = Provider(_name_of(given))
        try:
            plugin = _attempt(_traced(loaded, f"{provider}: import"), given)
        except PluginError as error:
            failures.append(Failure(provider, f"it cannot be loaded: {error}"))
            continue
        # What is given and also installed, or given twice, is one plugin, not two in conflict.
        if not any(plugin is other for other in installed):
            installed.append(plugin)
            yield provider, plugin


def _name_of(plugin: object) -> str:
    if isinstance(plugin, PluginFile):
        return plugin.name
    if isinstance(plugin, str):
        return plugin
    if isinstance(plugin, Plugin):
        return str(getattr(plugin.factory, "__module__", type(plugin.factory).__module__))
    return plugin.__name__ if isinstance(plugin, (ModuleType, type)) else type(plugin).__qualname__


def _entry_points() -> list[tuple[Provider, metadata.EntryPoint]]:
    """The entry points that are not disabled, in an order that does not depend on where they are installed."""
    disabled = {_normalized(name) for name in os.environ.get(DISABLE_VARIABLE, "").split(",")}
    found = []
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        # A package that was only partly removed may have no name and version.
        name = (entry_point.dist and entry_point.dist.name) or entry_point.value
        version = (entry_point.dist and entry_point.dist.version) or ""
        if not disabled & {"*", _normalized(name), _normalized(entry_point.name)}:
            found.append((Provider(name, version, entry_point.name), entry_point))
    return sorted(found, key=lambda pair: (_normalized(pair[0].name), pair[0].entry_point))


def _normalized(name: str) -> str:
    """A distribution's name as package indexes compare it: `Dsv_Example` and `dsv-example` are one."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _outcomes(plugin: object, provider: str) -> Iterator[Plugin[object] | Warning | str]:
    """The sound records of a plugin's hooks, the warnings of deprecated hooks, and a line for everything else.

    No hook can spoil another's records.

    Pluggy knows the specs and reads the marks. Its own `register` and `check_pending` stop at a plugin's first fault,
    so they would lose its other hooks.
    """
    manager = pluggy.PluginManager(specs.PROJECT)
    manager.add_hookspecs(specs)
    try:
        instance = _attempt(plugin) if isinstance(plugin, type) else plugin
        hooks = _attempt(_marked, manager, instance)
    except PluginError as error:
        yield f"its hooks cannot be reached: {error}"
        return
    if problem := api_problem(instance):
        yield problem
        return
    if not hooks:
        *others, last = RECORDS
        classes = {name: each for name, each in getattr(instance, "__dict__", {}).items() if isinstance(each, type)}
        inside = [name for name, each in classes.items() if _marked(manager, each)]
        moved = f" (those of the class {inside[0]} are not reached: move them out of it)" if inside else ""
        yield f"implements no hook; mark a function with @hookimpl, named {', '.join(others)} or {last}{moved}"
    for attribute, options in hooks.items():
        name = options["specname"] or attribute
        if not hasattr(manager.hook, name):
            if not options["optionalhook"]:  # an optional one may belong to another version of ours
                yield _misspelled(name)
        elif options["wrapper"] or options["hookwrapper"]:
            yield f"the hook {name!r} is a wrapper; return records instead"
        else:
            spec = getattr(manager.hook, name).spec
            if spec.warn_on_impl:
                warnings.warn(f"{provider}: {spec.warn_on_impl}", type(spec.warn_on_impl), stacklevel=2)
                yield spec.warn_on_impl
            yield from _records(name, _traced(getattr(instance, attribute), f"{provider}: {attribute}"))


def _traced(hook: Callable[..., Value], label: str) -> Callable[..., Value]:
    """The hook, which says how long it takes if the user asks for that."""
    if not os.environ.get(TRACE_VARIABLE):
        return hook

    @functools.wraps(hook)
    def traced(*arguments: object) -> Value:
        started = time.perf_counter()
        try:
            return hook(*arguments)
        finally:
            print(f"{label} {1000 * (time.perf_counter() - started):.1f} ms", file=sys.stderr)

    return traced


def _marked(manager: pluggy.PluginManager, plugin: object) -> dict[str, pluggy.HookimplOpts]:
    """The plugin's attributes that are marked with @hookimpl, with the options of the mark."""
    return {name: options for name in dir(plugin) if (options := manager.parse_hookimpl_opts(plugin, name))}


def _records(kind: str, function: Callable[..., object]) -> Iterator[Plugin[object] | str]:
    expected = RECORDS[kind]
    arguments = required_arguments(function)
    if arguments:
        yield f"the hook {kind!r} asks for {', '.join(map(repr, arguments))}, but hooks are called without arguments"
        return
    try:
        records = _attempt(lambda: _listed(function()))
    except PluginError as error:
        yield f"the hook {kind!r} raised {error}"
        return
    for record in records:
        if not isinstance(record, expected):
            yield f"the hook {kind!r} returned {shown(record, 80)}; return {expected.__name__} records"
            continue
        try:
            problems = _attempt(record_problems, record)
        except PluginError as error:
            problems = [f"cannot be inspected: {error}"]
        yield from (f"{kind} {shown(record.name)}: {problem}" for problem in problems)
        if not problems:
            yield record


def _listed(returned: object) -> list[object]:
    if isinstance(returned, Iterable) and not isinstance(returned, (str, bytes, Mapping)):
        return list(returned)
    return [returned]


def _attempt(foreign: Callable[..., Value], *arguments: object) -> Value:
    """Call what is not ours. Whatever goes wrong, even an exit or a panic in Rust, becomes a `PluginError`."""
    try:
        return foreign(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(describe_error(error)) from error


def _misspelled(name: str) -> str:
    hint = did_you_mean(name, RECORDS) or f"the hooks are {', '.join(RECORDS)}"
    return f"there is no hook named {name!r}; {hint}"


def _conflicts(plugins: Sequence[Registered]) -> Iterator[Failure]:
    claims: dict[tuple[str, str], list[Provider]] = {}
    for plugin in plugins:
        claims.setdefault((plugin.record.kind, plugin.record.name), []).append(plugin.provider)
    for (kind, name), providers in claims.items():
        if len(providers) > 1:
            yield Failure(providers[-1], _conflict(kind, name, providers))


def _conflict(kind: str, name: str, providers: Sequence[Provider]) -> str:
    claimants = list(dict.fromkeys(str(provider) for provider in providers))
    if len(claimants) == 1:
        return f"the {kind} {name!r} is provided {len(providers)} times by {claimants[0]}; each needs a name of its own"
    installed = [provider.name for provider in providers if provider.entry_point]
    # Built-ins and plugins given by a script cannot be left out; only installed ones can.
    advice = f"leave one out with {DISABLE_VARIABLE}={installed[-1]}, or uninstall it" if installed else "rename one"
    return f"the {kind} {name!r} is provided by {' and '.join(claimants)}; {advice}"
