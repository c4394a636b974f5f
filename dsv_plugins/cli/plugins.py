"""List every plugin that is installed, who provides it and what can be set; failures stand below."""

from __future__ import annotations

import json

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsv_plugins.registry import Registry, build_registry
from dsv_plugins.spaces import Range, Space, Values, space_to_json

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(arguments: Namespace) -> int:
    """List the plugins."""
    registry = build_registry()
    if arguments.json:
        print(json.dumps(_as_json(registry), indent=2))
    else:
        _print_tables(registry, Console())
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


def _print_tables(registry: Registry, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "name", "provider", "hyperparameters", "summary"):
        table.add_column(heading, no_wrap=heading in ("kind", "name"), overflow="fold")
    for plugin in registry.plugins:
        record = plugin.record
        row = (record.kind, record.name, str(plugin.provider), _describe(record.space), record.summary)
        table.add_row(*map(escape, row))
    console.print(table)
    for failure in registry.failures:
        console.print(f"[red]failed[/red] {escape(str(failure))}", soft_wrap=True, highlight=False)


def _describe(space: Space) -> str:
    return ", ".join(f"{name} {_describe_values(values)}" for name, values in space.items())


def _describe_values(values: Values) -> str:
    if isinstance(values, Range):
        return f"[{values.low:g} … {values.high:g}{', log' if values.log else ''}]"
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return f"({', '.join(shown) if len(shown) <= 4 else f'{shown[0]} … {shown[-1]}, {len(shown)} values'})"
