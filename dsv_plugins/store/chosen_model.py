"""The folder `model/` of a run: the chosen detector, or several as one, and what it takes to decide with them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv_plugins.errors import StoreError, shown
from dsv_plugins.store.artifacts import load_if_any, read_study
from dsv_plugins.store.folder import MANIFEST, RunFolder, finished_folder, json_text, read_json
from dsv_plugins.store.trust import RESTORE, sound, verify
from dsv_plugins.types import Size, height_and_width

__all__ = ["ModelRecord", "load_held_out", "load_model_record", "member_folder", "recalibrate_model", "save_model"]

Array = NDArray[Any]

MODEL_RECORD, HELD_OUT = "model.json", "held-out-scores.npy"


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """What `model/model.json` says of the detector beside it.

    Attributes:
        detector: Name of the detector plugin.
        detector_params: Its settings.
        augmentation: Name of the augmentation that it was trained on.
        params: Hyperparameters of the augmentation.
        selector: Name of the selector that chose it.
        image_size: The size at which it takes images; height and width if they are not square.
        heat_scale: Where the colour of a heatmap begins and where it is strongest; None if it has no heatmaps.
        heat_threshold: The heat above which a place counts as unusual; None if that is not known.
        candidate: Id of the candidate, and the updates it was trained for.
        members: If it is an ensemble, what each member was trained on and the scale of its scores; the member's files
            are in the folder `members`, by its place here.
        warnings: Reasons in the images to doubt its decisions.
        calibrated_on: The folder of good images whose scores decide; None for those that the study kept out.
        provider: What provided the detector plugin: a package with its version, and a fingerprint of the code.
        plugins: The files and modules with plugins that the study was given.
    """

    detector: str
    augmentation: str
    selector: str
    image_size: Size
    detector_params: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    heat_scale: tuple[float, float] | None = None
    heat_threshold: float | None = None
    candidate: str = ""
    members: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    calibrated_on: str | None = None
    provider: str = ""
    plugins: Sequence[str] = ()


MEMBER_KINDS: Mapping[str, type] = {
    "augmentation": str,
    **dict.fromkeys(("params", "detector_params"), dict),
    **dict.fromkeys(("mean", "deviation"), float),
}
"""What a model says of each member."""

MODEL_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("detector", "augmentation", "selector", "candidate", "provider"), str),
    **dict.fromkeys(("detector_params", "params"), dict),
    "image_size": (int, list),
    "heat_scale": (list, type(None)),
    "heat_threshold": (float, type(None)),
    **dict.fromkeys(("members", "warnings", "plugins"), (list, tuple)),
    "calibrated_on": (str, type(None)),
}
"""What the values of `model.json` are."""


def save_model(run: RunFolder, record: ModelRecord, detectors: Sequence[Path], held_out: Array | None) -> None:
    """Copy the chosen detector's folder into the run as its model, with the scores of the images that were kept out.

    Several detectors are the members of an ensemble. If the same candidate was recalibrated before, it stays so.
    """
    with contextlib.suppress(StoreError):  # there is none yet, or it is damaged
        before = load_model_record(run)
        if before.candidate == record.candidate and before.calibrated_on is not None:
            record, held_out = replace(record, calibrated_on=before.calibrated_on), load_held_out(run)
    with finished_folder(run.model) as folder:
        for place, detector in enumerate(detectors):
            target = member_folder(folder, place) if record.members else folder
            shutil.copytree(detector, target, dirs_exist_ok=True)
        (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
        if held_out is not None:
            np.save(folder / HELD_OUT, held_out)


def member_folder(model: Path, place: int) -> Path:
    """Where the files of an ensemble's member are."""
    return model / "members" / str(place)


def load_held_out(run: RunFolder) -> Array | None:
    """The scores of good images that the model was not trained on; None if there are none."""
    return load_if_any(run.model, HELD_OUT)


def recalibrate_model(run: RunFolder, images: Path, held_out: Array) -> None:
    """Let the scores of these good images decide from now on."""
    record = replace(load_model_record(run), calibrated_on=str(images.absolute()))
    with finished_folder(run.model) as folder:
        shutil.copytree(run.model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
        np.save(folder / HELD_OUT, held_out)


def load_model_record(run: RunFolder) -> ModelRecord:
    """What the chosen model is; its files lie in `run.model`.

    Raises:
        StoreError: There is no model, another version wrote it, or it is damaged.
    """
    if run.study.exists():  # a model works without the rest of its run
        read_study(run)
    if not run.model.is_dir():
        raise StoreError(f"{run.path} holds no chosen model; finish the study with `dsv select` first")
    problem = verify(run.model)
    if problem is not None:
        raise StoreError(f"{problem}; {RESTORE}")
    file = run.model / MODEL_RECORD
    content = read_json(file)
    with sound(file):
        record = ModelRecord(**content)
        for name, kinds in MODEL_KINDS.items():
            if not isinstance(getattr(record, name), kinds):
                raise TypeError(f"{name} is {shown(getattr(record, name))}")
        height_and_width(record.image_size)
        for member in record.members:
            for name, kind in MEMBER_KINDS.items():
                if not isinstance(member[name], kind):
                    raise TypeError(f"{name} of a member is {shown(member[name])}")
        return record
