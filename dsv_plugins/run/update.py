"""Adds good images to a model: some to what its detector remembers, the others to those that decide."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv_plugins.calibration import Calibration
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.run.artifacts import has_image_index, open_images, read_image_index
from dsv_plugins.run.ensemble import Ensemble
from dsv_plugins.run.folder import MANIFEST, RunFolder, finished_folder, json_text
from dsv_plugins.run.model import HELD_OUT, HELD_OUT_LIGHT, Model, checked_rate, member_folder
from dsv_plugins.run.records import MODEL_RECORD, UpdateRecord, read_model

__all__ = ["update"]

LEAST_DECIDING = 5


def update(
    model: Model,
    remembered: Tensor,
    deciding: Tensor,
    *,
    source: Path,
    digests: Sequence[str],
    false_alarms: float | None = None,
) -> Model:
    """Return the model with more good images, here and in the run folder. Nothing is trained.

    The images that decided before are scored again, since a detector that remembers more gives lower scores.

    Args:
        model: The model.
        remembered: Good images for what the detector remembers, uint8 and of the model's size.
        deciding: Good images to decide by, beside those that the study held out. None of them is a copy of the others.
        source: Where they come from.
        digests: The beginning of the hash of each remembered image.
        false_alarms: As for `load`.

    Raises:
        InputError: The detector cannot be given more images, or too few images would decide.
    """
    run, record = RunFolder(model.run), model.record
    whole = model.detector
    detectors = [each.detector for each in whole.members] if isinstance(whole, Ensemble) else [whole]
    for detector in detectors:
        if type(detector).remember is DetectorEncoder.remember:
            raise InputError(f"the detector {record.detector!r} cannot be given more images without training")
    held_out = _held_out(run, model)
    known = deciding if held_out is None else torch.cat([held_out, deciding])
    if len(known) < LEAST_DECIDING:
        raise InputError(
            f"{len(known)} images would decide, and the images that decided before are not in {run.path}; give "
            f"{2 * LEAST_DECIDING} good images or more"
        )
    with wrap_errors(f"detector_encoder {record.detector!r}"):
        for detector in detectors:
            detector.remember(remembered if record.tiles is None else record.tiles.cut(remembered))
    found = replace(model, calibration=None, false_alarms=None).predict(known, heatmaps=False)
    calibration = Calibration(found.scores.numpy())
    rate = checked_rate(calibration, false_alarms)
    assert rate is not None
    before = None if model.calibration is None else model.calibration.threshold(model.false_alarms or 0.0)
    entry = UpdateRecord(
        images=str(source.absolute()),
        remembered=len(remembered),
        deciding=len(known),
        threshold_before=before,
        threshold=calibration.threshold(rate),
    )
    with run.locked():
        kept = read_model(run)
        record = replace(kept, history=[*kept.history, entry], trained_on=[*kept.trained_on, *digests])
        with finished_folder(run.model) as folder:
            shutil.copytree(run.model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
            for place, detector in enumerate(detectors):
                detector.save(member_folder(folder, place) if record.members else folder)
            (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
            np.save(folder / HELD_OUT, calibration.held_out)
            np.save(folder / HELD_OUT_LIGHT, found.light.numpy())
    return replace(model, record=record, calibration=calibration, false_alarms=rate, light=found.light.numpy())


def _held_out(run: RunFolder, model: Model) -> Tensor | None:
    """Return the images that the study held out; None if they are not there, or others have decided since."""
    if model.record.calibrated_on is not None or not has_image_index(run.data):
        return None
    if "holdout" not in read_image_index(run.data).files:
        return None
    rows: NDArray[Any] = np.array(open_images(run.data, "holdout"))
    images = torch.from_numpy(rows)
    return images if model.record.tiles is None else model.record.tiles.joined(images)
