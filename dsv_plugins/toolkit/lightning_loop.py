"""The training loop: which images are in which batch, and Lightning to drive it."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dsv_plugins.seeding import derived_seed

__all__ = ["Batches", "train"]

ORDERS = 3
"""Sets the orders of the images apart from other draws with the same seed."""


def train(module: pl.LightningModule, batches: Dataset[Any], callbacks: Sequence[pl.Callback] = ()) -> None:
    """Let Lightning make one update with each batch, on the best device there is."""
    cuda = torch.cuda.is_available()
    # Graphics cards before Ampere only imitate bfloat16, slowly.
    bfloat16 = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    precision: Literal["bf16-mixed", "32-true"] = "bf16-mixed" if bfloat16 else "32-true"
    # A generator of its own keeps the loader from drawing on the global one.
    loader = DataLoader(batches, batch_size=None, generator=torch.Generator())
    with _as_before():
        trainer = pl.Trainer(
            accelerator="auto",
            devices=1,
            precision=precision,
            max_steps=len(batches),  # type: ignore[arg-type]  # torch does not promise that a dataset has a length
            max_epochs=1,
            barebones=True,
            callbacks=list(callbacks),
            deterministic="warn" if cuda else None,  # a GPU has several kernels for one thing, a CPU does not
            plugins=LightningEnvironment(),  # one training is one process, also inside a cluster's job
        )
        module.train()  # Lightning leaves the mode as it is, and an encoding has set it to evaluation
        try:
            with _signals_as_usual():
                trainer.fit(module, loader)
        finally:
            module.trainer = None  # or the images would live as long as the module
    if trainer.interrupted:
        raise KeyboardInterrupt


class Batches(Dataset[Tensor]):
    """The batches of the given updates, from an endless stream of epochs, each in an order of its own.

    A batch depends on the seed and the number of its update only, and is full even if there are fewer images.
    """

    def __init__(self, images: Tensor, batch_size: int, seed: int, updates: range) -> None:
        self.images = images
        self.batch_size = batch_size
        self.updates = updates
        # One batch lies in two epochs at most unless the epochs are tiny, so few orders need be remembered.
        self._order = functools.lru_cache(maxsize=2)(functools.partial(_order_of_epoch, len(images), seed))

    def __len__(self) -> int:
        return len(self.updates)

    def __getitem__(self, index: int) -> Tensor:
        first = self.updates[index] * self.batch_size
        positions = (divmod(index, len(self.images)) for index in range(first, first + self.batch_size))
        return self.images[torch.stack([self._order(epoch)[offset] for epoch, offset in positions])]


def _order_of_epoch(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(derived_seed(seed, ORDERS, epoch, count)))


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Silence Lightning, whose notes are about choices that are ours, and put back the flags of torch that it sets."""
    logger = logging.getLogger("lightning.pytorch")
    level, benchmark = logger.level, torch.backends.cudnn.benchmark
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark


@contextlib.contextmanager
def _signals_as_usual() -> Iterator[None]:
    """Undo how Lightning turns an interrupt and a termination into a normal exit."""
    try:
        yield
    except SIGTERMException:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.raise_signal(signal.SIGTERM)
        raise
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
