"""The ways in which models of anomalib make pseudo-anomalies, as augmentations, and the way back into a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from anomalib.data.utils.generators.perlin import PerlinAnomalyGenerator, generate_perlin_noise
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.v2 import Normalize
from torchvision.transforms.v2.functional import pil_to_tensor

from dsv_plugins import Augmentation, AugmentationPlugin, InputError, build_registry, from_transform
from dsv_plugins.transforms import global_randomness

__all__ = ["FeatureSynthesis", "Synthesiser", "foundad_cutpaste", "make_augmentation", "perlin"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LEAST_SIDE = 32
"""Perlin noise of anomalib fails at random for smaller images."""
SCALES = (1, 2, 4, 8, 16, 32)
"""Of Perlin noise: from these anomalib draws for each image."""
CHANGED = 0.5 / 255
"""Half a step of eight-bit images: what differs by more was changed."""
DEFAULT_PATCH_SIZE = 0.08
"""In the middle of the areas of Li et al. (2021), 2 to 15 %."""


def make_augmentation(name: str, params: Mapping[str, Any] | None = None) -> Augmentation:
    """The named augmentation; one that needs a patch size and is given nothing gets one of middle size."""
    registry = build_registry()
    if params is None and "patch_size" in registry.get(AugmentationPlugin, name).space:
        params = {"patch_size": DEFAULT_PATCH_SIZE}
    return registry.create(AugmentationPlugin, name, params)


@dataclass(frozen=True)
class FeatureSynthesis:
    """Hyperparameters of pseudo-anomalies that a model makes out of features: images stay as they are.

    Attributes:
        settings: The values by name; `FeatureSpace.settings` says where a model keeps them.
    """

    settings: Mapping[str, float]

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the images."""
        return images


def perlin(
    blend_factor: float | Sequence[float], rotation: float, textures: str | None, scale: int | None
) -> Augmentation:
    """Perlin noise as Draem blends it in, in every image."""
    if textures is not None and not Path(textures).is_dir():
        raise InputError(f"textures is {textures!r}, which is no folder; give a folder of images, such as DTD's")
    if scale is not None and scale not in SCALES:
        raise InputError(f"scale is {scale!r}; give one of {', '.join(map(str, SCALES))}, or none to draw from these")
    settings: dict[str, Any] = {
        "anomaly_source_path": textures,
        "probability": 1.0,
        "blend_factor": _number_or_range("blend_factor", blend_factor),
        "rotation_range": (-rotation, rotation),
    }
    # It draws a threshold when it is made, which would differ between two objects with the same settings.
    with global_randomness() as seed_all:
        seed_all(0)
        generator = PerlinAnomalyGenerator(**settings) if scale is None else _ScaledPerlin(scale, **settings)
    return from_transform(_Perlin(generator))


class _ScaledPerlin(PerlinAnomalyGenerator):
    """The generator with noise of one scale: that of anomalib takes none and draws one for each image."""

    def __init__(self, scale: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale = scale

    def generate_perturbation(
        self,
        height: int,
        width: int,
        device: torch.device | None = None,
        anomaly_source_path: Path | str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What to blend in, and where: both (height, width, channels)."""
        noise = generate_perlin_noise(height, width, scale=(self.scale, self.scale), device=device)
        noise = self.perlin_rotation_transform(noise[None])
        # Coarse noise may be weak everywhere, and would change nothing.
        mask = (noise > min(0.5, float(noise.max()) / 2)).to(noise.dtype)
        if anomaly_source_path is None:
            source = (noise * 0.5 + 0.25).expand(3, -1, -1)
        else:
            texture = Image.open(anomaly_source_path).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            source = pil_to_tensor(texture).to(noise) / 255
        return (self.augmenters(source) * mask).permute(1, 2, 0), mask.permute(1, 2, 0)


@dataclass(frozen=True)
class _Perlin:
    """The generator for one image of any size, grey or in colour."""

    generator: PerlinAnomalyGenerator

    def __call__(self, image: Tensor) -> Tensor:
        channels, height, width = image.shape
        right, below = max(0, LEAST_SIDE - width), max(0, LEAST_SIDE - height)
        padded = functional.pad(image.float().expand(3, -1, -1)[None], (0, right, 0, below), mode="replicate")[0]
        augmented, _ = self.generator(padded)
        cropped: Tensor = augmented[:, :height, :width].to(image.dtype)
        return cropped if channels == len(cropped) else cropped.mean(dim=0, keepdim=True)


def foundad_cutpaste(area_ratio: float | Sequence[float], color_jitter: float) -> Augmentation:
    """FoundAD's CutPaste for images in [0, 1]."""
    from anomalib.models.image.foundad.components.cutpaste import CutPasteUnion

    union = CutPasteUnion(color_jitter=color_jitter)
    area = _number_or_range("area_ratio", area_ratio)
    union.cutpaste_normal.area_ratio = area if isinstance(area, tuple) else (area, area)
    return from_transform(_NormalisedCutPaste(union))


@dataclass(frozen=True)
class _NormalisedCutPaste:
    """FoundAD pastes in normalised images, with three channels."""

    union: Callable[[Tensor], Tensor]

    def __call__(self, image: Tensor) -> Tensor:
        mean, std = (image.new_tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
        pasted = self.union(((image.expand(3, -1, -1) - mean) / std)[None])[0] * std + mean
        return pasted if len(image) == len(pasted) else pasted.mean(dim=0, keepdim=True)


class Synthesiser(nn.Module):
    """An augmentation in the place where a model keeps its own generator of anomalies.

    Args:
        augmentation: What changes the images.
        probability: Share of the images to change.
        normalisation: What the pre-processor did to the images that arrive here, if it normalised them.
        masked: Whether to return the mask of what was changed beside the images.
    """

    def __init__(
        self, augmentation: Augmentation, *, probability: float, normalisation: Normalize | None, masked: bool
    ) -> None:
        super().__init__()
        self.augmentation = augmentation
        self.probability = probability
        self.normalisation = normalisation
        self.masked = masked

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The images with pseudo-anomalies, and where they are."""
        pixels = images if self.normalisation is None else _denormalised(images, self.normalisation)
        pixels = pixels.clamp(0, 1)
        # Drawn from the global generator, which the training seeds.
        generator = torch.Generator(images.device).manual_seed(int(torch.randint(2**31, ())))
        changed = self.augmentation(pixels, generator=generator)
        chosen = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < self.probability
        augmented = torch.where(chosen, changed, pixels)
        mask = ((augmented - pixels).abs().amax(dim=1, keepdim=True) > CHANGED).to(images.dtype)
        if self.normalisation is not None:
            augmented = self.normalisation(augmented)
        return (augmented, mask) if self.masked else augmented


def _denormalised(images: Tensor, normalisation: Normalize) -> Tensor:
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (normalisation.mean, normalisation.std))
    return images * std + mean


def _number_or_range(name: str, value: float | Sequence[float]) -> float | tuple[float, float]:
    """A float or a tuple: of anything else, such as a list from a YAML file, anomalib silently makes 0.5."""
    if isinstance(value, (int, float)):
        return float(value)
    low, high = (float(end) for end in value) if len(value) == 2 else (1.0, 0.0)
    if low > high:
        raise InputError(f"{name} is {value!r}; give a number, or the two ends of a range")
    return low, high
