"""The chosen detector of a study as a fitted module of anomalib."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NoReturn

import torch
from anomalib.data import ImageBatch
from anomalib.models.components import AnomalibModule
from torch import Tensor

import dsv_plugins
from dsv_anomalib.detector import AnomalibDetector
from dsv_anomalib.models import Model, detector_of
from dsv_anomalib.native import DETECTOR, CutPaste
from dsv_anomalib.own import DetectorNetwork, OwnModule, ResizingPreProcessor
from dsv_anomalib.post_processing import LabelFreePostProcessor
from dsv_plugins import AugmentationPlugin, DetectorEncoder, InputError, UnknownPluginError, build_registry
from dsv_plugins.calibration import combined_scores
from dsv_plugins.errors import quoted
from dsv_plugins.types import height_and_width

__all__ = ["TrainedDetector", "fitted_module", "load"]


def load(
    run: Path | str, *, model: Model | None = None, false_alarms: float | None = None, plugins: object = ()
) -> AnomalibModule:
    """The model that a finished selection chose, as a fitted module: for `Engine().test`, `predict` and `export`.

    Args:
        run: The run folder, of `dsv_anomalib.select`, `dsv-anomalib` or `dsv select`.
        model: What was given to `select`, if that was an `Entry` or a function: no package has it.
        false_alarms: The share of good images that it may call anomalous; 0.05 if None, or the lowest rate that the
            good images kept out of training can promise. If there were too few to keep any out, the threshold is a
            quantile of the train images' scores, which new good images exceed more often.
        plugins: Plugins that are in no package, as for `build_registry`.

    Raises:
        InputError: The good images kept out of training, if any, cannot promise that rate.
    """
    plugins = (() if model is None else detector_of(model)[-1], plugins)
    try:
        found = dsv_plugins.load(run, false_alarms=false_alarms, plugins=plugins)
    except UnknownPluginError as error:
        raise UnknownPluginError(f"{error}; if it is an Entry or a function of your own, give it as model=…") from error
    record, module = found.record, fitted_module(found, plugins)
    post_processor = LabelFreePostProcessor()
    if found.calibration is None or found.false_alarms is None:
        warnings.warn(
            f"no good images of {run} were kept out of training: the threshold is the {post_processor.quantile} "
            "quantile of the train images' scores, which new good images exceed more often; give good images that were "
            f"not trained on with `dsv score {quoted(run)} IMAGES --recalibrate FOLDER`",
            stacklevel=2,
        )
        post_processor.fit(_train_scores(dsv_plugins.Run(Path(run), plugins), found.record.tiles))
    else:
        held_out = torch.from_numpy(found.calibration.held_out)
        post_processor.fit(held_out, found.calibration.threshold(found.false_alarms))
    if record.heat_scale is not None and record.heat_threshold is not None:
        post_processor.fit_pixels(*record.heat_scale, record.heat_threshold)
    module.post_processor = post_processor
    return module


def _train_scores(run: dsv_plugins.Run, tiles: Any) -> Tensor:
    """The scores that the model of a run gives its train images."""
    members = [{"train": run.evaluation(candidate).scores.train.numpy()} for candidate in run.kept]
    shares = [run.shares[candidate.id] for candidate in run.kept]
    return torch.from_numpy(combined_scores(members, shares, tiles=tiles.count if tiles else 1)["train"])


def fitted_module(model: dsv_plugins.Model, plugins: object = ()) -> AnomalibModule:
    """The model of a run as a module of anomalib, without a threshold.

    Args:
        model: A trained detector, or several as one.
        plugins: Plugins that are in no package.
    """
    detector, record = model.detector, model.record
    if record.tiles is None and isinstance(detector, AnomalibDetector):
        module = detector.build(**detector.entry.weights_off)
        module.model.load_state_dict(detector.module.model.state_dict())
        if record.augmentation:
            registry = build_registry(plugins)
            detector.install(module, registry.create(AugmentationPlugin, record.augmentation, record.params))
    elif record.tiles is None and record.detector == DETECTOR and isinstance(detector, DetectorEncoder):
        module = CutPaste.from_detector(
            detector, augmentation=record.augmentation, augmentation_params=dict(record.params)
        )
    else:
        module = TrainedDetector(model)
    return module.eval()


class TrainedDetector(OwnModule, AnomalibModule):
    """The model of a run as a module that tests, predicts and exports, but does not train.

    Args:
        model: Its detector must be exportable.

    Raises:
        InputError: It cannot be made a module.
    """

    def __init__(self, model: dsv_plugins.Model) -> None:
        network = model.as_module()
        if network is None:
            raise InputError(f"{model.record.detector} has no as_module, which a module of anomalib needs")
        size = height_and_width(model.record.image_size)
        super().__init__(pre_processor=ResizingPreProcessor(size), visualizer=False)
        self.hparams.clear()  # the detector is in the weights, and has no place in a list of settings
        self.model = DetectorNetwork(network)

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
