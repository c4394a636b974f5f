"""The base of detectors with one trained network: its output is the embedding, and a density makes it a score."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor, nn

from dsv_plugins.errors import TrainingError
from dsv_plugins.plugins.interfaces import DetectorEncoder
from dsv_plugins.toolkit.densities import Density
from dsv_plugins.toolkit.saved_files import check_images, fitted
from dsv_plugins.transforms import best_device, resized

if TYPE_CHECKING:
    import lightning.pytorch as pl

__all__ = ["ENCODE_BATCH", "EmbeddingDetector", "prepared"]

ENCODE_BATCH = 64

Network = TypeVar("Network", bound="pl.LightningModule")


class EmbeddingDetector(DetectorEncoder, Generic[Network]):
    """Embeds images with a network, and scores them by how improbable that is among the train embeddings.

    Derive from it, and write `fit`, `save` and `load`, which set the two attributes below.
    """

    image_size: int
    _network: Network | None = None
    _density: Density | None = None

    @property
    def trained_network(self) -> Network:
        """The network, once it is trained or loaded."""
        return fitted(self._network)

    @property
    def density(self) -> Density:
        """The density of the normal embeddings."""
        return fitted(self._density)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Embed images, of any size, grey or in colour; on the CPU."""
        check_images(images)
        network = self.trained_network.to(best_device()).eval()
        batches = (prepared(batch.to(network.device), self.image_size) for batch in torch.split(images, ENCODE_BATCH))
        return torch.cat([_checked(network(batch)).float().cpu() for batch in batches])

    def score(self, images: Tensor) -> Tensor:
        """Return how improbable each image's embedding is among those of the train images."""
        return self.density.score(self.encode(images))

    def as_module(self) -> nn.Module:
        """Return a copy of the network with the density behind it."""
        return copy.deepcopy(_Scored(self.trained_network, self.density)).cpu().eval().requires_grad_(False)


class _Scored(nn.Module):
    """From images to scores."""

    def __init__(self, network: nn.Module, density: Density) -> None:
        super().__init__()
        self.network = network
        self.density = density

    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (self.density.score(self.network(images)),)


def prepared(images: Tensor, image_size: int) -> Tensor:
    """Return the images in [0, 1], square, with three channels."""
    return resized(images, image_size).expand(-1, 3, -1, -1)


def _checked(returned: object) -> Tensor:
    if not isinstance(returned, Tensor) or returned.ndim != 2:
        what = f"a tensor of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
        raise TrainingError(f"forward of the module returned {what}; return the embeddings, (images, width)")
    return returned
