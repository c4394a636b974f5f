"""The registry: looks plugins up by name, and makes them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from dsv_plugins.errors import (
    PluginConflictError,
    PluginError,
    PluginSettingsError,
    UnknownPluginError,
    describe_error,
    did_you_mean,
    one_line,
    shown,
)
from dsv_plugins.plugins.checking import REGISTRY_ARGUMENT, factory_problems, product_problem
from dsv_plugins.plugins.discovery import DISABLE_VARIABLE, Failure, Provider, find_plugins, unknown_disabled
from dsv_plugins.plugins.fingerprint import fingerprint
from dsv_plugins.plugins.interfaces import Selector
from dsv_plugins.plugins.manager import Manager
from dsv_plugins.plugins.plugin_errors import prefix_errors, wrap_errors
from dsv_plugins.plugins.plugin_files import PLUGINS_VARIABLE, as_plugins, plugins_of_environment
from dsv_plugins.plugins.records import Plugin, SelectorPlugin
from dsv_plugins.types import Evaluation

__all__ = ["Registered", "Registry", "build_registry", "with_registry"]

HEAVY = ("torch", "torchvision", "lightning", "anomalib", "timm", "ray", "tensorflow")
"""Libraries that take seconds to import."""

Product = TypeVar("Product")
Record = TypeVar("Record", bound=Plugin[object])


@dataclass(frozen=True, slots=True)
class Registered:
    """A record and its provider."""

    record: Plugin[object]
    provider: Provider

    @property
    def qualified_name(self) -> str:
        """The name that tells it from the plugins of other providers."""
        return f"{self.provider.name}:{self.record.name}"


class Registry:
    """The plugins that were found, and those that failed; made by `build_registry`.

    If several providers use a name, `provider:name` says which is meant. A built-in keeps its name: a package's plugin
    of the same name is reached by its qualified name only.

    Attributes:
        plugins: Every sound plugin with its provider.
        failures: What could not be loaded, and names that two providers claim, each with the provider and the reason.
        advice: What works and should be changed: hooks that import slow libraries although nobody uses their plugins
            yet, deprecated hooks, names of built-ins that packages claim, and names that disable nothing.
        manager: The manager of pluggy that holds the plugins.
    """

    def __init__(
        self,
        plugins: Iterable[Registered],
        failures: Iterable[Failure] = (),
        advice: Iterable[Failure] = (),
        manager: Manager | None = None,
    ) -> None:
        for_factories = _RegistryForFactories(self)
        self.plugins = tuple(Registered(with_registry(each.record, for_factories), each.provider) for each in plugins)
        self.manager = manager or Manager()
        self._not_loaded = tuple(failures)
        self._fingerprints: dict[tuple[str, str], str] = {}
        conflicts: list[Failure] = []
        shadowed: list[Failure] = []
        for each in self.plugins:
            kind, name = each.record.kind, each.record.name
            found = self.named(name, kind)
            if each not in found:
                reason = f"the {kind} {name!r} is built in, and keeps its name; this one is {each.qualified_name}"
                shadowed.append(Failure(each.provider, reason))
            elif len(found) > 1 and each is found[-1]:
                conflicts.append(Failure(each.provider, _conflict(kind, name, found)))
        self.failures = (*self._not_loaded, *conflicts)
        self.advice = (*advice, *shadowed)

    def of_kind(self, kind: type[Record]) -> list[Record]:
        """Return all records of one class that need no qualified name, built-ins first."""
        found = [each for each in self.plugins if isinstance(each.record, kind)]
        return [cast(Record, each.record) for each in found if each in self.named(each.record.name, kind.kind)]

    def named(self, name: str, kind: str | None = None) -> list[Registered]:
        """Return the plugins that a user may mean by a name: several if it is taken twice, or by two kinds."""
        provider, _, bare = str(name).rpartition(":")
        found = [each for each in self.plugins if each.record.name == bare and kind in (None, each.record.kind)]
        if provider:
            return [each for each in found if each.provider.is_called(provider)]
        own = {each.record.kind for each in found if each.provider.is_ours}
        return [each for each in found if not each.provider.entry_point or each.record.kind not in own]

    def get(self, kind: type[Record], name: str) -> Record:
        """Return the record of that class and name.

        Raises:
            UnknownPluginError: Nothing of that kind has that name.
            PluginConflictError: Two providers claim it.
        """
        record = self._find(kind.kind, name).record
        assert isinstance(record, kind)
        return record

    def provider(self, kind: type[Plugin[object]], name: str) -> Provider:
        """Return the provider of the plugin of that class and name; raises as `get` does."""
        return self._find(kind.kind, name).provider

    def identity(self, kind: type[Plugin[object]], name: str) -> str:
        """Return what tells a plugin from an earlier one of the same name: its provider, and a hash of its code."""
        found, key = self._find(kind.kind, name), (kind.kind, name)
        if key not in self._fingerprints:
            self._fingerprints[key] = fingerprint(found.record.factory)
        return f"{found.provider} [{self._fingerprints[key]}]"

    def label(self, kind: type[Plugin[object]], name: str) -> str:
        """Return what names a plugin in an error: its kind, its name and its provider; raises as `get` does."""
        return f"{kind.kind} {name!r} ({self.provider(kind, name)})"

    def create(self, kind: type[Plugin[Product]], name: str, params: Mapping[str, object] | None = None) -> Product:
        """Make the named plugin's object with these hyperparameters.

        Raises:
            PluginSettingsError: The factory does not take them; the message says what it takes.
            PluginError: The factory failed otherwise.
        """
        params, record, label = dict(params or {}), self.get(kind, name), self.label(kind, name)
        for problem in factory_problems(record.factory, params):
            raise PluginSettingsError(f"{label}: {problem}")
        # A factory may make other plugins, whose errors name themselves.
        with prefix_errors(label, PluginError), wrap_errors(label, "could not be made"):
            try:
                made = record.factory(**params)
            except (TypeError, ValueError) as error:
                # A ValueError is the word of the plugin's author; another error is told with its type.
                reason = one_line(str(error)) if isinstance(error, ValueError) and str(error) else describe_error(error)
                raise PluginSettingsError(f"{label} refused {shown(params, 200)}: {reason}") from error
        if problem := product_problem(made, kind):
            raise PluginError(f"{label} made an object of class {type(made).__name__}, which {problem}")
        return made

    def _find(self, kind: str, name: str) -> Registered:
        found = self.named(name, kind)
        if not found:
            raise self.unknown(name, kind)
        if len(found) > 1:
            raise PluginConflictError(_conflict(kind, name, found))
        return found[0]

    def unknown(self, name: str, kind: str | None = None) -> UnknownPluginError:
        """Return the error that says which names there are, of one kind or of all, and which plugins did not load."""
        given = [failure for failure in self._not_loaded if not failure.provider.entry_point]
        if given:  # nobody who gave a file that failed wants to read what else there is
            reasons = " | ".join(map(str, given))
            return UnknownPluginError(f"no {kind or 'plugin'} is named {name!r}, since one failed to load: {reasons}")
        known = sorted({plugin.record.name for plugin in self.plugins if kind in (None, plugin.record.kind)})
        elsewhere = sorted({plugin.record.kind for plugin in self.named(name)})
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


class _RegistryForFactories(Registry):
    """The registry as factories see it: a selector that is made with it is named by its errors."""

    def __init__(self, registry: Registry) -> None:
        self.__dict__ = registry.__dict__  # the same plugins, also those that are registered after this

    def create(self, kind: type[Plugin[Product]], name: str, params: Mapping[str, object] | None = None) -> Product:
        """Make the named plugin's object, as `Registry.create` does."""
        made = super().create(kind, name, params)
        is_selector = kind.kind == SelectorPlugin.kind
        return cast(Product, _InnerSelector(cast(Selector, made), self.label(kind, name))) if is_selector else made


@dataclass(frozen=True)
class _InnerSelector:
    """A selector that another one made."""

    selector: Selector
    label: str

    def losses(self, evaluations: Sequence[Evaluation]) -> Sequence[float]:
        with prefix_errors(self.label), wrap_errors(self.label):
            return self.selector.losses(evaluations)


def with_registry(record: Record, registry: Registry | None = None) -> Record:
    """Return a record whose factory, if it asks for a registry, has this one; by default that of what is installed."""
    try:
        asked = inspect.signature(record.factory).parameters.get(REGISTRY_ARGUMENT)
    except (TypeError, ValueError):
        return record
    if asked is None or asked.default is not asked.empty:
        return record
    return replace(record, factory=functools.partial(record.factory, registry=registry or build_registry()))


def build_registry(plugins: object = ()) -> Registry:
    """Collect the built-ins, the installed plugin packages, those of the variable `DSV_PLUGINS` and the given plugins.

    Args:
        plugins: What is in no package, one thing or several: files, names of modules, records, or modules and objects
            with hook implementations.

    Raises:
        InputError: A file cannot be read.
    """
    manager = Manager()
    found: list[Registered] = []
    failures: list[Failure] = []
    advice = unknown_disabled()
    imported = _heavy_imports()
    for provider, plugin in find_plugins((*plugins_of_environment(), *as_plugins(plugins))):
        for outcome in [plugin] if isinstance(plugin, Failure) else manager.take(plugin, provider):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            elif isinstance(outcome, str):
                failures.append(Failure(provider, outcome))
            elif isinstance(outcome, Warning):
                advice.append(Failure(provider, str(outcome)))
            else:
                found.append(Registered(outcome, provider))
        if new := _heavy_imports() - imported:
            imported |= new
            reason = f"imports {', '.join(sorted(new))} with its hooks; import it in the factory instead"
            advice.append(Failure(provider, reason))
    return Registry(found, failures, advice, manager)


def _heavy_imports() -> set[str]:
    return {name for name in HEAVY if name in sys.modules}


def _conflict(kind: str, name: str, found: Sequence[Registered]) -> str:
    claimants = list(dict.fromkeys(str(each.provider) for each in found))
    if len(claimants) == 1:
        return f"the {kind} {name!r} is provided {len(found)} times by {claimants[0]}; each needs a name of its own"
    return f"the {kind} {name!r} is provided by {' and '.join(claimants)}; say which, as {found[-1].qualified_name}"
