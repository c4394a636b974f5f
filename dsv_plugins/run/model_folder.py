"""The folder `model/` of a run: the chosen detector, or several as one, and what it takes to decide with them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv_plugins.errors import StoreError, shown
from dsv_plugins.run.artifacts import load_if_any, read_study
from dsv_plugins.run.checksums import RESTORE, sound, verify
from dsv_plugins.run.folder import MANIFEST, RunFolder, finished_folder, json_text, read_json
from dsv_plugins.types import Size, height_and_width

__all__ = [
    "MemberRecord",
    "ModelRecord",
    "load_held_out",
    "load_model_heatmaps",
    "load_model_record",
    "member_folder",
    "recalibrate_model",
    "save_model",
]

Array = NDArray[Any]

MODEL_RECORD, HELD_OUT, HEATMAPS = "model.json", "held-out-scores.npy", "test-heatmaps.npy"


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One detector of an ensemble.

    Attributes:
        detector: Name of the detector plugin.
        detector_params: Its settings.
        share: How much it counts; those of all members add up to 1.
        scale: The mean and the deviation of its scores of train images.
        heat: The mean and the deviation of its heatmaps, if others have other units.
        provider: What provided the detector plugin.
    """

    detector: str
    detector_params: Mapping[str, Any]
    share: float
    scale: tuple[float, float]
    heat: tuple[float, float]
    provider: str


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
        candidate: Ids of the candidates that it is made of, the updates they were trained for, and the share of each.
        made_of: The candidates that it is made of, in words, with the share of each.
        parts: What its score is made of, in words, with the share of each part; empty if the detector cannot say.
        members: If it is an ensemble, its detectors; their files are in the folder `members`, by their place here.
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
    made_of: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    members: Sequence[MemberRecord] = ()
    warnings: Sequence[str] = ()
    calibrated_on: str | None = None
    provider: str = ""
    plugins: Sequence[str] = ()


MEMBER_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("detector", "provider"), str),
    "detector_params": dict,
    "share": float,
    **dict.fromkeys(("scale", "heat"), (list, tuple)),
}
"""What a model says of each member."""

MODEL_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("detector", "augmentation", "selector", "candidate", "provider"), str),
    **dict.fromkeys(("detector_params", "params", "made_of", "parts"), dict),
    "image_size": (int, list),
    "heat_scale": (list, type(None)),
    "heat_threshold": (float, type(None)),
    **dict.fromkeys(("members", "warnings", "plugins"), (list, tuple)),
    "calibrated_on": (str, type(None)),
}
"""What the values of `model.json` are."""


def save_model(
    run: RunFolder,
    record: ModelRecord,
    members: Sequence[Callable[[Path], None]],
    *,
    held_out: Array | None,
    heatmaps: Array | None,
) -> None:
    """Write the model of a run. If the same model was recalibrated before, it stays so.

    Args:
        run: The run folder.
        record: What is known of the model.
        members: What writes each of its detectors into a folder; several are the members of an ensemble.
        held_out: Its scores of the images that were kept out.
        heatmaps: Its heatmaps of the test images, for the report; None for those of its only candidate.
    """
    with contextlib.suppress(StoreError):  # there is none yet, or it is damaged
        before = load_model_record(run)
        if before.candidate == record.candidate and before.calibrated_on is not None:
            record, held_out = replace(record, calibrated_on=before.calibrated_on), load_held_out(run)
    with finished_folder(run.model) as folder:
        for place, write in enumerate(members):
            target = member_folder(folder, place) if record.members else folder
            target.mkdir(parents=True, exist_ok=True)
            write(target)
        (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
        for name, values in ((HELD_OUT, held_out), (HEATMAPS, heatmaps)):
            if values is not None:
                np.save(folder / name, values)


def member_folder(model: Path, place: int) -> Path:
    """Where the files of an ensemble's member are."""
    return model / "members" / str(place)


def load_held_out(run: RunFolder) -> Array | None:
    """The scores of good images that the model was not trained on; None if there are none."""
    return load_if_any(run.model, HELD_OUT)


def load_model_heatmaps(run: RunFolder) -> Array | None:
    """How unusual each place of each test image is to the model; None if it cannot say."""
    return load_if_any(run.model, HEATMAPS)


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
            for name, kinds in MEMBER_KINDS.items():
                if not isinstance(member[name], kinds):  # type: ignore[index]
                    raise TypeError(f"{name} of a member is {shown(member[name])}")  # type: ignore[index]
        return replace(record, members=[MemberRecord(**member) for member in record.members])  # type: ignore[arg-type]
