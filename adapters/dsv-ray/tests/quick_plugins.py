"""A detector that trains in milliseconds and leaves a mark of each training; drivers and workers have it installed."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dsv_plugins import AugmentationPlugin, DetectorEncoder, DetectorEncoderPlugin, hookimpl

NODE = "DSV_TEST_NODE"
MARKS = "DSV_TEST_MARKS"
PATIENCE_SECONDS = 120


class Shade:
    def __init__(self, size):
        self.size = size

    def __call__(self, images, *, generator):
        return images * (1 - self.size * torch.rand(len(images), 1, 1, 1, generator=generator))


class Quick(DetectorEncoder):
    """Random steps from seed and update, so that a training in parts equals one in a single go."""

    def __init__(self, updates=9, shared_updates=0):
        self.image_size, self.updates, self.shared_updates = 16, updates, shared_updates
        self.weights, self.made = torch.zeros(48, 4), 0

    def fit_shared_start(self, images, *, seed=0, progress=None):
        self.weights = torch.randn(self.weights.shape, generator=torch.Generator().manual_seed(seed))

    def fit(self, images, augmentation, *, updates=None, seed=0, progress=None):
        play(augmentation.size)
        pixels = self.pixels(images)
        for update in range(self.made, updates or self.updates):
            generator = torch.Generator().manual_seed(1000 * seed + update)
            step = torch.randn(self.weights.shape, generator=generator)
            shaded = self.pixels(augmentation(images.float() / 255, generator=generator))
            self.weights = self.weights + 0.1 * step * (shaded - pixels).abs().mean()
            if progress:
                progress(update + 1, self.updates, float(self.weights.abs().mean()))
        self.made = updates or self.updates

    def encode(self, images):
        return self.pixels(images) @ self.weights

    def score(self, images):
        return self.encode(images).norm(dim=1)

    def save(self, folder):
        save_file({"weights": self.weights, "made": torch.tensor(self.made)}, folder / "quick.safetensors")

    def load(self, folder):
        tensors = load_file(folder / "quick.safetensors")
        self.weights, self.made = tensors["weights"], int(tensors["made"])

    @staticmethod
    def pixels(images):
        floats = images if images.is_floating_point() else images.float() / 255
        return torch.nn.functional.adaptive_avg_pool2d(floats, 4).flatten(1)


def play(size):
    """Leave a mark, and do what the test wants done in the midst of a training."""
    again = any(mark["size"] == size for mark in marks())
    leave_mark(size)
    scene = Path(os.environ[MARKS], "scene")
    match scene.read_text() if scene.exists() else "":
        case "two at work":
            wait_until(lambda: len({mark["process"] for mark in marks()}) > 1)
        case "the first worker on 0.2 dies" if size == 0.2 and not again:
            os.kill(os.getpid(), signal.SIGKILL)
        case "node B never ends" if os.environ.get(NODE) == "B":
            time.sleep(PATIENCE_SECONDS)
        case "node B never ends":  # leave it something to do
            wait_until(lambda: any(mark["node"] == "B" for mark in marks()))
        case "0.2 never ends" if size == 0.2 and not again:
            time.sleep(PATIENCE_SECONDS)


def leave_mark(size):
    seen = Path(os.environ["DSV_TEST_DRIVER"]).exists()
    content = {"size": size, "process": os.getpid(), "node": os.environ.get(NODE, ""), "sees": seen}
    folder = Path(os.environ[MARKS])
    partial = folder / f".{uuid.uuid4().hex}"
    partial.write_text(json.dumps(content))
    partial.rename(folder / f"{uuid.uuid4().hex}.json")


def marks():
    """Every training so far, as each of them wrote it down when it began."""
    return [json.loads(file.read_text()) for file in Path(os.environ[MARKS]).glob("*.json")]


def wait_until(condition, seconds=PATIENCE_SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time")
        time.sleep(0.05)


@hookimpl
def augmentation():
    return AugmentationPlugin("shade", Shade, space={"size": [0.1, 0.2, 0.3, 0.4]})


@hookimpl
def detector_encoder():
    return DetectorEncoderPlugin("quick", Quick)
