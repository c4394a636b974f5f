"""The chosen detector of a study as a fitted module of anomalib."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from anomalib.data import ImageBatch, InferenceBatch
from anomalib.models.components import AnomalibModule
from anomalib.pre_processing import PreProcessor
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.v2 import Compose, Resize, ToDtype

import dsv_plugins
from dsv_anomalib.detector import AnomalibDetector
from dsv_anomalib.models import Model, detector_of
from dsv_anomalib.native import DETECTOR, CutPaste, OwnModule
from dsv_anomalib.post_processing import LabelFreePostProcessor
from dsv_plugins import AugmentationPlugin, DetectorEncoder, InputError, UnknownPluginError, build_registry
from dsv_plugins.errors import quoted

__all__ = ["TrainedDetector", "fitted_module", "load"]


LEVELS = 255
"""Of brightness in an eight-bit image, beside black."""


class Detecting(Protocol):
    """What becomes a module: a trained detector, or several as one."""

    @property
    def image_size(self) -> int | None: ...
    def as_module(self) -> nn.Module | None: ...


def load(
    run: Path | str, *, model: Model | None = None, false_alarms: float | None = None, plugins: object = ()
) -> AnomalibModule:
    """The model that a finished selection chose, as a fitted module: for `Engine().test`, `predict` and `export`.

    Args:
        run: The run folder, of `dsv_anomalib.select`, `dsv-anomalib` or `dsv select`.
        model: What was given to `select`, if that was an `Entry` or a function: no package has it.
        false_alarms: The share of good images that it may call anomalous; 0.05 if None, or the lowest rate that the
            good images kept out of training can promise.
        plugins: Plugins that are in no package, as for `build_registry`.

    Raises:
        InputError: No good images were kept out of training, so that there is no threshold, or they cannot promise that
            rate.
    """
    plugins = (() if model is None else detector_of(model)[-1], plugins)
    try:
        found = dsv_plugins.load(run, false_alarms=false_alarms, plugins=plugins)
    except UnknownPluginError as error:
        raise UnknownPluginError(f"{error}; if it is an Entry or a function of your own, give it as model=…") from error
    if found.calibration is None or found.false_alarms is None:
        raise InputError(
            f"{run} has no threshold, since no good images were kept out of training; give some with "
            f"`dsv score {quoted(run)} IMAGES --recalibrate FOLDER`"
        )
    record, module = found.record, fitted_module(found, plugins)
    post_processor = LabelFreePostProcessor()
    held_out = torch.from_numpy(found.calibration.held_out)
    post_processor.fit(held_out, found.calibration.threshold(found.false_alarms))
    if record.heat_scale is not None and record.heat_threshold is not None:
        post_processor.fit_pixels(*record.heat_scale, record.heat_threshold)
    module.post_processor = post_processor
    return module


def fitted_module(model: dsv_plugins.Model, plugins: object = ()) -> AnomalibModule:
    """The model of a run as a module of anomalib, without a threshold.

    Args:
        model: A trained detector, or several as one.
        plugins: Plugins that are in no package.
    """
    detector, record = model.detector, model.record
    if isinstance(detector, AnomalibDetector):
        module = detector.build(**detector.entry.weights_off)
        module.model.load_state_dict(detector.module.model.state_dict())
        if record.augmentation:
            registry = build_registry(plugins)
            detector.install(module, registry.create(AugmentationPlugin, record.augmentation, record.params))
    elif record.detector == DETECTOR and isinstance(detector, DetectorEncoder):
        module = CutPaste.from_detector(
            detector, augmentation=record.augmentation, augmentation_params=dict(record.params)
        )
    else:
        module = TrainedDetector(detector)
    return module.eval()


class TrainedDetector(OwnModule, AnomalibModule):
    """A trained detector of dsv-plugins as a module that tests, predicts and exports, but does not train.

    Args:
        detector: It must have an image size and be exportable.

    Raises:
        InputError: It cannot be made a module.
    """

    def __init__(self, detector: Detecting) -> None:
        network, size = detector.as_module(), detector.image_size
        if network is None or size is None:
            raise InputError(f"a {type(detector).__name__} has no as_module or no image_size, which a module needs")
        super().__init__(pre_processor=_resizing_as_files((size, size)), visualizer=False)
        self.hparams.clear()  # the detector is in the weights, and has no place in a list of settings
        self.model = _Network(network)

    def configure_optimizers(self) -> NoReturn:
        """Refuse: it is trained."""
        raise InputError("this module is trained already; select again to train another")

    def training_step(self, batch: ImageBatch, batch_idx: int) -> NoReturn:
        """Never called, but Lightning wants one before it asks for optimisers."""
        raise NotImplementedError

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """None: it is not trained."""
        return {}


def _resizing_as_files(size: tuple[int, int]) -> PreProcessor:
    """Resizes in eight bits, as images are when they are read for a study or by `dsv score`.

    An exported model gets images of the right size, and has no such steps.
    """
    resize = Resize(size, antialias=True)
    pre_processor = PreProcessor(transform=Compose([resize]))
    pre_processor.transform = Compose([ToDtype(torch.uint8, scale=True), resize, ToDtype(torch.float32, scale=True)])
    return pre_processor


class _Network(nn.Module):
    """From images in [0, 1] to scores and maps of their size.

    It sees eight bits, as in training: images without the rounding of files look unusual where a part is even, and some
    verdicts would differ.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> InferenceBatch:
        scores, *heatmaps = self.network((images * LEVELS).round() / LEVELS)
        maps = [
            functional.interpolate(heat[:, None].float(), size=images.shape[-2:], mode="bilinear", align_corners=False)
            for heat in heatmaps
        ]
        return InferenceBatch(pred_score=scores, anomaly_map=maps[0] if maps else None)
