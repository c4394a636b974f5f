"""List every plugin that is installed, who provides it and what can be set; failures stand below."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace
from rich.console import Group
from rich.table import Table

from dsv_plugins.cli.options import add_plugins
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.hooks.records import RECORDS
from dsv_plugins.hooks.registry import Registry, build_registry
from dsv_plugins.hooks.spaces import Range, Space, Values, space_to_json

__all__ = ["add_arguments", "describe_space", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    add_plugins(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: Namespace) -> int:
    """List the plugins."""
    registry = build_registry(arguments.plugins)
    if arguments.json:
        Terminal().print_json_object(_as_json(registry))
    else:
        _print_table(registry, Terminal())
    return 0


def _as_json(registry: Registry) -> dict[str, object]:
    return {
        "plugins": [
            {
                "kind": plugin.record.kind,
                "name": plugin.record.name,
                "provider": plugin.provider.name,
                "version": plugin.provider.version,
                "summary": plugin.record.summary,
                "space": space_to_json(plugin.record.space),
            }
            for plugin in registry.plugins
        ],
        "failures": [
            {
                "provider": str(failure.provider),
                "entry_point": failure.provider.entry_point,
                "reason": failure.reason,
            }
            for failure in registry.failures
        ],
    }


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
            name = literal(plugin.record.name)
            name.pad_left(2)
            table.add_row(name, literal(str(plugin.provider), "dim"), Group(*filter(None, lines)))
    terminal.print(table)
    for failure in registry.failures:
        terminal.print(literal("failed", "red"), literal(str(failure)), soft_wrap=True)


def describe_space(space: Space) -> str:
    """A search space in one line."""
    return "; ".join(f"{name}: {_describe_values(values)}" for name, values in space.items())


def _describe_values(values: Values) -> str:
    if isinstance(values, Range):
        return f"{values.low:g} … {values.high:g}{', logarithmic' if values.log else ''}"
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(shown) if len(shown) <= 4 else f"{shown[0]} … {shown[-1]}, {len(shown)} values"
