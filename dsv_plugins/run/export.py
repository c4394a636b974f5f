"""The chosen detector as one file that needs nothing of this package: ONNX, or a program of `torch.export`.

The file holds the whole way from pixels to a verdict: network, density and calibration.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dsv_plugins.calibration import Calibration
from dsv_plugins.errors import InputError, PluginError, describe_error
from dsv_plugins.run.folder import write_bytes
from dsv_plugins.run.model import Model
from dsv_plugins.types import height_and_width

__all__ = ["METADATA_FILE", "SUFFIXES", "Judge", "describe", "export_model"]

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
"""Of the file in each format."""
METADATA_FILE = "metadata.json"
"""What `describe` says, as an extra file in a program of `torch.export`."""
ONNX_PACKAGES = ("onnx", "onnxscript")
INPUT, BATCH = "images", "batch"
TRACED_IMAGES = 2
"""A single one would be taken for a constant."""


class Judge(nn.Module):
    """A detector with its calibration: from images to named outputs.

    Args:
        detector: From images to scores, and heatmaps behind them if it has any.
        calibration: Scores of good images; None for no p-values and no verdicts.
        false_alarms: The share of good images that may be called anomalous.
    """

    held_out: Tensor | None

    def __init__(self, detector: nn.Module, calibration: Calibration | None, false_alarms: float | None) -> None:
        super().__init__()
        self.detector = detector
        self.threshold = None
        self.register_buffer("held_out", None)
        if calibration is not None and false_alarms is not None:
            self.threshold = calibration.threshold(false_alarms)
            self.held_out = torch.from_numpy(calibration.held_out)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return what `Model.predict` says of images in [0, 1] of the model's size."""
        scores, *heatmaps = self.detector(images)
        outputs = {"score": scores}
        if self.held_out is not None:
            exact = scores.double()  # as the held-out scores are
            at_least = (self.held_out >= exact[:, None]).sum(dim=1)
            outputs["p_value"] = (1 + at_least) / (len(self.held_out) + 1)
            outputs["anomalous"] = exact > self.threshold
        if heatmaps:
            outputs["heatmap"] = heatmaps[0]
        return outputs


def export_model(model: Model, file_format: str, target: Path) -> tuple[str, ...]:
    """Write a model into one file, and return the names of its outputs.

    Args:
        model: The model.
        file_format: One of `SUFFIXES`.
        target: The file; one that is there is replaced at the end.

    Raises:
        InputError: The detector cannot be exported, or a package is missing.
        PluginError: The detector's module cannot be traced.
        StoreError: The file cannot be written.
    """
    if file_format == "onnx":
        _check_onnx()
    name = model.record.detector
    detector = model.detector.as_module()
    if detector is None:
        raise InputError(f"the detector {name!r} cannot be exported; its plugin has no as_module")
    judge = Judge(detector, model.calibration, model.false_alarms).eval()
    images = torch.zeros(TRACED_IMAGES, 3, *height_and_width(model.record.image_size))
    try:
        with _quiet(), torch.no_grad():
            outputs = tuple(judge(images))
            content = _WRITERS[file_format](_traced(judge, images), outputs, describe(model))
    except Exception as error:
        raise PluginError(f"the detector {name!r} cannot be exported: {describe_error(error)}") from error
    write_bytes(target, content)
    return outputs


def _traced(judge: Judge, images: Tensor) -> Any:
    """Return the program for any number of images.

    Some networks, such as Glass of anomalib, take the number that they are run with for the only one. From their code
    alone, without running them, they can be traced.
    """
    shapes = {INPUT: {0: torch.export.Dim(BATCH)}}
    try:
        return torch.export.export(judge, (images,), dynamic_shapes=shapes)
    except Exception as error:
        try:
            return torch.export.export(judge, (images,), dynamic_shapes=shapes, strict=True)
        except Exception:
            raise error from None


def describe(model: Model) -> dict[str, str]:
    """Return what the file says of itself."""
    record = model.record
    height, width = height_and_width(record.image_size)
    known: dict[str, object] = {
        "name": "dsv-plugins",
        "version": metadata.version("dsv-plugins"),
        "detector": record.detector,
        "detector_params": dict(record.detector_params),
        "augmentation": record.augmentation,
        "params": dict(record.params),
        "selector": record.selector,
        "image_size": record.image_size,
        "input": f"RGB images in float32 from 0 to 1, of shape (batch, 3, {height}, {width})",
    }
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
        dynamic_shapes={INPUT: {0: BATCH}},  # of a program that is traced already, it only names the dimension
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
