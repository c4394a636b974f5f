"""A pretrained backbone, cut into a frozen part and last stages to be trained."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.models._features import FeatureListNet
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

import dsv_plugins.backbones
from dsv_plugins import InputError
from dsv_plugins.detectors.weights import DEFAULT_BACKBONE
from dsv_plugins.transforms import best_device, resized

__all__ = ["FINE_PLACES", "PLACES", "POOLED", "STAGE_INPUT", "Backbone", "FrozenFeatures", "load_backbone"]

FrozenFeatures = Mapping[str, Tensor]
"""What the frozen part makes of images, by the names below; the first dimension is that of the images."""

PLACES = "places"
"""Features of strides 16 and 8 at every place of stride 8: (images, height, width, features), half precision."""
FINE_PLACES = "fine_places"
"""Features of stride 4 at the same places: (images, height, width, features), half precision."""
POOLED = "pooled"
"""The map of stride 16, averaged: (images, features)."""
STAGE_INPUT = "stage_input"
"""What goes into the trained stages: (images, channels, height, width), half precision."""

COARSE, MIDDLE, FINE = LOCAL_STRIDES = 16, 8, 4
BATCH = 4
"""Images at once on a CPU: their activations stay in the cache. With 32 it takes a third longer and 300 MB more."""
FOLDING_ERROR = 1e-2
"""Largest change of an output, relative to the largest, that folding may make; more means that it went wrong."""


@functools.lru_cache(maxsize=1)
def load_backbone(name: str, weights: str | None, image_size: int, trained_stages: int) -> Backbone:
    """The backbone; a process that trains one candidate after the other loads it once."""
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and replaced at once
        return Backbone(name, weights, image_size, trained_stages)


class Backbone(nn.Module):
    """The frozen network, and copies of its last stages.

    Args:
        name: "efficientnet-lite0" or the name of a timm model.
        weights: A safetensors file; None for the model's own.
        image_size: Height and width to which images are resized.
        trained_stages: How many of the last stages are to be trained.

    Raises:
        InputError: The model has no maps at strides 4, 8 and 16, or fewer stages.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, weights: str | None, image_size: int, trained_stages: int) -> None:
        super().__init__()
        self.image_size = image_size
        model = _create(name, weights)
        for key in ("mean", "std"):
            self.register_buffer(key, torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1))
        strides = {info["module"].replace(".", "_"): info["reduction"] for info in model.feature_info}
        network = _stages(model)
        names = list(network)
        if not set(LOCAL_STRIDES) <= set(strides.values()):
            raise InputError(
                f"the backbone {name!r} has maps at strides {sorted(set(strides.values()))}, and the detector needs "
                f"{', '.join(map(str, sorted(LOCAL_STRIDES)))}; choose a convolutional network such as resnet18"
            )
        if trained_stages > len(names):
            raise InputError(f"trained_stages is {trained_stages}, and {name!r} has {len(names)} stages")
        _fold_batch_norms(network)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        self._network = network.to(memory_format=torch.channels_last).eval()
        self._strides = strides
        self._first_trained = names[-trained_stages]

    @torch.inference_mode()
    def features(self, images: Tensor) -> dict[str, Tensor]:
        """What the frozen part makes of images, of any size, as uint8 or in [0, 1]; on the CPU."""
        device = best_device()
        self.to(device)
        collected: dict[str, Tensor] = {}
        for start in range(0, len(images), BATCH):
            batch = resized(images[start : start + BATCH].to(device), self.image_size)
            for name, rows in self(batch).items():
                if name not in collected:
                    collected[name] = torch.empty((len(images), *rows.shape[1:]), dtype=rows.dtype)
                collected[name][start : start + len(batch)] = rows
        return collected

    def trained_part(self) -> nn.Sequential:
        """A copy of the last stages, with the pretrained weights, ready to be trained."""
        names = list(self._network)
        part = nn.Sequential(*(self._network[name] for name in names[names.index(self._first_trained) :]))
        return copy.deepcopy(part).cpu().requires_grad_(True)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """The frozen features of images in [0, 1] of the right size."""
        maps: dict[int, Tensor] = {}
        result: dict[str, Tensor] = {}
        values = ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        for stage, module in self._network.items():
            if stage == self._first_trained:
                result[STAGE_INPUT] = values
            if STAGE_INPUT in result and len(maps) == len(LOCAL_STRIDES):
                break
            values = module(values)
            if self._strides.get(stage) in LOCAL_STRIDES:
                maps[self._strides[stage]] = values
        halved = {name: features.half() for name, features in {**result, **_places(maps)}.items()}
        return {**halved, POOLED: maps[COARSE].mean(dim=(2, 3))}


def _create(name: str, weights: str | None) -> Any:
    own = dsv_plugins.backbones.EFFICIENTNET_LITE0 if name == DEFAULT_BACKBONE else name
    overlay = None if weights is None else {"file": weights}
    return timm.create_model(own, pretrained=True, pretrained_cfg_overlay=overlay)


def _stages(model: Any) -> FeatureListNet:
    """The network up to its last stage, as a sequence; timm has containers of stages, or names them one by one."""
    count = len(model.feature_info)
    in_container = any("." in info["module"] for info in model.feature_info)
    return FeatureListNet(model, out_indices=tuple(range(count)), flatten_sequential=in_container)


def _places(maps: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """The features of each place of stride 8, averaged over 3×3 places."""
    height, width = maps[MIDDLE].shape[-2:]
    coarse = functional.interpolate(maps[COARSE], size=(height, width), mode="bilinear", align_corners=False)
    fine = functional.adaptive_avg_pool2d(maps[FINE], (height, width))

    def averaged(values: Tensor) -> Tensor:
        return functional.avg_pool2d(values, 3, 1, 1, count_include_pad=False).permute(0, 2, 3, 1)

    return {PLACES: averaged(torch.cat([coarse, maps[MIDDLE]], dim=1)), FINE_PLACES: averaged(fine)}


def _fold_batch_norms(network: nn.Module) -> None:
    """Make each batch norm a part of the convolution before it: half the time, and its statistics cannot change."""
    sample = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    network.eval()
    original = copy.deepcopy(network)
    for parent in list(network.modules()):
        children = list(parent.named_children())
        for (_, convolution), (name, norm) in itertools.pairwise(children):
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                assert norm.running_mean is not None
                assert norm.running_var is not None
                folded = fuse_conv_bn_weights(
                    convolution.weight,
                    convolution.bias,
                    norm.running_mean,
                    norm.running_var,
                    norm.eps,
                    norm.weight,
                    norm.bias,
                )
                convolution.weight, convolution.bias = folded
                setattr(parent, name, getattr(norm, "act", nn.Identity()))  # timm's norms have an activation behind
    with torch.inference_mode():
        expected, found = original(sample)[-1], network(sample)[-1]
    if (expected - found).abs().max() > FOLDING_ERROR * expected.abs().max():
        raise InputError("the batch norms of this backbone do not follow their convolutions; choose another backbone")
