"""A LightningModule as a detector."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset

from dsv_plugins.errors import TrainingError
from dsv_plugins.plugins.interfaces import Augmentation, Progress
from dsv_plugins.seeding import derived_seed
from dsv_plugins.toolkit.checks import check_integer
from dsv_plugins.toolkit.densities import Gaussian
from dsv_plugins.toolkit.embedding_detector import EmbeddingDetector, prepared
from dsv_plugins.toolkit.lightning_loop import Batches, train
from dsv_plugins.toolkit.saved_files import TENSORS_FILE, check_images, joined, read_parts, readable
from dsv_plugins.transforms import best_device, global_randomness

__all__ = ["LightningDetector"]

AUGMENTED = 7
"""Sets the draws of the augmentation apart from other draws with the same seed."""


class LightningDetector(EmbeddingDetector[pl.LightningModule]):
    """A detector around a LightningModule of yours. Derive from it and write `new_module`.

    The module's `forward` embeds a batch of images: (images, width). Its `training_step` gets a batch of two tensors of
    equal shape, normal images and augmented copies of them, in [0, 1] and with three channels. The optimiser is the
    module's own. After training, an image's score is the Mahalanobis distance of its embedding to those of the train
    images. Training, seeds, devices, progress, files and export are taken care of.

    The defaults are attributes of your class. If you write an `__init__` for settings of your own, pass these three on.

    Args:
        image_size: Height and width of the images that the module gets; that of the class if None.
        updates: The training budget; that of the class if None.
        batch_size: Normal images in a batch; that of the class if None.
    """

    image_size: int = 128
    updates: int = 200
    batch_size: int = 16

    def __init__(
        self, image_size: int | None = None, updates: int | None = None, batch_size: int | None = None
    ) -> None:
        for name, value in (("image_size", image_size), ("updates", updates), ("batch_size", batch_size)):
            if value is not None:
                check_integer(name, value, least=1)
                setattr(self, name, value)

    @abstractmethod
    def new_module(self) -> pl.LightningModule:
        """Make an untrained module. Its weights may be drawn from torch's global generator, which is seeded."""

    def fit(
        self,
        images: Tensor,
        augmentation: Augmentation,
        *,
        updates: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Train a new module on normal images and augmented copies of them.

        Raises:
            TrainingError: The embeddings after training are not finite.
        """
        check_images(images)
        planned = self.updates if updates is None else min(updates, self.updates)
        with global_randomness(best_device()) as seed_all:
            seed_all(seed % 2**32)
            self._network = self.new_module()
            batches = Batches(images, self.batch_size, seed, range(planned))
            pairs = _Pairs(batches, augmentation, self.image_size, seed)
            train(self._network, pairs, [_Reports(progress, planned)])
        embeddings = self.encode(images)
        if not embeddings.isfinite().all():
            raise TrainingError("the embeddings are not finite after training; lower the learning rate")
        self._density = Gaussian.fit(embeddings)

    def save(self, folder: Path) -> None:
        """Write the weights and the density."""
        parts = {"module": self.trained_network.state_dict(), "density": self.density.state()}
        save_file(joined(parts), folder / TENSORS_FILE)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            InputError: The file is missing or broken, or is that of another module.
        """
        with global_randomness(), readable(folder / TENSORS_FILE) as file:
            parts = read_parts(file)
            module = self.new_module()
            module.load_state_dict(parts["module"])
            density = Gaussian.from_state(parts["density"])
        self._network, self._density = module, density


class _Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Batches of normal images, each with augmented copies; a batch depends on the seed and its number only."""

    def __init__(self, batches: Batches, augmentation: Augmentation, image_size: int, seed: int) -> None:
        self.batches = batches
        self.augmentation = augmentation
        self.image_size = image_size
        self.seed = seed

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        normal = prepared(self.batches[index], self.image_size)
        generator = torch.Generator().manual_seed(derived_seed(self.seed, AUGMENTED, index))
        return normal, self.augmentation(normal, generator=generator)


class _Reports(pl.Callback):
    """Reports the progress of the training."""

    def __init__(self, progress: Progress | None, planned: int) -> None:
        self.progress = progress
        self.planned = planned

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:
            raise TrainingError("training_step of the module returned no loss; return it")
        if self.progress is not None:
            self.progress(batch_idx + 1, self.planned, float(loss))
