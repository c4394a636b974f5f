"""The pretrained weights that models fetch: which network they are of, and whether they can be had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsv_plugins import InputError

__all__ = ["OUR_BACKBONE", "Backbone", "check_dsr"]

OUR_BACKBONE = "dsv_efficientnet_lite0"
"""The network of `patch-fusion`, which timm knows under this name; its weights come with a package."""
DSR_FILE = "vq_model_pretrained_128_4096.pckl"
DSR_HOST = "github.com"


@dataclass(frozen=True)
class Backbone:
    """The network of timm on which a model is built.

    Attributes:
        argument: The argument of the model that names it.
        default: The one that the model takes if nobody names another.
        with_ours: Further arguments, such as layers, that go with `dsv_efficientnet_lite0`; None if the model cannot be
            built on it.
        timm_name: From the model's name for a network to timm's.
    """

    argument: str
    default: str
    with_ours: Mapping[str, object] | None = None
    timm_name: Callable[[str], str] = field(default=str)

    def named(self, params: Mapping[str, object]) -> str:
        """The network that a model with these arguments is built on."""
        return str(params.get(self.argument, self.default))

    def check(self, params: Mapping[str, object]) -> None:
        """See that its weights are here or can be fetched, before any training.

        Raises:
            InputError: They cannot be had; the message says what to do.
        """
        from dsv_plugins.toolkit.weights import DEFAULT_BACKBONE, check_timm_weights, check_weights

        name = self.named(params)
        if name == OUR_BACKBONE:
            check_weights(DEFAULT_BACKBONE, None)
        elif params.get("pre_trained", True):
            advice = "copy them into the Hugging Face cache (HF_HOME) from a machine that is online"
            if self.with_ours is not None:
                ours = {"model_params": {self.argument: OUR_BACKBONE}}
                advice += f", or give detector_params={ours}, which needs no network"
            check_timm_weights(self.timm_name(name), advice)

    def completed(self, params: Mapping[str, object], pre_processor: Any) -> dict[str, object]:
        """The model's arguments. If it is built on our network, that is made known, and its images scaled as it wants.

        Args:
            params: The arguments that were given.
            pre_processor: Resizes and normalises; changed for our network.
        """
        if self.named(params) != OUR_BACKBONE:
            return dict(params)
        import torchvision.transforms.v2 as transforms
        from anomalib.pre_processing import PreProcessor

        resize = next(step for step in pre_processor.transform.transforms if isinstance(step, transforms.Resize))
        # Its weights expect values from -1 to 1.
        scaled = PreProcessor(transforms.Compose([resize, transforms.Normalize([0.5] * 3, [0.5] * 3)]))
        pre_processor.transform, pre_processor.export_transform = scaled.transform, scaled.export_transform
        return {self.argument: OUR_BACKBONE, **(self.with_ours or {}), **params}


def check_dsr(params: Mapping[str, object]) -> None:
    """See that the quantised autoencoder of DSR is here or can be fetched.

    Raises:
        InputError: It is not.
    """
    from anomalib.utils.path import get_pretrained_weights_dir

    from dsv_plugins.toolkit.weights import reachable

    file = get_pretrained_weights_dir() / "dsr" / DSR_FILE
    if not file.is_file() and not reachable(DSR_HOST):
        raise InputError(
            f"the weights of dsr are not in {file}, and {DSR_HOST} cannot be reached; copy the file there, from "
            "anomalib's release dsr_pretrained_weights"
        )
