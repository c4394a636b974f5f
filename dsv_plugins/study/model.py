"""The chosen detector of a finished study, ready to judge new images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dsv_plugins.calibration import Calibration
from dsv_plugins.errors import DSVError, InputError, PluginError, UnknownPluginError
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.run.model_folder import (
    ModelRecord,
    load_held_out,
    load_model_record,
    member_folder,
    recalibrate_model,
)
from dsv_plugins.study.ensemble import Ensemble, Member, frozen_part_name

__all__ = ["NO_CALIBRATION", "Model", "Prediction", "Trained", "load"]

Trained = DetectorEncoder | Ensemble
"""What judges new images."""

NO_CALIBRATION = (
    "no good images were kept out of training; give good images that were not trained on to "
    "`dsv score RUN IMAGES --recalibrate FOLDER`"
)


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a model makes of images, a row for each.

    Attributes:
        scores: Higher for more anomalous.
        p_values: The share of good images that look at least as anomalous; None if the model is not calibrated.
        anomalous: Whether the p-value is at most the false-alarm rate; None if the model is not calibrated.
        heatmaps: How unusual each place is: (images, height, width); None if the detector cannot say.
    """

    scores: Tensor
    p_values: Tensor | None
    anomalous: Tensor | None
    heatmaps: Tensor | None


@dataclass(frozen=True, eq=False)
class Model:
    """A trained detector and what it takes to decide with it.

    Attributes:
        run: The run folder it comes from.
        detector: The detector, or several as one.
        record: What is known of it, such as the size of its images.
        calibration: Scores of good images that it was not trained on; None if there are none.
        false_alarms: The share of good images that may be called anomalous; None if it is not calibrated.
        changed: How the detector's plugin differs from the one that was trained; empty if it does not.
    """

    run: Path
    detector: Trained
    record: ModelRecord
    calibration: Calibration | None
    false_alarms: float | None
    changed: str = ""

    def predict(self, images: Tensor) -> Prediction:
        """Judge images of shape (images, 3, height, width), as uint8 or from 0 to 1; some hundred at a time."""
        self.detector.prepare(images)
        scores = self.detector.score(images)
        p_values = anomalous = None
        if self.calibration is not None:
            assert self.false_alarms is not None
            p_values = torch.from_numpy(self.calibration.p_values(scores))
            anomalous = torch.from_numpy(self.calibration.alarms(scores, self.false_alarms))
        return Prediction(scores, p_values, anomalous, self.detector.heatmap(images))

    def recalibrated(self, scores: Tensor, images: Path, false_alarms: float | None = None) -> Model:
        """The model with the scores of other good images to decide by, here and in the run folder."""
        calibration = Calibration(scores.numpy())
        rate = _checked_rate(calibration, false_alarms)
        recalibrate_model(RunFolder(self.run), images, calibration.held_out)
        return replace(self, record=load_model_record(RunFolder(self.run)), calibration=calibration, false_alarms=rate)


def load(run: Path | str, *, false_alarms: float | None = None, plugins: object = ()) -> Model:
    """The chosen detector of a finished study.

    Args:
        run: The run folder.
        false_alarms: The share of good images that may be called anomalous; 0.05 if None, or the lowest rate that can
            be promised if that is higher.
        plugins: Plugins that are in no package, as for `build_registry`.

    Raises:
        StoreError: There is no model, or it is damaged.
        InputError: That rate cannot be promised.
        PluginError: The detector's plugin is not there, or has changed so that it cannot load the model.
    """
    folder = RunFolder(Path(run))
    record = load_model_record(folder)
    held_out = load_held_out(folder)
    calibration = None if held_out is None else Calibration(held_out)
    rate = _checked_rate(calibration, false_alarms)
    detector, changed = _detector(folder, record, plugins)
    return Model(folder.path, detector, record, calibration, rate, changed)


def _detector(folder: RunFolder, record: ModelRecord, plugins: object) -> tuple[Trained, str]:
    """The detector of a run, and how its plugin has changed since it was trained."""
    registry = build_registry(plugins)
    needed = {each.detector: each.provider for each in record.members} or {record.detector: record.provider}
    changes = []
    for name, provider in needed.items():
        try:
            now = registry.identity(DetectorEncoderPlugin, name)
        except UnknownPluginError as error:
            given = ",".join(record.plugins)
            advice = f"give --plugins {given}" if given else "install it, or give its file with --plugins"
            raise UnknownPluginError(
                f"{folder.path} needs the detector {name!r} of {provider or 'another package'}; {advice}"
            ) from error
        if provider not in ("", now):
            changes.append(f"the detector {name!r} was trained with {provider}, and here is {now}")
    changed = "; ".join(changes)

    def loaded(name: str, path: Path, settings: Mapping[str, object]) -> DetectorEncoder:
        made = registry.create(DetectorEncoderPlugin, name, settings)
        with wrap_errors(registry.label(DetectorEncoderPlugin, name), "cannot load its model"):
            made.load(path)
        return made

    detector: Trained
    try:
        if record.members:
            detector = Ensemble(
                [
                    Member(
                        each.detector,
                        frozen_part_name(each),
                        loaded(each.detector, member_folder(folder.model, place), each.detector_params),
                        each.scale,
                        each.share,
                        each.heat,
                    )
                    for place, each in enumerate(record.members)
                ]
            )
        else:
            detector = loaded(record.detector, folder.model, record.detector_params)
    except DSVError as error:
        if not changed:
            raise
        raise PluginError(f"{error}; {changed}") from error
    return detector, changed


def _checked_rate(calibration: Calibration | None, false_alarms: float | None) -> float | None:
    if calibration is None:
        if false_alarms is not None:
            raise InputError(f"no false-alarm rate can be promised: {NO_CALIBRATION}")
        return None
    rate = calibration.default_rate if false_alarms is None else false_alarms
    calibration.threshold(rate)  # raises if it cannot be promised
    return rate
