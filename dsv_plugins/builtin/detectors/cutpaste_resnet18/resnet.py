"""ResNet18 of any width, with torchvision's blocks and torchvision's names."""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import ResNet18_Weights
from torchvision.models.resnet import BasicBlock

from dsv_plugins import InputError

__all__ = ["ResNet18"]

STAGES = 4
BLOCKS_PER_STAGE = 2


class ResNet18(nn.Module):
    """The pooled features of a ResNet18 whose first stage has `width` channels.

    At width 64 it is torchvision's resnet18 without the classifier, under the same parameter names.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.features = width * 2 ** (STAGES - 1)
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, width * 2, stride=2)
        self.layer3 = _stage(width * 2, width * 4, stride=2)
        self.layer4 = _stage(width * 4, width * 8, stride=2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised RGB images to vectors of width `features`."""
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        pooled: Tensor = hidden.mean(dim=(2, 3))  # unlike adaptive pooling, deterministic on every device
        return pooled

    def load_imagenet(self) -> None:
        """Load torchvision's ImageNet weights, from its cache or the network."""
        weights = ResNet18_Weights.IMAGENET1K_V1
        try:
            with contextlib.redirect_stdout(sys.stderr):  # torch announces a download on the standard output
                state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
            self.load_state_dict({name: value for name, value in state.items() if not name.startswith("fc.")})
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            name = weights.url.rpartition("/")[2]
            folder = Path(torch.hub.get_dir(), "checkpoints")
            reason = " ".join(str(error).split())
            raise InputError(
                f"the pretrained weights {name} cannot be downloaded or read ({reason:.200}); "
                f"put the file from {weights.url} into {folder}, or train with pretrained=False"
            ) from error


def _stage(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    shortcut = None
    if stride != 1 or in_channels != channels:
        shortcut = nn.Sequential(
            nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(channels)
        )
    following = [BasicBlock(channels, channels) for _ in range(BLOCKS_PER_STAGE - 1)]
    return nn.Sequential(BasicBlock(in_channels, channels, stride, shortcut), *following)
