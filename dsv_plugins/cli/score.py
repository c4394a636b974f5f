"""Score new images with the detector that a finished study has chosen; higher is more anomalous."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["add_arguments", "run"]

BATCH = 64


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run", help="the run folder of `dsv select`")
    parser.add_argument("images", nargs="+", help="folders or files to score")
    parser.add_argument("--skip-bad", action="store_true", help="leave out files that cannot be read")
    parser.add_argument("--json", action="store_true", help="print JSON instead of CSV")
    parser.add_argument("--out", type=str, help="a file to write to, instead of the terminal")
    parser.add_argument("--heatmaps", type=str, help="a folder for copies of the images with unusual places in red")


def run(arguments: Namespace) -> int:
    """Score the images, and print one line for each."""
    from dsv_plugins.cli.heatmaps import HeatmapFolder
    from dsv_plugins.data.images import find_images
    from dsv_plugins.hooks.registry import build_registry
    from dsv_plugins.study.model import load_model

    folder = Path(arguments.run)
    given = [Path(name) for name in arguments.images]
    files = [file for path in given for file in ([path] if path.is_file() else find_images(path))]
    if arguments.out and not Path(arguments.out).absolute().parent.is_dir():
        raise InputError(f"{arguments.out} cannot be written, since its folder is not there; make it first")
    detector, record = load_model(folder, build_registry())
    heatmaps = None
    if arguments.heatmaps:
        if record.heat_scale is None:
            raise InputError(f"the detector {record.detector!r} has no heatmaps; leave --heatmaps out")
        heatmaps = HeatmapFolder(Path(arguments.heatmaps), record.heat_scale)
    scores: list[tuple[Path, float]] = []  # all, or nothing is written
    for batch, pixels in _decoded(files, record.image_size, skip_bad=arguments.skip_bad):
        scores += zip(batch, detector.score(pixels).tolist(), strict=True)
        if heatmaps is not None:
            heatmaps.write(batch, pixels, detector)
    with Path(arguments.out).open("w", newline="") if arguments.out else nullcontext(sys.stdout) as target:
        if arguments.json:
            json.dump([{"file": str(file), "score": score} for file, score in scores], target, indent=2)
            target.write("\n")
        else:
            writer = csv.writer(target)
            writer.writerow(["file", "score"])
            writer.writerows([str(file), repr(score)] for file, score in scores)
    return 0


def _decoded(files: Sequence[Path], size: int, *, skip_bad: bool) -> Iterator[tuple[list[Path], Tensor]]:
    """The images, some at a time, with their files."""
    import numpy as np
    import torch

    from dsv_plugins.data.images import decode

    for start in range(0, len(files), BATCH):
        decoded = []
        for file in files[start : start + BATCH]:
            try:
                decoded.append((file, decode(file, size)))
            except InputError as error:
                if not skip_bad:
                    raise InputError(f"{error}; remove it, or leave such files out with --skip-bad") from error
                print(f"left out: {error}", file=sys.stderr)
        if decoded:
            yield [file for file, _ in decoded], torch.from_numpy(np.stack([image for _, image in decoded]))
