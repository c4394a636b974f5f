"""The `dsv` command: thin, and quick to start."""

from dsv_plugins.cli.main import main

__all__ = ["main"]
