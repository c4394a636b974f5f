"""Losses without labels as something to monitor while a model trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from dsv_anomalib.augmentations import FeatureSynthesis, make_augmentation
from dsv_anomalib.data import images_of, preprocessed
from dsv_anomalib.detector import AnomalibDetector
from dsv_anomalib.entries import Entry
from dsv_anomalib.modes import evaluating
from dsv_anomalib.native import CutPaste
from dsv_anomalib.table import find
from dsv_plugins import Augmentation, InputError
from dsv_plugins.losses import discordance, dsv, relative_energy, separability, shift_cosine

__all__ = ["DSVCallback", "Encoder"]

Encoder = Callable[[Any, Tensor], Tensor]
"""From a module and images in [0, 1], on the module's device, to embeddings."""


class DSVCallback(pl.Callback):
    """Logs `dsv`, its parts, `energy` and `cosine` in validation: something to monitor without labels.

    `dsv_discordance` and `dsv_separability` are the parts. Of `dsv`, `energy` and `cosine` a lower value is better.

    They come from train images, augmented copies of them and unlabelled test images of the datamodule, the same ones
    each time. Where a training has no validation, they are logged at the end of its epochs.

    Args:
        augmentation: Name of the augmentation plugin that makes the copies; None for the model's own noise, where it
            makes its pseudo-anomalies out of features.
        augmentation_params: Hyperparameters of the augmentation.
        every_n_epochs: How often to look; in the epochs between, the last values are logged again.
        images: How many images of each set to look at: the time it takes grows with them.
        encoder: Embeds images with a module, for modules that are neither CutPaste nor in the table.
        entry: What is known of the module, in place of what the table says.
        image_size: Height and width to load images at; the module's own if None.
        seed: Fixes the copies.

    Attributes:
        seconds: How long it has taken in all.
    """

    def __init__(
        self,
        augmentation: str | None = "cutpaste",
        augmentation_params: Mapping[str, Any] | None = None,
        every_n_epochs: int = 1,
        images: int = 64,
        encoder: Encoder | None = None,
        entry: Entry | None = None,
        image_size: int | None = None,
        seed: int = 0,
    ) -> None:
        if every_n_epochs < 1 or images < 2:
            raise InputError(f"every_n_epochs is {every_n_epochs} and images {images}; give at least 1 and 2")
        self.augmentation: Augmentation = (
            FeatureSynthesis({}) if augmentation is None else make_augmentation(augmentation, augmentation_params)
        )
        self.every_n_epochs = every_n_epochs
        self.images = images
        self.encoder = encoder
        self.entry = entry
        self.image_size = image_size
        self.seed = seed
        self.seconds = 0.0
        self._began = time.monotonic()
        self._sets: tuple[Tensor, Tensor] | None = None
        self._values: dict[str, Tensor] = {}

    @property
    def share_of_time(self) -> float:
        """Its share of the time since the training began."""
        return self.seconds / max(time.monotonic() - self._began, 1e-9)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the encoder and load the images, so that what is missing shows before time is spent on training."""
        datamodule = getattr(trainer, "datamodule", None)
        if datamodule is None:
            raise InputError("DSVCallback takes its images from a datamodule; give one to the training")
        if isinstance(pl_module, CutPaste):
            self.encoder = self.encoder or _encode_cutpaste
        elif self.encoder is None:
            self.entry = self.entry or find(type(pl_module))
        size = self.image_size or (getattr(pl_module, "input_size", None) or (256,))[0]
        self._sets = images_of(datamodule, int(size), at_most=self.images)
        self._values = {}
        self.seconds, self._began = 0.0, time.monotonic()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log, unless this is a validation on its own."""
        if trainer.state.fn is TrainerFn.FITTING and not trainer.sanity_checking:
            self._log(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log if there is no validation."""
        if not trainer.enable_validation:
            self._log(trainer, pl_module)

    def _log(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not self._values or trainer.current_epoch % self.every_n_epochs == 0:
            began = time.monotonic()
            self._values = self._measured(module)
            self.seconds += time.monotonic() - began
        module.log_dict(self._values)

    @torch.no_grad()
    def _measured(self, module: pl.LightningModule) -> dict[str, Tensor]:
        assert self._sets is not None  # set when the training started
        with evaluating(module):
            sets = self._embedded(module, *self._sets)
        train, _, test = sets
        losses = {
            "dsv": dsv(*sets),
            "dsv_discordance": discordance(*sets),
            "dsv_separability": separability(*sets),
            "energy": -relative_energy(train, test),
            "cosine": -shift_cosine(*sets),
        }
        return {name: loss.float() for name, loss in losses.items()}

    def _embedded(self, module: Any, train: Tensor, test: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        if self.encoder is None:
            assert self.entry is not None  # found when the training started
            detector = AnomalibDetector.around(module, self.entry, image_size=train.shape[-1])
            augmented = detector.encode_augmented(train, self.augmentation, generator=generator)
            return detector.encode(train), augmented, detector.encode(test)
        if isinstance(self.augmentation, FeatureSynthesis):
            raise InputError("an encoder of images has no pseudo-anomalies in features; name an augmentation of images")
        copies = self.augmentation(train.float() / 255, generator=generator)
        first, second, third = (
            self.encoder(module, images.to(module.device)).cpu()
            for images in (train.float() / 255, copies, test.float() / 255)
        )
        return first, second, third


def _encode_cutpaste(module: CutPaste, images: Tensor) -> Tensor:
    return module.model.embed(preprocessed(module, images))
