"""List every plugin that is installed, who provides it and what can be set; failures stand below."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Group
from rich.table import Table

from dsv_plugins.cli.options import add_plugins
from dsv_plugins.cli.output import tell
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.plugins.records import RECORDS
from dsv_plugins.plugins.registry import Registered, Registry, build_registry
from dsv_plugins.plugins.settings import Setting, settings_of
from dsv_plugins.plugins.spaces import Range, Space, Values, When, space_to_json

__all__ = ["add_arguments", "describe_space", "run"]

EXIT_FAILURES = 1


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", nargs="?", help="show everything about the plugin of this name")
    add_plugins(parser)
    parser.add_argument("--strict", action="store_true", help="end with 1 if a plugin failed to load")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: Namespace) -> int:
    """List the plugins."""
    registry = build_registry(arguments.plugins)
    shown = list(registry.plugins) if arguments.name is None else registry.named(arguments.name)
    if not shown:
        raise registry.unknown(arguments.name)
    terminal = Terminal()
    if arguments.json:
        terminal.print_json_object(_as_json(registry, shown))
    elif arguments.name is not None:
        for plugin in shown:
            _print_page(plugin, terminal)
    else:
        _print_table(registry, terminal)
    if arguments.strict and registry.failures:
        tell(f"dsv plugins: {len(registry.failures)} failed to load, as said above")
        return EXIT_FAILURES
    return 0


def _as_json(registry: Registry, shown: list[Registered]) -> dict[str, object]:
    return {
        "plugins": [
            {
                "kind": plugin.record.kind,
                "name": plugin.record.name,
                "provider": plugin.provider.name,
                "version": plugin.provider.version,
                "summary": plugin.record.summary,
                "space": space_to_json(plugin.record.space),
                "settings": [_setting_as_json(each) for each in settings_of(plugin.record)],
            }
            for plugin in shown
        ],
        "failures": [
            {
                "provider": str(failure.provider),
                "entry_point": failure.provider.entry_point,
                "reason": failure.reason,
            }
            for failure in registry.failures
        ],
        "advice": [{"provider": str(advice.provider), "reason": advice.reason} for advice in registry.advice],
    }


def _setting_as_json(setting: Setting) -> dict[str, Any]:
    return {"name": setting.name, "type": setting.kind, "default": setting.default, "meaning": setting.meaning}


def _print_table(registry: Registry, terminal: Terminal) -> None:
    # One table for all kinds, so that its columns stand in line; hyperparameters below the summary, to fit 80 columns.
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(max_width=20, overflow="fold")
    table.add_column(overflow="fold")
    for kind in RECORDS:
        plugins = [plugin for plugin in registry.plugins if plugin.record.kind == kind]
        if plugins:
            table.add_row(literal(kind, "bold"))
        for plugin in plugins:
            lines = [literal(plugin.record.summary), literal(describe_space(plugin.record.space), "cyan")]
            is_shadowed = plugin not in registry.named(plugin.record.name)
            name = literal(plugin.qualified_name if is_shadowed else plugin.record.name)
            name.pad_left(2)
            table.add_row(name, literal(str(plugin.provider), "dim"), Group(*filter(None, lines)))
    terminal.print(table)
    for failure in registry.failures:
        terminal.print(literal("failed", "red"), literal(str(failure)), soft_wrap=True)
    for note in registry.advice:
        terminal.print(literal("advice", "yellow"), literal(str(note)), soft_wrap=True)


def _print_page(plugin: Registered, terminal: Terminal) -> None:
    """Everything about one plugin."""
    record = plugin.record
    terminal.print(literal(f"{record.kind} {record.name}", "bold"))
    facts = {"": record.summary, "provider": str(plugin.provider), **plugin.provider.links(), "file": record.file()}
    for label, fact in facts.items():
        if fact:
            terminal.print(literal(f"{label}: {fact}" if label else fact), soft_wrap=True)
    settings = settings_of(record)
    if settings:
        table = Table(box=None, pad_edge=False)
        for heading in ("setting", "type", "default", "meaning"):
            table.add_column(heading, overflow="fold")
        for each in settings:
            searched = f"searched: {describe_values(record.space[each.name])}" if each.name in record.space else ""
            meaning = Group(*filter(None, (literal(each.meaning), literal(searched, "cyan"))))
            table.add_row(literal(each.name), literal(each.kind), literal(each.default), meaning)
        terminal.print(table)
    terminal.print()


def describe_space(space: Space) -> str:
    """A search space in one line."""
    return "; ".join(f"{name}: {describe_values(values)}" for name, values in space.items())


def describe_values(values: Values) -> str:
    """The values of one hyperparameter, in a few words."""
    if isinstance(values, When):
        return f"{describe_values(values.values)} when {values.name} is {' or '.join(map(str, values.accepted))}"
    if isinstance(values, Range):
        kind = ", whole" if values.integer else ""
        return f"{values.low:g} … {values.high:g}{kind}{', logarithmic' if values.log else ''}"
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(shown) if len(shown) <= 4 else f"{shown[0]} … {shown[-1]}, {len(shown)} values"
