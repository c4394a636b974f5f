"""DSV as a torchmetrics metric, for any training loop that gathers embeddings batch by batch."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from dsv_plugins.losses import VARIANTS, dsv

__all__ = ["DSVMetric"]


class DSVMetric(Metric):
    """L_DSV of all embeddings seen since the last reset; lower is better.

    Call `update` with what a batch has, then `compute` once there is some of all three sets:

    ```python
    metric = DSVMetric()
    for images in train_loader:
        metric.update(train=encode(images), augmented=encode(augment(images)))
    for images in test_loader:
        metric.update(test=encode(images))
    loss = metric.compute()
    ```

    In a LightningModule, `self.log("dsv", self.metric)` in `on_validation_epoch_end` computes and resets it each epoch.
    Across processes the embeddings are gathered, so the loss is that of all of them together.

    Args:
        variant: "paper" or "reference", as for `dsv_plugins.losses.dsv`.
        **kwargs: Those of `torchmetrics.Metric`.

    Raises:
        ValueError: The variant is unknown.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    # Not `train` and so on: a metric is a torch module, whose `train` is a method.
    train_embeddings: list[Tensor]
    augmented_embeddings: list[Tensor]
    test_embeddings: list[Tensor]

    def __init__(self, variant: Literal["paper", "reference"] = "paper", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}; known are {', '.join(VARIANTS)}")
        self.variant = variant
        for name in ("train_embeddings", "augmented_embeddings", "test_embeddings"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(
        self, *, train: Tensor | None = None, augmented: Tensor | None = None, test: Tensor | None = None
    ) -> None:
        """Add a batch of embeddings, of shape (images, width), to any of the sets."""
        if train is not None:
            self.train_embeddings.append(train.detach())
        if augmented is not None:
            self.augmented_embeddings.append(augmented.detach())
        if test is not None:
            self.test_embeddings.append(test.detach())

    def compute(self) -> Tensor:
        """Return the loss of everything added, as a float64 scalar.

        Raises:
            EmbeddingError: A set has no embeddings yet, or some that no loss can be computed from.
        """
        train, augmented, test = (
            dim_zero_cat(batches) if len(batches) else torch.empty(0, 0)
            for batches in (self.train_embeddings, self.augmented_embeddings, self.test_embeddings)
        )
        return dsv(train, augmented, test, variant=self.variant)
