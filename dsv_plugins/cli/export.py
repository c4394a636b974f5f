"""Write the detector that a finished study has chosen into one file, which judges images without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli.options import add_false_alarms, add_plugins, check_rates, check_target
from dsv_plugins.cli.output import tell
from dsv_plugins.cli.terminal import Terminal, literal

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run", type=str, help="the run folder of `dsv select`")
    parser.add_argument(
        "--format", type=Literal["onnx", "torch"], default="onnx", help="an ONNX file, or a program of torch.export"
    )
    parser.add_argument(
        "--out", type=str, help="the file to write; model.onnx or model.pt2 in the run folder by default"
    )
    parser.add_argument(
        "--pixels",
        type=Literal["uint8", "uint16", "float32"],
        default="uint8",
        help="what its images are of: 8 bits, 16 bits, or floats from 0 to 1",
    )
    parser.add_argument(
        "--colours", type=Literal["RGB", "BGR"], default="RGB", help="the order of their channels; OpenCV reads BGR"
    )
    add_false_alarms(parser)
    add_plugins(parser)


def run(arguments: Namespace) -> int:
    """Write the file, and say what goes in and what comes out."""
    check_rates(arguments, "false_alarms")
    check_target(arguments.out)

    from dsv_plugins.run.export import SUFFIXES, export_model
    from dsv_plugins.run.folder import RunFolder
    from dsv_plugins.run.model import NO_CALIBRATION, load

    model = load(arguments.run, false_alarms=arguments.false_alarms, plugins=arguments.plugins)
    target = Path(arguments.out or RunFolder(model.run).exported(SUFFIXES[arguments.format]))
    outputs = export_model(model, arguments.format, target, pixels=arguments.pixels, colours=arguments.colours)
    told = [
        f"model: {target}",
        f"takes {arguments.pixels} images in {arguments.colours}, (batch, height, width, channels), of any size",
        f"returns {', '.join(outputs)}",
    ]
    if model.false_alarms is None:
        tell(f"note: no p-values and no verdicts: {NO_CALIBRATION}")
    else:
        told.append(f"false-alarm rate {model.false_alarms:.3g}")
    Terminal().print(literal("; ".join(told)), soft_wrap=True)
    return 0
