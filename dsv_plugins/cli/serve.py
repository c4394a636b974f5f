"""Judge images over HTTP with the detector that a finished study has chosen, and show a page to drop images on."""

from __future__ import annotations

import contextlib
import importlib.util

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveFloat, PositiveInt

from dsv_plugins.cli.options import add_false_alarms, add_plugins, check_rates
from dsv_plugins.cli.output import note, tell
from dsv_plugins.errors import InputError

__all__ = ["add_arguments", "run"]

PACKAGES = ("fastapi", "prometheus_client", "uvicorn")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run", type=str, help="the run folder of `dsv select`")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="the address; 0.0.0.0 for all of this machine")
    parser.add_argument("--port", type=int, default=8000, help="the port; 0 for any that is free")
    parser.add_argument("--max-megabytes", type=PositiveFloat, default=20, help="refuse larger files")
    parser.add_argument("--max-megapixels", type=PositiveFloat, default=50, help="refuse larger images")
    parser.add_argument("--max-waiting", type=PositiveInt, default=64, help="refuse more requests at once")
    parser.add_argument(
        "--batch", type=PositiveInt, default=16, help="judge at most so many waiting images in one call"
    )
    add_false_alarms(parser)
    add_plugins(parser)


def run(arguments: Namespace) -> int:
    """Answer requests until Ctrl-C or SIGTERM."""
    check_rates(arguments, "false_alarms")
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise InputError(f"dsv serve needs the package {package}; pip install 'dsv-plugins[serve]'")

    from dsv_plugins.run.model import NO_CALIBRATION, load
    from dsv_plugins.serving.server import Limits, listen, serve

    model = load(arguments.run, false_alarms=arguments.false_alarms, plugins=arguments.plugins)
    limits = Limits(arguments.max_megabytes, arguments.max_megapixels, arguments.max_waiting, arguments.batch)
    # To be asked to end is how it ends.
    with listen(arguments.host, arguments.port) as listening, contextlib.suppress(KeyboardInterrupt):
        host, port, *_ = listening.getsockname()
        if model.calibration is None:
            note(f"no p-values and no verdicts: {NO_CALIBRATION}")
        shown = f"[{host}]" if ":" in host else host
        tell(f"dsv serve: http://{shown}:{port} judges images; Ctrl-C ends it")
        serve(model, limits, listening, note)
    return 0
