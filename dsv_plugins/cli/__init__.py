"""The `dsv` command: thin, and quick to start."""

from dsv_plugins.cli.main import command, main

__all__ = ["command", "main"]
