"""Judge new images with the detector that a finished study has chosen: score, p-value and verdict of each."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.progress import track

from dsv_plugins.cli.options import add_false_alarms, add_plugins, check_rates, check_target
from dsv_plugins.cli.output import note, tell
from dsv_plugins.cli.terminal import Terminal
from dsv_plugins.errors import InputError, StoreError, cell
from dsv_plugins.types import ANOMALOUS, NORMAL

if TYPE_CHECKING:
    from torch import Tensor

    from dsv_plugins.bench.labelled import Labelled
    from dsv_plugins.cli.heatmaps import BoxFile, PictureFolder
    from dsv_plugins.run.model import Model
    from dsv_plugins.run.records import ModelRecord

__all__ = ["add_arguments", "run"]

BATCH = 64
COLUMNS = ("file", "score", "p_value", "verdict")
Row = tuple[str, float, float | None, str | None]


class Scored(NamedTuple):
    """An image with its score and its brightness."""

    file: Path
    score: float
    light: float


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run", help="the run folder of `dsv select`")
    parser.add_argument("images", nargs="*", help="folders or files to judge")
    add_false_alarms(parser)
    add_plugins(parser)
    parser.add_argument(
        "--false-discoveries",
        type=float,
        help="instead: the share of good images among those called anomalous, for these images as one batch",
    )
    parser.add_argument(
        "--recalibrate",
        type=str,
        help="a folder of good images that were not trained on, to decide by from now on; nothing is trained",
    )
    parser.add_argument("--heatmaps", type=str, help="a folder for copies of the images with unusual patches in red")
    parser.add_argument("--masks", type=str, help="a folder for masks, white where an image is unusual")
    parser.add_argument("--maps", type=str, help="a folder for the heat of each pixel, as .npy of the image's size")
    parser.add_argument("--boxes", type=str, help="a JSON file for boxes around what is unusual, in the form of COCO")
    parser.add_argument(
        "--labels",
        type=str,
        help="say what the verdicts are worth, by a CSV file with the columns path and label, or by the names of the "
        "folders if this is the word folders; good, or the kind of the defect",
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave out files that cannot be read")
    parser.add_argument("--json", action="store_true", help="print JSON instead of CSV")
    parser.add_argument("--out", type=str, help="a file to write to, instead of the terminal")


def run(arguments: Namespace) -> int:
    """Judge the images, and print one line for each."""
    from dsv_plugins.run.model import load

    files = _files(arguments)
    # A rate may need the new calibration, so that it is checked after that.
    rate = None if arguments.recalibrate else arguments.false_alarms
    model = load(arguments.run, false_alarms=rate, plugins=arguments.plugins)
    labels = _labels(arguments.labels, files)
    pictures = _heat_files(arguments, model)
    if arguments.recalibrate:
        model = _recalibrated(model, arguments)
    _tell(model, arguments)
    if not files:
        return 0
    rows = list(_scored(model, files, skip_bad=arguments.skip_bad, pictures=pictures))
    if not rows:
        tell("dsv score: none of the images can be read")
        return 1
    judged = _judged(rows, model, arguments.false_discoveries)
    _tell_of_drift(model, rows)
    known = None if labels is None else _known(judged, rows, labels)
    text = _rendered(judged, known, as_json=arguments.json)
    if arguments.out is not None:
        from dsv_plugins.run.folder import write_text

        try:
            write_text(Path(arguments.out), text)  # in one step: an older file stays whole until then
        except StoreError:
            Terminal().write(text)  # what is computed is not lost
            raise
    else:
        Terminal().write(text)
    for folder in pictures:
        folder.check()
    if known is not None and not arguments.json:
        for line in known.lines():
            tell(line)
    return 0


def _files(arguments: Namespace) -> list[Path]:
    """Return the images to judge. All of the call is checked here, before anything is loaded."""
    from dsv_plugins.data.images import find_images

    if arguments.false_alarms is not None and arguments.false_discoveries is not None:
        raise InputError("give --false-alarms or --false-discoveries, not both")
    check_rates(arguments, "false_alarms", "false_discoveries")
    check_target(arguments.out)
    check_target(arguments.boxes)
    if not arguments.images and not arguments.recalibrate:
        raise InputError("give folders or files to judge")
    given = [Path(name) for name in arguments.images]
    # What is there and no folder counts as a file. If it is none, as a broken link, that shows when it is read.
    return [
        file
        for path in given
        for file in ([path] if os.path.lexists(path) and not path.is_dir() else find_images(path, note))
    ]


def _heat_files(arguments: Namespace, model: Model) -> list[PictureFolder | BoxFile]:
    """Return what the call asks to be written of heatmaps, made before anything is scored."""
    from dsv_plugins.cli.heatmaps import BoxFile, PictureFolder, heat_of_pixels, mask_above, overlay_of

    asked = [name for name in ("heatmaps", "maps", "masks", "boxes") if arguments[name]]
    scale, threshold, levels = model.record.heat_scale, model.record.heat_threshold, model.record.levels
    if scale is None:
        if asked:
            note(f"the detector {model.record.detector!r} has no heatmaps, so none are written")
        return []
    draw = {"heatmaps": overlay_of(scale), "maps": heat_of_pixels}
    if threshold is not None:
        draw["masks"] = mask_above(threshold)
    elif {"masks", "boxes"} & set(asked):
        raise InputError(
            f"there are no {'masks' if arguments.masks else 'boxes'} without a threshold for heat, and the study held "
            "no good images out; select again with --holdout 0.2"
        )
    files: list[PictureFolder | BoxFile] = [
        PictureFolder(Path(arguments[name]), draw[name], f"--{name}", levels) for name in asked if name in draw
    ]
    if arguments.boxes and threshold is not None:
        files.append(BoxFile(Path(arguments.boxes), threshold, levels))
    return files


def _recalibrated(model: Model, arguments: Namespace) -> Model:
    """Let the scores of other good images decide, and say what that changes."""
    import torch

    from dsv_plugins.data.images import find_images, survey

    folder = Path(arguments.recalibrate)
    found, unreadable = survey(find_images(folder, note))
    trained_on = set(model.record.trained_on)
    known = [file.path for file in found if file.short_digest in trained_on]
    if known:
        raise InputError(
            f"{len(known)} of the {len(found)} images of {folder} were trained on, such as {known[0]}; they have lower "
            "scores than new images, so that good ones would be flagged; give good images that were not trained on"
        )
    different = list({file.digest: file.path for file in found}.values())  # equal scores would promise too much
    if len(different) < len(found):
        note(f"{len(found) - len(different)} of the {len(found)} images of {folder} are copies, and count once")
    if arguments.false_alarms is None and model.false_alarms is not None:
        _check_enough(len(different), model.false_alarms, folder)
    files = [*different, *(file.path for file in unreadable)]  # what cannot be read is told of when it is decoded
    _, scores, light = zip(*_scored(model, files, skip_bad=arguments.skip_bad), strict=True)
    recalibrated = model.recalibrated(torch.tensor(scores), torch.tensor(light), folder, arguments.false_alarms)
    note(f"from now on, {len(scores)} images of {folder} decide{_still_flagged(model, recalibrated)}")
    return recalibrated


def _check_enough(images: int, rate: float, folder: Path) -> None:
    """Refuse images that are too few to decide at the rate at which others decide now, unless another is asked for."""
    from dsv_plugins.calibration import images_for, lowest_rate

    lowest = lowest_rate(images)
    if lowest > rate:
        raise InputError(
            f"{images} images in {folder} can decide at a false-alarm rate of {lowest:.2g} or more, and those that "
            f"decide now at {rate:.2g}; give {images_for(rate)} images or more, or --false-alarms {lowest:.2g}"
        )


def _still_flagged(before: Model, after: Model) -> str:
    """Say what becomes of the test images that were flagged; nothing if none were, or only the model is here."""
    import numpy as np

    from dsv_plugins.run.run import Run

    try:
        scores = Run(before.run).scores()["test"]
    except StoreError:
        return ""
    flagged, still = (
        each.calibration.alarms(scores, each.false_alarms or 0.0) if each.calibration else np.zeros(len(scores), bool)
        for each in (before, after)
    )
    if not flagged.any():
        return ""
    kept = int((flagged & still).sum())
    return (
        f"; of the {flagged.sum()} test images that were flagged, {kept} ({kept / flagged.sum():.0%}) still are, and "
        f"{int((still & ~flagged).sum())} of the {(~flagged).sum()} others are now"
    )


def _tell(model: Model, arguments: Namespace) -> None:
    """Say what stands behind the verdicts, if it is not what a user would expect."""
    from dsv_plugins.calibration import DEFAULT_FALSE_ALARMS
    from dsv_plugins.run.model import NO_CALIBRATION

    notes = [f"{model.changed}; its scores may differ"] if model.changed else []
    if model.calibration is None:
        if arguments.false_discoveries is not None:
            raise InputError(f"no false-discovery rate can be promised: {NO_CALIBRATION}")
        notes.append(f"no p-values and no verdicts: {NO_CALIBRATION}")
    else:
        count = len(model.calibration.held_out)
        rate = model.false_alarms or 0.0
        if arguments.false_alarms is None and arguments.false_discoveries is None and rate > DEFAULT_FALSE_ALARMS:
            notes.append(f"{count} held-out images can promise no false-alarm rate below {rate:.3g}, which is used")
    for line in notes:
        note(line)


def _scored(
    model: Model, files: Sequence[Path], *, skip_bad: bool, pictures: Sequence[PictureFolder | BoxFile] = ()
) -> Iterator[Scored]:
    """The score and the brightness of each image; some are decoded while others are scored, to spare memory."""
    for batch, pixels in _decoded(files, model.record, skip_bad=skip_bad):
        found = model.predict(pixels, heatmaps=bool(pictures), names=batch)
        yield from map(Scored, batch, found.scores.tolist(), found.light.tolist())
        for folder in pictures:
            assert found.heatmaps is not None  # or it would have no scale
            folder.write(batch, found.heatmaps)


def _decoded(files: Sequence[Path], record: ModelRecord, *, skip_bad: bool) -> Iterator[tuple[list[Path], Tensor]]:
    """Yield the images, some at a time, with their files."""
    import numpy as np
    import torch

    from dsv_plugins.data.images import at_once, decode_all

    console = Console(stderr=True)
    outcomes = track(
        decode_all(files, record.image_size, note, levels=record.levels),
        description="scoring",
        total=len(files),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    batch: list[tuple[Path, Any]] = []
    most = at_once(BATCH, record.image_size)
    for place, (file, outcome) in enumerate(outcomes, start=1):
        if not isinstance(outcome, InputError):
            batch.append((file, outcome))
        elif skip_bad:
            tell(f"left out: {outcome}")
        else:
            raise InputError(f"{outcome}; remove it, or leave such files out with --skip-bad") from outcome
        if len(batch) == most or (batch and place == len(files)):
            yield [each for each, _ in batch], torch.from_numpy(np.stack([image for _, image in batch]))
            batch = []


def _judged(rows: Sequence[Scored], model: Model, false_discoveries: float | None) -> list[Row]:
    """Return a row of each column for each image."""
    from dsv_plugins.calibration import discoveries

    scores = [row.score for row in rows]
    if model.calibration is None:
        return [(str(row.file), row.score, None, None) for row in rows]
    p_values = model.calibration.p_values(scores)
    if false_discoveries is not None:
        anomalous = discoveries(p_values, false_discoveries)
    else:
        assert model.false_alarms is not None
        anomalous = model.calibration.alarms(scores, model.false_alarms)
    return [
        (str(row.file), row.score, p_value, ANOMALOUS if found else NORMAL)
        for row, p_value, found in zip(rows, p_values.tolist(), anomalous.tolist(), strict=True)
    ]


def _tell_of_drift(model: Model, rows: Sequence[Scored]) -> None:
    """Say once if the images have changed. Of several folders they come mixed: a camera names files by their time."""
    drift = model.drift()
    for row in sorted(rows, key=lambda row: row.file.name):
        if told := drift.add([row.score], [row.light]):
            note(f"{told} (seen by {row.file}, image {drift.images} of {len(rows)} in the order of their names)")


def _labels(source: str | None, files: Sequence[Path]) -> dict[Path, str] | None:
    """Return the labels that the call gives, read before anything is scored."""
    if source is None:
        return None
    from dsv_plugins.bench.labelled import labels_from

    return labels_from(source, files)


def _known(judged: Sequence[Row], rows: Sequence[Scored], labels: Mapping[Path, str]) -> Labelled:
    """Return what the labels say of the verdicts."""
    from dsv_plugins.bench.labelled import labelled

    has_verdicts = judged[0][-1] is not None
    flagged = [verdict == ANOMALOUS for *_, verdict in judged] if has_verdicts else None
    return labelled([row.score for row in rows], flagged, [labels.get(row.file) for row in rows])


def _rendered(judged: Sequence[Row], known: Labelled | None, *, as_json: bool) -> str:
    if as_json:
        images: object = [dict(zip(COLUMNS, row, strict=True)) for row in judged]
        content = images if known is None else {"images": images, "labels": asdict(known)}
        return f"{json.dumps(content, indent=2)}\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([cell(file), *("" if value is None else value for value in row)] for file, *row in judged)
    return text.getvalue()
