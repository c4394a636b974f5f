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
from torch.nn.utils.fusion import fuse_conv_bn_weights

import dsv_plugins.backbones
from dsv_plugins import InputError
from dsv_plugins.builtin.detectors.weights import DEFAULT_BACKBONE
from dsv_plugins.transforms import best_device, resized

__all__ = ["STAGE_INPUT", "Backbone", "Maps", "load_backbone"]

Maps = Mapping[str, Tensor]
"""What the frozen part makes of images, by name: half precision, (images, channels, height, width)."""

LOCAL_STRIDES = (4, 8, 16)
STAGE_INPUT = "stage_input"
BATCH = 16
"""Images at once on a CPU. Activations of 8 to 16 stay in the cache, which makes them twice as fast as 64."""
FOLDING_ERROR = 1e-2
"""Largest change of an output, relative to the largest, that folding may make; more means that it went wrong."""


@functools.lru_cache(maxsize=1)
def load_backbone(name: str, weights: str | None, image_size: int, trained_stages: int) -> Backbone:
    """The backbone; a process that trains one candidate after the other loads it once."""
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and replaced at once
        return Backbone(name, weights, image_size, trained_stages)


class Backbone:
    """The frozen network, and copies of its last stages.

    Args:
        name: "efficientnet-lite0" or the name of a timm model.
        weights: A safetensors file; None for the model's own.
        image_size: Height and width to which images are resized.
        trained_stages: How many of the last stages are to be trained.

    Raises:
        InputError: The model has no maps at strides 4, 8 and 16, or fewer stages.
    """

    def __init__(self, name: str, weights: str | None, image_size: int, trained_stages: int) -> None:
        self.image_size = image_size
        model = _create(name, weights)
        config = model.pretrained_cfg
        self._mean, self._std = (torch.tensor(config[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
        strides = {info["module"].replace(".", "_"): info["reduction"] for info in model.feature_info}
        network = _stages(model)
        names = list(network)
        if not set(LOCAL_STRIDES) <= set(strides.values()):
            raise InputError(
                f"the backbone {name!r} has maps at strides {sorted(set(strides.values()))}, and the detector needs "
                f"{', '.join(map(str, LOCAL_STRIDES))}; choose a convolutional network such as resnet18"
            )
        if trained_stages > len(names):
            raise InputError(f"trained_stages is {trained_stages}, and {name!r} has {len(names)} stages")
        _fold_batch_norms(network)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        self._network = network.to(memory_format=torch.channels_last).eval()
        self._kept = {f"stride{strides[name]}": name for name in names if strides.get(name) in LOCAL_STRIDES}
        self._first_trained = names[-trained_stages]

    @torch.inference_mode()
    def maps(self, images: Tensor) -> dict[str, Tensor]:
        """What the frozen part makes of images, of any size, as uint8 or in [0, 1]; on the CPU."""
        device = best_device()
        self._network.to(device)
        mean, std = self._mean.to(device), self._std.to(device)
        collected: dict[str, Tensor] = {}
        for start in range(0, len(images), BATCH):
            batch = resized(images[start : start + BATCH].to(device), self.image_size)
            outputs = self._forward(((batch - mean) / std).contiguous(memory_format=torch.channels_last))
            for name, output in outputs.items():
                if name not in collected:
                    shape = (len(images), *output.shape[1:])
                    collected[name] = torch.empty(shape, dtype=torch.float16, memory_format=torch.channels_last)
                collected[name][start : start + len(batch)] = output
        return collected

    def trained_part(self) -> nn.Sequential:
        """A copy of the last stages, with the pretrained weights, ready to be trained."""
        names = list(self._network)
        part = nn.Sequential(*(self._network[name] for name in names[names.index(self._first_trained) :]))
        return copy.deepcopy(part).cpu().requires_grad_(True)

    def _forward(self, values: Tensor) -> dict[str, Tensor]:
        kept: dict[str, Tensor] = {}
        names = {stage: name for name, stage in self._kept.items()}
        for stage, module in self._network.items():
            if stage == self._first_trained:
                kept[STAGE_INPUT] = values
            if len(kept) == len(names) + 1:
                break
            values = module(values)
            if stage in names:
                kept[names[stage]] = values
        return kept


def _create(name: str, weights: str | None) -> Any:
    own = dsv_plugins.backbones.EFFICIENTNET_LITE0 if name == DEFAULT_BACKBONE else name
    overlay = None if weights is None else {"file": weights}
    return timm.create_model(own, pretrained=True, pretrained_cfg_overlay=overlay)


def _stages(model: Any) -> FeatureListNet:
    """The network up to its last stage, as a sequence; timm has containers of stages, or names them one by one."""
    count = len(model.feature_info)
    in_container = any("." in info["module"] for info in model.feature_info)
    return FeatureListNet(model, out_indices=tuple(range(count)), flatten_sequential=in_container)


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
