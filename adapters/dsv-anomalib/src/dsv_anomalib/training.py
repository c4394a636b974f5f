"""One training of a module through anomalib's Engine, on images in memory and for a number of updates."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import torch
from anomalib.data import ImageBatch
from anomalib.engine import Engine
from anomalib.models.components import AnomalibModule
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from dsv_plugins import Progress, TrainingError

__all__ = ["RESERVED", "train"]

RESERVED = ("barebones", "callbacks", "default_root_dir", "limit_val_batches", "max_epochs", "max_steps")
"""Arguments of the Engine that a training sets itself."""


def train(
    module: AnomalibModule,
    images: Tensor,
    *,
    prepare: Callable[[Tensor], Tensor],
    batch_size: int,
    updates: int,
    every_image: bool,
    seed: int,
    progress: Progress | None,
    engine_args: Mapping[str, Any],
) -> None:
    """Train a module, which nothing has trained before, in an Engine of its own: one that is used again trains nothing.

    Args:
        module: What to train.
        images: Normal images; may be memory-mapped and larger than memory.
        prepare: Makes of some of them what the module's pre-processor takes.
        batch_size: Images in a batch.
        updates: Batches to train on.
        every_image: Whether each image must be seen; if not, one that would be a batch of its own is left to the next
            epoch, since batch norm cannot learn from a single value.
        seed: Fixes the order of the images.
        progress: Called after every update.
        engine_args: Further arguments of the Engine.
    """
    left_over = len(images) > batch_size and len(images) % batch_size == 1
    data = _Images(images, prepare, batch_size, seed, drop_last=left_over and not every_image)
    with tempfile.TemporaryDirectory() as scratch, _quiet_lightning():
        engine = Engine(
            callbacks=[_Budget(updates, progress)],
            default_root_dir=scratch,
            max_epochs=math.ceil(updates / len(data.loader)),
            barebones=True,  # no checkpoints, which can take a gigabyte each, no logs and no bars
            limit_val_batches=0,
            **{"devices": 1, **engine_args},
        )
        try:
            engine.fit(module, datamodule=data)  # type: ignore[arg-type]  # it asks for the name and the loader only
        except SystemExit as error:
            # Lightning makes an exit of an interrupt.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        finally:
            module.trainer = None  # or the images would live as long as the module


class _Images(pl.LightningDataModule):
    """Batches of normal images. A datamodule, because some models ask their trainer for one."""

    name = "images"
    category = ""

    def __init__(
        self, images: Tensor, prepare: Callable[[Tensor], Tensor], batch_size: int, seed: int, *, drop_last: bool
    ) -> None:
        super().__init__()
        self.loader: DataLoader[Tensor] = DataLoader(
            images,  # type: ignore[arg-type]  # a tensor is a sequence of images
            batch_size=batch_size,
            shuffle=True,
            drop_last=drop_last,
            generator=torch.Generator().manual_seed(seed),
            collate_fn=functools.partial(_batch, prepare),
        )

    def train_dataloader(self) -> DataLoader[Tensor]:
        return self.loader


def _batch(prepare: Callable[[Tensor], Tensor], images: list[Tensor]) -> ImageBatch:
    # All are normal; some models need that label.
    return ImageBatch(image=prepare(torch.stack(images)), gt_label=torch.zeros(len(images), dtype=torch.bool))


class _Budget(pl.Callback):
    """Ends the training after a number of batches; Lightning counts steps twice if a model has two optimisers."""

    def __init__(self, updates: int, progress: Progress | None) -> None:
        self.updates = updates
        self.progress = progress
        self.made = 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.made += 1
        loss = float(outputs["loss"])
        if not math.isfinite(loss):
            raise TrainingError(f"the training diverged: its loss was {loss} at update {self.made} of {self.updates}")
        if self.progress is not None:
            self.progress(self.made, self.updates, loss)
        if self.made >= self.updates:
            trainer.should_stop = True


_without_bar = functools.partialmethod(tqdm.__init__, disable=True)
"""The coreset of Patchcore has a progress bar of its own, which nothing switches off."""


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning's notes on devices and loaders are about choices that are not the user's."""
    # It goes by three names, and writes under that of the package which was imported last.
    names = ("lightning.pytorch", "lightning.fabric", "lightning_fabric")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), mock.patch.object(tqdm, "__init__", _without_bar):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
