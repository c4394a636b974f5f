"""pluggy's manager, which holds all plugins of a registry, and calls their hooks so that no fault spoils another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pluggy

from dsv_plugins.errors import PluginError, did_you_mean, shown
from dsv_plugins.plugins import specs
from dsv_plugins.plugins.checking import record_problems, required_arguments
from dsv_plugins.plugins.discovery import Provider, traced
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.plugins.records import RECORDS, Plugin
from dsv_plugins.plugins.versions import api_problem

__all__ = ["Manager", "Outcome"]

Outcome = Plugin[object] | Warning | str
"""What comes of a hook: a sound record, the warning that the hook is deprecated, or what is wrong."""


class Manager(pluggy.PluginManager):
    """A pluggy manager that leaves out implementations that cannot be called, and says why.

    pluggy itself refuses a plugin at its first fault, and would so lose its other hooks.
    """

    def __init__(self) -> None:
        super().__init__(specs.PROJECT)
        self.add_hookspecs(specs)
        self._faults: list[str] = []

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Return the options of a mark; none if there is no mark, or if the implementation cannot be called."""
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None:
            return None
        hook = options.get("specname") or name
        if hook not in RECORDS:
            if options.get("optionalhook"):  # it may belong to another version of ours
                return options
            fault = f"there is no hook named {hook!r}; {did_you_mean(hook, RECORDS) or f'the hooks are {_HOOKS}'}"
        elif options.get("wrapper") or options.get("hookwrapper"):
            fault = f"the hook {hook!r} is a wrapper; return records instead"
        elif arguments := required_arguments(getattr(plugin, name)):
            asked = ", ".join(map(repr, arguments))
            fault = f"the hook {hook!r} asks for {asked}, but hooks are called without arguments"
        else:
            return options
        self._faults.append(fault)
        return None

    def take(self, plugin: object, provider: Provider) -> Iterator[Outcome]:
        """Register a plugin, unless it is registered already, and call each of its hooks on its own."""
        self._faults = []
        try:
            with wrap_errors("its hooks", "cannot be reached"):
                instance = plugin() if isinstance(plugin, type) else plugin
                if self.is_registered(instance):
                    return
                if problem := api_problem(instance):
                    raise PluginError(problem)
                self.register(instance, self._free_name(provider))
        except PluginError as error:
            yield str(error)
            return
        yield from self._faults
        hooks = self.get_hookcallers(instance) or []
        if not hooks and not self._faults:
            yield f"implements no hook; mark a function with @hookimpl, named {_HOOKS_OR}{self._inside(instance)}"
        for hook in hooks:
            for implementation in hook.get_hookimpls():
                if implementation.plugin is instance and hook.spec is not None:
                    if hook.spec.warn_on_impl:
                        yield hook.spec.warn_on_impl
                    yield from _records(hook.name, implementation.function, f"{provider}: {hook.name}")

    def _free_name(self, provider: Provider) -> str:
        """Return what pluggy calls the plugin: the package with its entry point, or the file or module; numbered."""
        name = f"{provider.name}:{provider.entry_point}" if provider.entry_point else provider.name
        taken = sum(each.partition(" #")[0] == name for each, _ in self.list_name_plugin())
        return f"{name} #{taken + 1}" if taken else name

    def _inside(self, plugin: object) -> str:
        """Return a remark on a class that has the hooks, if there is one."""
        classes = [each for each in getattr(plugin, "__dict__", {}).values() if isinstance(each, type)]
        parse = super().parse_hookimpl_opts
        inside = [each.__name__ for each in classes if any(parse(each, name) for name in dir(each))]
        return f" (those of the class {inside[0]} are not reached: move them out of it)" if inside else ""


_HOOKS = ", ".join(RECORDS)
_HOOKS_OR = " or ".join(_HOOKS.rsplit(", ", 1))


def _records(kind: str, function: Callable[[], object], label: str) -> Iterator[Outcome]:
    try:
        with wrap_errors(f"the hook {kind!r}"), traced(label):
            returned = function()
            several = isinstance(returned, Iterable) and not isinstance(returned, (str, bytes, Mapping))
            records = list(returned) if several else [returned]  # type: ignore[call-overload]
    except PluginError as error:
        yield str(error)
        return
    for record in records:
        if not isinstance(record, RECORDS[kind]):
            yield f"the hook {kind!r} returned {shown(record, 80)}; return {RECORDS[kind].__name__} records"
            continue
        name = f"{kind} {shown(record.name)}"
        try:
            with wrap_errors(name, "cannot be inspected"):
                problems = [f"{name}: {problem}" for problem in record_problems(record)]
        except PluginError as error:
            problems = [str(error)]
        yield from problems
        if not problems:
            yield record
