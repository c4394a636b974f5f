"""Calls of the command with bad images, bad configurations and bad flags."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from ground import Ground, select_arguments

VALUES = ["", "nan", "inf", "-1", "0", "x", "1e400", "[", "{}", "null", "a,,b", "\u2028", "../..", "-"]
FLAGS = [
    *("augmentation", "grid", "search", "search-params", "trials", "rungs", "rung-factor", "detector"),
    *("detector-params", "preset", "updates", "holdout", "selector", "seed", "executor", "executor-params"),
    *("workers", "timeout", "threads", "observers", "train", "test", "config"),
]
CONFIGS = [
    *("", "[", "- 1\n- 2", "seed: [1]", "seed: {a: 1}", "seed: 1e9999", "grid: 3", "grid: {patch_size: []}"),
    *("grid: {patch_size: .nan}", "grid: {patch_size: [.inf]}", "grid: {nothing: [1]}", "detector_params: []"),
    *(
        "selector: 7",
        "selector: []",
        "no_such_setting: 1",
        "config: other.yaml",
        "a: &a [*a]",
        "\t",
        "seed: !!python/x",
    ),
    *("holdout: 2", "holdout: -0.5", "rungs: 0", "rung_factor: 1", "timeout: -3", "threads: 0", "out: 3"),
    *("skip_bad: perhaps", "augmentation: {}", "search: null\nrungs: null", "detector: cutpaste-resnet19"),
]
IMAGES, TASKS, FLAG_CALLS = 30, 10, 50


def bad_calls(ground: Ground, dice: random.Random, folder: Path) -> Iterator[tuple[str, list[object]]]:
    """What is wrong with each call, and its arguments."""
    good = sorted((ground.task / "train/good").glob("*.png"))[0].read_bytes()
    for number in range(IMAGES):
        fault, content = _spoiled(good, dice)
        image = folder / f"bad{number}.{dice.choice(['png', 'jpg', 'bmp', 'tiff'])}"
        image.write_bytes(content)
        yield f"an image with {fault} to score", ["score", ground.run, image, "--json"]
    for number in range(TASKS):
        fault, content = _spoiled(good, dice)
        task = shutil.copytree(ground.task, folder / f"task{number}")
        dice.choice(sorted(task.rglob("*.png"))).write_bytes(content)
        more = dice.choice([[], ["--skip-bad"]])
        yield f"an image with {fault} to train on", select_arguments(task, folder / f"run{number}", "--json", *more)
    for number, text in enumerate(CONFIGS):
        file = folder / f"config{number}.yaml"
        file.write_text(text)
        out = folder / f"configured{number}"
        yield f"the configuration {text!r}", [*select_arguments(ground.task, out), "--config", file, "--json"]
    for number in range(FLAG_CALLS):
        flag, value = dice.choice(FLAGS), dice.choice(VALUES)
        out = folder / f"flagged{number}"
        yield f"--{flag} {value!r}", [*select_arguments(ground.task, out), f"--{flag}={value}", "--json"]
    yield "a run that is none", ["score", folder, ground.task, "--json"]
    yield "a run that is not there", ["report", folder / "nothing"]
    yield "rates beyond 1", ["score", ground.run, ground.task / "test", "--false-alarms", 7, "--json"]
    yield "no arguments", []
    yield "settings that are no JSON", ["select", ground.task, "--detector-params", json.dumps(TINY_TEXT)]


TINY_TEXT = "width=2"


def _spoiled(good: bytes, dice: random.Random) -> tuple[str, bytes]:
    kind = dice.choice(["no content", "a cut", "noise", "flips", "a huge header", "text"])
    if kind == "no content":
        return kind, b""
    if kind == "a cut":
        return kind, good[: dice.randrange(len(good))]
    if kind == "noise":
        return kind, dice.randbytes(200)
    if kind == "a huge header":
        return kind, good[:16] + b"\x00\x0f\xff\xff\x00\x0f\xff\xff" + good[24:]
    if kind == "text":
        return kind, b"this is not an image\n" * 9
    content = bytearray(good)
    for _ in range(dice.randint(1, 20)):
        content[dice.randrange(len(content))] = dice.randrange(256)
    return kind, bytes(content)
