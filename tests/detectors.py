"""Small detectors and images for the tests of the CutPaste ResNet18."""

from __future__ import annotations

import math

import torch

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    build_registry,
)

REGISTRY = build_registry()
TINY = {"image_size": 32, "width": 4, "updates": 30, "batch_size": 8, "learning_rate": 0.03, "shared_updates": 0}


def detector(**params):
    return REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18", {**TINY, **params})


def cutpaste(patch_size=0.1):
    return REGISTRY.create(AugmentationPlugin, "cutpaste", {"patch_size": patch_size})


def textures(count=20, *, seed=0, channels=3, height=32, width=32):
    """Stripes of random phase with a little noise, as uint8."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(height)[:, None] / height
    columns = torch.arange(width)[None, :] / width
    phases = 2 * math.pi * torch.rand(count, channels, 1, 1, generator=generator)
    waves = torch.sin(2 * math.pi * (3 * rows + columns) + phases)
    noise = torch.randn(count, channels, height, width, generator=generator)
    return (128 + 50 * waves + 5 * noise).clamp(0, 255).to(torch.uint8)


def with_defects(images):
    """A black and a white bar across the middle."""
    images = images.clone()
    third = images.shape[-1] // 3
    images[:, :, third : third + 5, 4:-4] = 0
    images[:, :, third + 5 : third + 8, 4:-4] = 255
    return images


def trained(images=None, *, until=None, seed=0, augmentation=None, **params):
    found = detector(**params)
    found.fit(textures() if images is None else images, augmentation or cutpaste(), updates=until, seed=seed)
    return found


def weights(found):
    return found.network().state_dict()


def same_weights(first, second):
    first, second = weights(first), weights(second)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class Recording:
    """Passes images on unchanged, and remembers what it was given."""

    def __init__(self):
        self.calls = []

    def __call__(self, images, *, generator):
        self.calls.append((images, generator.device, generator.initial_seed()))
        return images.clone()
