"""A study that takes a second: an augmentation that brightens, and a detector that looks at brightness only."""

from __future__ import annotations

import torch
from safetensors.torch import load_file, save_file

from dsv_plugins import AugmentationPlugin, DetectorEncoder, DetectorEncoderPlugin, hookimpl


class Brighten:
    """Adds `strength` to every pixel."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def __call__(self, images, *, generator):
        return (images + self.strength).clamp(0, 1)


class Brightness(DetectorEncoder):
    """Embeds an image as its mean brightness, from 0 to 1, and scores it by its distance from that of the train set."""

    def fit(self, images, augmentation, *, updates=None, seed=0, progress=None):
        self.mean = self.encode(images).mean()

    def encode(self, images):
        images = images if images.is_floating_point() else images.float() / 255
        return images.mean((1, 2, 3))[:, None]

    def score(self, images):
        return (self.encode(images)[:, 0] - self.mean).abs()

    def save(self, folder):
        save_file({"mean": self.mean}, folder / "mean.safetensors")

    def load(self, folder):
        self.mean = load_file(folder / "mean.safetensors")["mean"]


class BrightnessPlugins:
    @hookimpl
    def augmentation(self):
        return AugmentationPlugin("brighten", Brighten, space={"strength": [0.1, 0.2, 0.4]})

    @hookimpl
    def detector_encoder(self):
        return DetectorEncoderPlugin("brightness", Brightness)


SETTINGS = {"augmentation": "brighten", "detector": "brightness", "executor": "serial", "image_size": 16}


def grey_images(count: int, seed: int) -> torch.Tensor:
    """Images of noise, all of nearly the same brightness."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(60, 70, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
