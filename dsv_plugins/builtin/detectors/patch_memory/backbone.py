"""A pretrained network of timm that is never trained: from images to the features of their patches."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

import dsv_plugins.toolkit.backbones
from dsv_plugins import InputError
from dsv_plugins.toolkit.weights import DEFAULT_BACKBONE
from dsv_plugins.transforms import best_device, resized

__all__ = ["PATCHES", "POOLED", "SOURCE", "Backbone", "PatchFeatures", "load_backbone"]

PatchFeatures = Mapping[str, Tensor]
"""The features of images, by the names below; the first dimension is that of the images."""

PATCHES = "patches"
"""The features of patches, at the finest of the chosen layers: (images, height, width, features), half precision."""
POOLED = "pooled"
"""The deepest of the chosen layers, averaged over the image: (images, features)."""
SOURCE = "source"
"""The same of the images that these are augmented copies of, if they are any."""

DEFAULT_STRIDES = (8, 16)
"""Of the layers of a network whose maps get smaller. Finer ones are mostly noise, coarser ones miss small defects."""
DEFAULT_DEPTHS = (1 / 2, 3 / 4)
"""Of the layers of a network whose maps are all of one size, such as a vision transformer."""
BATCH = 4
"""Images at once on a CPU: their activations stay in the cache. With 32 it takes a third longer and 300 MB more."""
HALF_PRECISION = 2.0**13 + 1
"""Times this, and less what that adds, a number in single precision keeps the eleven digits of half precision."""
FOLDING_ERROR = 1e-2
"""Largest change of an output, relative to the largest, that folding may make; more means that it went wrong."""


@functools.lru_cache(maxsize=1)
def load_backbone(name: str, weights: str | None, layers: tuple[int, ...] | None) -> Backbone:
    """Return the backbone; a process that makes several detectors loads it once."""
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and replaced at once
        return Backbone(name, weights, layers)


class Backbone(nn.Module):
    """The network up to the deepest of the chosen layers.

    Args:
        name: "efficientnet-lite0" or the name of a timm model, convolutional or a transformer.
        weights: A safetensors file; None for the model's own.
        layers: Indices into timm's list of the model's feature maps; None for a choice by their strides.

    Raises:
        InputError: The model has no such layers, or gives no maps.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, weights: str | None, layers: Sequence[int] | None = None) -> None:
        super().__init__()
        maps, strides = _create(name, weights, layers)
        for key in ("mean", "std"):
            self.register_buffer(key, torch.tensor(maps.model.pretrained_cfg[key]).view(1, 3, 1, 1))
        self._network = _with_folded_batch_norms(maps).eval().requires_grad_(False)
        self._network.to(memory_format=torch.channels_last)
        self.stride = min(strides)

    @torch.inference_mode()
    def features(self, images: Tensor, shape: tuple[int, int]) -> dict[str, Tensor]:
        """Return the features of images, of any size, as uint8 or in [0, 1]; on the CPU.

        Args:
            images: Of shape (images, 1 or 3, height, width).
            shape: Height and width to which they are resized.
        """
        device = best_device()
        self.to(device)
        collected: dict[str, Tensor] = {}
        for start in range(0, len(images), BATCH):
            batch = resized(images[start : start + BATCH].to(device), shape).expand(-1, 3, -1, -1)
            for name, rows in self(batch).items():
                if name not in collected:
                    collected[name] = torch.empty((len(images), *rows.shape[1:]), dtype=rows.dtype)
                collected[name][start : start + len(batch)] = rows
        return collected

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the features of images in [0, 1], each patch averaged with its eight neighbours."""
        maps = self._maps((images - self.mean) / self.std)
        height, width = (max(each.shape[side] for each in maps) for side in (-2, -1))
        joined = torch.cat([_enlarged(each, height, width) for each in maps], dim=1)
        smooth = functional.avg_pool2d(joined, 3, 1, 1, count_include_pad=False)
        return {PATCHES: _in_half_precision(smooth.permute(0, 2, 3, 1)), POOLED: maps[-1].mean(dim=(2, 3))}

    def _maps(self, values: Tensor) -> list[Tensor]:
        """Return the maps of the chosen layers. A transformer is told the size, a multiple of its patches."""
        model = self._network.model
        if hasattr(model, "set_input_size"):
            height, width = (max(1, round(side / self.stride)) * self.stride for side in values.shape[-2:])
            if values.shape[-2:] != (height, width):
                values = functional.interpolate(values, size=(height, width), mode="bilinear")
            if tuple(model.patch_embed.img_size) != (height, width):
                model.set_input_size(img_size=(height, width))
        maps: list[Tensor] = self._network(values.contiguous(memory_format=torch.channels_last))
        return maps


def _create(name: str, weights: str | None, layers: Sequence[int] | None) -> tuple[_Maps, list[int]]:
    """Return the network and the strides of its chosen layers."""
    own = dsv_plugins.toolkit.backbones.EFFICIENTNET_LITE0 if name == DEFAULT_BACKBONE else name
    with torch.device("meta"):  # no weights: only what the model says of itself
        known = getattr(timm.create_model(own), "feature_info", None) or []
    strides = [info["reduction"] for info in known]
    chosen = _default_layers(strides) if layers is None else list(layers)
    if not chosen or not all(0 <= layer < len(strides) for layer in chosen):
        listed = ", ".join(f"{index} (stride {stride})" for index, stride in enumerate(strides)) or "none"
        raise InputError(f"layers is {chosen}, and the backbone {name!r} has {listed}; give layers of these")
    overlay = None if weights is None else {"file": weights}
    model = timm.create_model(own, pretrained=True, pretrained_cfg_overlay=overlay)
    return _Maps(model, chosen), [strides[layer] for layer in chosen]


class _Maps(nn.Module):
    """A network of timm up to the deepest of some layers, from normalised images to the maps of these layers."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        super().__init__()
        self.layers = model.prune_intermediate_layers(list(layers), prune_norm=True, prune_head=True)
        self.model = model

    def forward(self, images: Tensor) -> list[Tensor]:
        maps: list[Tensor] = self.model.forward_intermediates(
            images, indices=self.layers, output_fmt="NCHW", intermediates_only=True
        )
        return maps


def _default_layers(strides: Sequence[int]) -> list[int]:
    by_stride = {stride: layer for layer, stride in enumerate(strides)}
    if set(DEFAULT_STRIDES) <= by_stride.keys():
        return [by_stride[stride] for stride in DEFAULT_STRIDES]
    return sorted({max(0, round(depth * len(strides)) - 1) for depth in DEFAULT_DEPTHS}) if strides else []


def _in_half_precision(values: Tensor) -> Tensor:
    """Return values as they are stored. OpenVINO leaves a cast to half precision and back out, but no arithmetic."""
    if not torch.compiler.is_exporting():
        return values.half()
    far = values * HALF_PRECISION
    return far - (far - values)


def _enlarged(values: Tensor, height: int, width: int) -> Tensor:
    if values.shape[-2:] == (height, width):
        return values
    return functional.interpolate(values, size=(height, width), mode="bilinear", align_corners=False)


def _with_folded_batch_norms(network: _Maps) -> _Maps:
    """Make each batch norm a part of the convolution before it, which halves the time.

    A network whose batch norms do not follow their convolutions is returned as it was.
    """
    network.eval()
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return network
    sample = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    folded = copy.deepcopy(network)
    for parent in list(folded.modules()):
        children = list(parent.named_children())
        for (name, convolution), (norm_name, norm) in itertools.pairwise(children):
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(convolution, norm))
                setattr(parent, norm_name, getattr(norm, "act", nn.Identity()))  # timm's norms have one behind them
    with torch.inference_mode():
        expected, found = network(sample)[-1], folded(sample)[-1]
    return folded if (expected - found).abs().max() <= FOLDING_ERROR * expected.abs().max() else network
