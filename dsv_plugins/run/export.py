"""The chosen detector as one file that needs nothing of this package: ONNX, or a program of `torch.export`.

The file holds the whole way from pixels to a verdict: network, density and calibration.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dsv_plugins.calibration import Calibration
from dsv_plugins.errors import InputError, PluginError
from dsv_plugins.pixels import SIXTEEN_BITS
from dsv_plugins.run.folder import write_bytes
from dsv_plugins.run.model import Model
from dsv_plugins.run.resizing import resized_eight_bits, resized_maps
from dsv_plugins.transforms import ROUNDING
from dsv_plugins.types import Levels, Size, height_and_width

__all__ = ["METADATA_FILE", "SUFFIXES", "Judge", "describe", "export_judge", "export_model"]

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
"""Of the file in each format."""
METADATA_FILE = "metadata.json"
"""What `describe` says, as an extra file in a program of `torch.export`."""
ONNX_PACKAGES = ("onnx", "onnxscript")
INPUT, SHAPE = "images", ("batch", "height", "width", "channels")
PIXELS = {"uint8": torch.uint8, "uint16": torch.uint16, "float32": torch.float32}
"""What images may be of: eight bits, sixteen, or from 0 to 1."""
COLOURS = {"RGB": (0, 1, 2), "BGR": (2, 1, 0)}
"""The place of red, green and blue among the channels."""
WHITE, CHANNELS = 255, 3
TRACED = (2, 90, 70, CHANNELS)
"""Images, height, width and channels: a 1 would be taken for a constant, and a size of our own for a rule."""
TORCH = Path(torch.__file__).parent
COLOUR = re.compile(r"\x1b\[[\d;]*m")
UNKNOWN_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'")


class Judge(nn.Module):
    """A detector with all that stands before and behind it: from the pixels of images to named outputs.

    Args:
        detector: From images of its size in [0, 1] to scores, and heatmaps behind them if it has any.
        image_size: The size at which it takes images.
        pixels: What the images are of, one of `PIXELS`.
        colours: The order of their channels, one of `COLOURS`.
        levels: The values of sixteen bits that become black and white; None for the lowest and the highest.
        calibration: Scores of good images; None for no p-values and no verdicts.
        false_alarms: The share of good images that may be called anomalous.
    """

    held_out: Tensor | None

    def __init__(
        self,
        detector: nn.Module,
        image_size: Size,
        *,
        pixels: str = "uint8",
        colours: str = "RGB",
        levels: Levels | None = None,
        calibration: Calibration | None = None,
        false_alarms: float | None = None,
    ) -> None:
        super().__init__()
        self.detector, self.image_size, self.pixels = detector, image_size, pixels
        self.channels, self.levels = COLOURS[colours], levels or SIXTEEN_BITS
        self.threshold = math.inf
        self.register_buffer("held_out", None)
        if calibration is not None and false_alarms is not None:
            self.threshold = calibration.threshold(false_alarms)
            self.held_out = torch.from_numpy(calibration.held_out)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return what `Model.predict` says of images (images, height, width, channels), with heatmaps of their size."""
        _, height, width, channels = images.shape
        values, is_sound = self._eight_bits(images.permute(0, 3, 1, 2))
        resized = resized_eight_bits(values, self.image_size)
        order = torch.tensor(self.channels).clamp(max=channels - 1)  # grey has one channel, and a fourth is dropped
        scores, *heatmaps = self.detector(resized.index_select(1, order) / WHITE)
        scores = scores if is_sound is None else torch.where(is_sound, scores, math.inf)
        outputs = {"score": scores}
        if self.held_out is not None:
            exact = scores.double()  # as the held-out scores are
            at_least = (self.held_out >= exact[:, None]).sum(dim=1)
            outputs["p_value"] = (1 + at_least) / (len(self.held_out) + 1)
            outputs["anomalous"] = exact > self.threshold
        if heatmaps:
            outputs["heatmap"] = resized_maps(heatmaps[0], height, width)
        return outputs

    def _eight_bits(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return pixels as whole numbers from 0 to 255, and which images may have such pixels; None if all may."""
        if self.pixels == "uint8":
            return images.float(), None
        values = images.float()
        if self.pixels == "uint16":
            black, white = self.levels
            return torch.floor((values.clamp(black, white) - black) * WHITE / (white - black)), None
        is_sound = ((values >= -ROUNDING) & (values <= 1 + ROUNDING)).flatten(1).all(dim=1)  # what is NaN is neither
        values = torch.where(is_sound[:, None, None, None], values, 0)  # NaN may end the detector
        return (values * WHITE).round().clamp(0, WHITE), is_sound


def export_model(
    model: Model, file_format: str, target: Path, *, pixels: str = "uint8", colours: str = "RGB"
) -> tuple[str, ...]:
    """Write a model into one file, and return the names of its outputs.

    Args:
        model: The model.
        file_format: One of `SUFFIXES`.
        target: The file; one that is there is replaced at the end.
        pixels: What it takes, one of `PIXELS`.
        colours: The order of the channels that it takes, one of `COLOURS`.

    Raises:
        InputError: The detector cannot be exported, or a package is missing.
        PluginError: The detector's module cannot be traced.
        StoreError: The file cannot be written.
    """
    if file_format == "onnx":
        _check_onnx()
    name = model.record.detector
    detector = model.as_module()
    if detector is None:
        raise InputError(f"the detector {name!r} cannot be exported; its plugin has no as_module")
    record = model.record
    judge = Judge(
        detector,
        record.image_size,
        pixels=pixels,
        colours=colours,
        levels=record.levels,
        calibration=model.calibration,
        false_alarms=model.false_alarms,
    )
    try:
        outputs, content = export_judge(judge.eval(), file_format, describe(model, pixels, colours))
    except PluginError as error:
        raise PluginError(f"the detector {name!r} cannot be exported: {error}") from error
    write_bytes(target, content)
    return outputs


def export_judge(judge: Judge, file_format: str, description: Mapping[str, str]) -> tuple[tuple[str, ...], bytes]:
    """Return the names of a judge's outputs, and the content of its file.

    Args:
        judge: The detector with all that belongs to it.
        file_format: One of `SUFFIXES`.
        description: What the file says of itself.

    Raises:
        PluginError: It cannot be traced or converted. The message names the operator at fault, or the line it is in.
    """
    images = torch.zeros(TRACED, dtype=PIXELS[judge.pixels])
    try:
        with _quiet(), torch.no_grad():
            outputs = tuple(judge(images))
            program = _traced(judge, images)
    except Exception as error:
        fault = _fault_of_tracing(judge)
        raise PluginError(f"the number of images cannot vary because of {fault}" if fault else _plain(error)) from error
    try:
        with _quiet(), torch.no_grad():
            return outputs, _WRITERS[file_format](program, outputs, description)
    except Exception as error:
        operator = UNKNOWN_OPERATOR.search(str(error))
        raise PluginError(f"ONNX has no operator for {operator[1]}" if operator else _plain(error)) from error


class _Watch(TorchFunctionMode):
    """Remembers the operator that ties a trace to a certain number of images, or else the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""
        self._is_found = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator, and look whether the trace has a condition on the number of images since."""
        fake = next((each.fake_mode for each in args if hasattr(each, "fake_mode")), None)
        if fake is None or self._is_found:
            return function(*args, **(kwargs or {}))
        *_, line, _ = [each for each in traceback.extract_stack() if TORCH not in Path(each.filename).parents]
        if line.filename != __file__:  # what the exporter does by itself comes from here
            self._is_found = len(fake.shape_env.guards) > 0  # of code between the last operator and this one
            name = torch.overrides.resolve_name(function) or ""
            operator = "code at or before" if self._is_found or name.endswith("__") else f"{name} in"
            self.fault = f"{operator} the line {line.line!r} of {Path(line.filename).name}"
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self._is_found = len(fake.shape_env.guards) > 0


def _fault_of_tracing(judge: Judge) -> str:
    """The operator that keeps a detector from being traced, and the line of code that it is in; empty if unknown."""
    watch = _Watch()
    images = torch.zeros(TRACED[0], CHANNELS, *height_and_width(judge.image_size))
    with contextlib.suppress(Exception), _quiet(), torch.no_grad(), watch:
        torch.export.export(judge.detector, (images,), dynamic_shapes=({0: torch.export.Dim(SHAPE[0])},))
    return watch.fault


def _plain(error: Exception) -> str:
    """The type of an exporter's error and the first line of its message."""
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {COLOUR.sub('', first)}"


def _any_shape() -> dict[str, dict[int, Any]]:
    return {INPUT: {axis: torch.export.Dim(name) for axis, name in enumerate(SHAPE)}}


def _traced(judge: Judge, images: Tensor) -> Any:
    """Return the program for any number of images.

    Some networks, such as Glass of anomalib, take the number that they are run with for the only one. From their code
    alone, without running them, they can be traced.
    """
    shapes = _any_shape()
    try:
        return torch.export.export(judge, (images,), dynamic_shapes=shapes)
    except Exception as error:
        try:
            return torch.export.export(judge, (images,), dynamic_shapes=shapes, strict=True)
        except Exception:
            raise error from None


def describe(model: Model, pixels: str = "uint8", colours: str = "RGB") -> dict[str, str]:
    """Return what the file says of itself: what goes in and comes out, and what it is made of."""
    record = model.record
    known: dict[str, object] = {
        "name": "dsv-plugins",
        "version": metadata.version("dsv-plugins"),
        "input": f"{pixels} images of shape ({', '.join(SHAPE)}), any height and width; channels are {colours}, or one",
        "pixels": pixels,
        "range": {"uint8": (0, WHITE), "uint16": record.levels or SIXTEEN_BITS, "float32": (0, 1)}[pixels],
        "colours": colours,
        "resized_to": height_and_width(record.image_size),
        "levels_of_16_bits": record.levels or SIXTEEN_BITS,
        "made_of": record.made_of,
        "detectors": [
            {"detector": each.detector, "detector_params": each.detector_params, "share": each.share}
            for each in record.members
        ]
        or [{"detector": record.detector, "detector_params": record.detector_params, "share": 1.0}],
        "parts": record.parts,
        "weighted_by" if len(record.made_of) > 1 else "chosen_by": record.selector,
    }
    if record.tiles is not None:
        known["tiles"] = asdict(record.tiles)
    if record.heat_threshold is not None:
        known["heat_threshold"] = record.heat_threshold
    if model.calibration is not None and model.false_alarms is not None:
        known |= {
            "false_alarms": model.false_alarms,
            "threshold": model.calibration.threshold(model.false_alarms),
            "held_out_images": len(model.calibration.held_out),
        }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in known.items()}


def _onnx_bytes(program: Any, outputs: tuple[str, ...], description: Mapping[str, str]) -> bytes:
    exported = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=[INPUT],
        output_names=outputs,
        dynamic_shapes={INPUT: dict(enumerate(SHAPE))},  # of a program that is traced already, it only names them
    )
    assert exported is not None
    exported.model.metadata_props.update(description)
    content: bytes = exported.model_proto.SerializeToString()
    return content


def _torch_bytes(program: Any, outputs: tuple[str, ...], description: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={METADATA_FILE: json.dumps(description)})
    return file.getvalue()


_WRITERS: Mapping[str, Callable[[Any, tuple[str, ...], Mapping[str, str]], bytes]] = {
    "onnx": _onnx_bytes,
    "torch": _torch_bytes,
}


def _check_onnx() -> None:
    for package in ONNX_PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InputError(
                f"an ONNX file needs the package {package}; pip install 'dsv-plugins[onnx]', or give --format torch"
            ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters, which print, log and warn about their own steps."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
