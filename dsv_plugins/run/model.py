"""The model of a finished study: one trained detector, or several as one, ready to judge new images."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dsv_plugins.calibration import Calibration
from dsv_plugins.drift import FALSE_ALARM_RATE, Drift
from dsv_plugins.errors import DSVError, InputError, PluginError, StoreError, TrainingError, UnknownPluginError
from dsv_plugins.pixels import pixels_of
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.plugins.plugin_errors import wrap_errors
from dsv_plugins.plugins.records import DetectorEncoderPlugin
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.run.artifacts import MODEL_HEATMAPS, load_if_any
from dsv_plugins.run.ensemble import Ensemble, Member, frozen_part_name
from dsv_plugins.run.folder import MANIFEST, RunFolder, finished_folder, json_text
from dsv_plugins.run.records import MODEL_RECORD, ModelRecord, read_model
from dsv_plugins.run.tiles import Tiles
from dsv_plugins.transforms import mean_colours

__all__ = [
    "NO_CALIBRATION",
    "Model",
    "Prediction",
    "Trained",
    "checked_rate",
    "load",
    "member_folder",
    "save_model",
]

Array = NDArray[Any]
Trained = DetectorEncoder | Ensemble
"""What judges new images."""
Image = Path | str | PIL.Image.Image | Array | Tensor
Images = Image | Sequence[Image]
"""What can be judged."""

HELD_OUT, HELD_OUT_LIGHT = "held-out-scores.npy", "held-out-light.npy"
NO_CALIBRATION = (
    "no good images were held out; give good images that were not trained on to "
    "`dsv score RUN IMAGES --recalibrate FOLDER`"
)


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a model makes of images, a row for each.

    Attributes:
        scores: Higher for more anomalous.
        p_values: The share of good images that look at least as anomalous; None if the model is not calibrated.
        anomalous: Whether the p-value is at most the false-alarm rate; None if the model is not calibrated.
        heatmaps: How unusual each patch is: (images, height, width); None if the detector cannot say.
        light: The brightness of each image, from 0 to 255.
    """

    scores: Tensor
    p_values: Tensor | None
    anomalous: Tensor | None
    heatmaps: Tensor | None
    light: Tensor


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
        light: The brightness of the images of the calibration, from 0 to 255; None if that is not known.
    """

    run: Path
    detector: Trained
    record: ModelRecord
    calibration: Calibration | None
    false_alarms: float | None
    changed: str = ""
    light: Array | None = None

    def predict(self, images: Images, *, heatmaps: bool = True, names: Sequence[object] = ()) -> Prediction:
        """Judge images, some hundred at a time, as `dsv score` judges their files.

        Args:
            images: A path, a PIL image, a uint8 array of shape (height, width, 3), a tensor of shape (3, height, width)
                as uint8 or from 0 to 1, or several of these; all of any size, RGB.
            heatmaps: Whether to say where they are unusual, too.
            names: What messages call each image, such as its file.

        Raises:
            InputError: An image cannot be read, is something else, or has other values.
            PluginError: The detector failed.
            TrainingError: It gives an image a score that is not finite.
        """
        pixels = pixels_of(images, self.record.image_size, self.record.levels)
        with wrap_errors(f"detector_encoder {self.record.detector!r}"):
            scores, heat, light = self._judged(pixels, heatmaps)
        for place, score in enumerate(scores.tolist()):
            if not math.isfinite(score):
                name = names[place] if names else f"image {place}"
                raise TrainingError(f"the detector gives {name} the score {score}, which no verdict can be made of")
        p_values = anomalous = None
        if self.calibration is not None:
            assert self.false_alarms is not None
            p_values = torch.from_numpy(self.calibration.p_values(scores))
            anomalous = torch.from_numpy(self.calibration.alarms(scores, self.false_alarms))
        return Prediction(scores, p_values, anomalous, heat, light)

    def drift(self, rate: float = FALSE_ALARM_RATE) -> Drift:
        """Return what tells if the images of a stream have changed; it needs about a dozen images that decide.

        Args:
            rate: The probability of a false alarm among 10,000 images, at most.
        """
        held_out = () if self.calibration is None else self.calibration.held_out
        return Drift(held_out, () if self.light is None else self.light, rate)

    def _judged(self, images: Tensor, heatmaps: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the scores of images, their heatmaps if they are asked for and there are any, and their brightness.

        Of images that are cut into tiles, one is judged at a time. Its score is the largest of its tiles'.
        """
        tiles, detector = self.record.tiles, self.detector
        if tiles is None:
            detector.prepare(images)
            return detector.score(images), detector.heatmap(images) if heatmaps else None, mean_colours(images)[:, -1]
        scores, heat, light = [], [], []
        for image in torch.split(images, 1):
            parts = tiles.cut(image)
            detector.prepare(parts)
            scores.append(detector.score(parts).max())
            light.append(mean_colours(parts, tiles.count)[:, -1])
            found = detector.heatmap(parts) if heatmaps else None
            heat += [] if found is None else [tiles.joined(found)]
        return torch.stack(scores), torch.cat(heat) if heat else None, torch.cat(light)

    def as_module(self) -> nn.Module | None:
        """Return the detector as one module that can be exported, from images of its size; None if it has none."""
        module = self.detector.as_module()
        return module if module is None or self.record.tiles is None else _Tiled(module, self.record.tiles)

    def recalibrated(self, scores: Tensor, light: Tensor, images: Path, false_alarms: float | None = None) -> Model:
        """Return the model with the scores of other good images to decide by, here and in the run folder.

        Args:
            scores: The scores of these images.
            light: Their brightness.
            images: Where they are.
            false_alarms: As for `load`.
        """
        calibration = Calibration(scores.numpy())
        rate = checked_rate(calibration, false_alarms)
        run = RunFolder(self.run)
        with run.locked():
            record = replace(read_model(run), calibrated_on=str(images.absolute()))
            with finished_folder(run.model) as folder:
                shutil.copytree(run.model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
                (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
                np.save(folder / HELD_OUT, calibration.held_out)
                np.save(folder / HELD_OUT_LIGHT, light.numpy())
        return replace(self, record=record, calibration=calibration, false_alarms=rate, light=light.numpy())


class _Tiled(nn.Module):
    """From whole images to what `Model.predict` makes of their tiles: scores, and heatmaps if the detector has any."""

    def __init__(self, detector: nn.Module, tiles: Tiles) -> None:
        super().__init__()
        self.detector, self.tiles = detector, tiles

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        scores, *heatmaps = self.detector(self.tiles.cut(images))
        return scores.reshape(-1, self.tiles.count).amax(dim=1), *map(self.tiles.joined, heatmaps)


def save_model(
    run: RunFolder,
    record: ModelRecord,
    members: Sequence[Callable[[Path], None]],
    *,
    held_out: Array | None,
    light: Array | None,
    heatmaps: Array | None,
) -> None:
    """Write the model of a run. If the same model was recalibrated or updated before, it stays so.

    Args:
        run: The run folder.
        record: What is known of the model.
        members: What writes each of its detectors into a folder; several are the members of an ensemble.
        held_out: Its scores of the held-out images.
        light: The brightness of these images.
        heatmaps: Its heatmaps of the test images, for the report; None for those of its only candidate.
    """
    with contextlib.suppress(StoreError):  # there is none yet, or it is damaged
        before = read_model(run)
        if before.candidate == record.candidate and before.history:
            return
        if before.candidate == record.candidate and before.calibrated_on is not None:
            record = replace(record, calibrated_on=before.calibrated_on)
            held_out, light = (load_if_any(run.model, name) for name in (HELD_OUT, HELD_OUT_LIGHT))
    with finished_folder(run.model) as folder:
        for place, write in enumerate(members):
            target = member_folder(folder, place) if record.members else folder
            target.mkdir(parents=True, exist_ok=True)
            write(target)
        (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
        for name, values in ((HELD_OUT, held_out), (HELD_OUT_LIGHT, light), (MODEL_HEATMAPS, heatmaps)):
            if values is not None:
                np.save(folder / name, values)


def load(run: Path | str, *, false_alarms: float | None = None, plugins: object = ()) -> Model:
    """Load the model of a finished study.

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
    record = read_model(folder)
    held_out = load_if_any(folder.model, HELD_OUT)
    calibration = None if held_out is None else Calibration(held_out)
    rate = checked_rate(calibration, false_alarms)
    detector, changed = _detector(folder, record, plugins)
    return Model(folder.path, detector, record, calibration, rate, changed, load_if_any(folder.model, HELD_OUT_LIGHT))


def _detector(folder: RunFolder, record: ModelRecord, plugins: object) -> tuple[Trained, str]:
    """Load the detector of a run, and say how its plugin has changed since it was trained."""
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


def member_folder(model: Path, place: int) -> Path:
    """Return where the files of an ensemble's member are."""
    return model / "members" / str(place)


def checked_rate(calibration: Calibration | None, false_alarms: float | None) -> float | None:
    """Return the rate of false alarms, or the default one, once it is known that it can be promised."""
    if calibration is None:
        if false_alarms is not None:
            raise InputError(f"no false-alarm rate can be promised: {NO_CALIBRATION}")
        return None
    rate = calibration.default_rate if false_alarms is None else false_alarms
    calibration.threshold(rate)  # raises if it cannot be promised
    return rate
