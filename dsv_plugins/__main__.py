"""`python -m dsv_plugins` is `dsv`."""

from dsv_plugins.cli import command

command()
