"""What images that are not square lose: as a rectangle, squeezed into a square, or padded to one.

    python tests/benchmarks/bench_aspect.py mvtec/grid mvtec/wood ... [--out bench-aspect]

No task of the benchmark has such images, so a band of each square image is cut out: the middle two fifths of its
height. A defective image counts if its mask reaches into the band.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from dsv_plugins.cli.main import main

BAND = (0.3, 0.7)
FORMS = ("rectangle", "squeezed", "padded")
LEAST_MASK = 20
"""Pixels of a defect that must be in the band."""


def band(image: Image.Image) -> Image.Image:
    top, bottom = (round(share * image.height) for share in BAND)
    return image.crop((0, top, image.width, bottom))


def formed(image: Image.Image, form: str) -> Image.Image:
    side = image.width
    if form == "squeezed":
        return image.resize((side, side), Image.Resampling.BILINEAR)
    if form == "padded":
        square = Image.new(image.mode, (side, side))
        square.paste(image, (0, (side - image.height) // 2))
        return square
    return image


def write_tasks(task: Path, out: Path) -> None:
    """Write the task in each form, without the defects that the band does not have."""
    for file in sorted([*task.glob("train/good/*"), *task.glob("test/*/*")]):
        kind = file.parent.name
        mask = task / "ground_truth" / kind / f"{file.stem}_mask.png"
        if kind != "good" and (not mask.exists() or np.count_nonzero(band(Image.open(mask))) < LEAST_MASK):
            continue
        for form in FORMS:
            target = out / form / task.name / file.relative_to(task).with_suffix(".png")
            target.parent.mkdir(parents=True, exist_ok=True)
            formed(band(Image.open(file).convert("RGB")), form).save(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bench-aspect"))
    options = parser.parse_args()
    for task in options.tasks:
        write_tasks(task, options.out / "tasks")
    for form in FORMS:
        folders = [str(options.out / "tasks" / form / task.name) for task in options.tasks]
        arguments = ["--augmentations", "cutpaste", "--holdout", "0.15", "--out", str(options.out / form)]
        if code := main(["bench", *folders, *arguments]):
            raise SystemExit(code)
    for form in FORMS:
        cells = json.loads((options.out / form / "bench.json").read_text())["cells"]
        print(form, {cell["task"]: round(cell["auc"]["Weighted by cosine"], 3) for cell in cells})
