"""Run the conformance kit on an installed plugin: a row for each check, exit code 1 when one fails."""

from __future__ import annotations

import traceback
from collections import Counter

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from dsv_plugins.cli.options import add_plugins, kind_of
from dsv_plugins.cli.output import tell
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.records import RECORDS, Plugin
from dsv_plugins.plugins.registry import Registry, build_registry

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", help="name of the plugin, as `dsv plugins` shows it")
    parser.add_argument("--kind", type=kind_of, help="needed only if two kinds share the name")
    add_plugins(parser)
    parser.add_argument(
        "--expect-failed",
        metavar="CHECK,...",
        default="",
        help="checks that the plugin is known to fail; the exit code is 0 if these fail and no others",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: Namespace) -> int:
    """Check one plugin."""
    record = _find(build_registry(arguments.plugins), arguments.name, arguments.kind)

    from dsv_plugins.testing import run_checks  # torch is needed from here on

    expected = [name.strip() for name in arguments.expect_failed.split(",") if name.strip()]
    results = list(run_checks(record, dict.fromkeys(expected, "named by --expect-failed")))
    failed = any(result.failed for result in results)
    if arguments.json:
        rows = [{"check": result.check, "status": result.status, "reason": result.reason} for result in results]
        Terminal().print_json_object({"kind": record.kind, "name": record.name, "checks": rows})
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("check", "status", "reason"):
            table.add_column(heading, no_wrap=heading != "reason", overflow="fold")
        for result in results:
            if result.status != "skipped":
                colour = "red" if result.failed else "green"
                table.add_row(literal(result.check), literal(result.status, colour), literal(result.reason))
        Terminal().print(table)
        skipped = Counter(result.reason for result in results if result.status == "skipped")
        for reason, count in skipped.items():
            Terminal().print(literal(f"{count} more skipped {reason}", "dim"), soft_wrap=True)
    if arguments.debug:
        for result in results:
            if result.failed and result.error is not None:
                tell(f"{result.check}:")
                traceback.print_exception(result.error)
    return 1 if failed else 0


def _find(registry: Registry, name: str, kind: str | None) -> Plugin[object]:
    kinds = sorted({plugin.record.kind for plugin in registry.named(name)})
    if kind is None and len(kinds) > 1:
        raise InputError(f"{name!r} is the name of a plugin of kind {' and '.join(kinds)}; say which with --kind")
    if kind is None and not kinds:
        raise registry.unknown(name)
    return registry.get(RECORDS[kind or kinds[0]], name)
