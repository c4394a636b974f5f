"""What is trained: the last stages of the backbone with a head that tells normal from augmented, and a local head."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from dsv_plugins.builtin.detectors.backbone import POOLED, STAGE_INPUT, FrozenFeatures
from dsv_plugins.builtin.detectors.local_head import ChangedPlaces, LocalHead, local_features
from dsv_plugins.builtin.detectors.places import joined
from dsv_plugins.builtin.detectors.timm_settings import TimmSettings

__all__ = ["EMBEDDED", "Tail"]

EMBEDDED = (POOLED, STAGE_INPUT)
"""What an image is embedded by."""
WEIGHT_DECAY = 1e-4
LOCAL_RATE = 3e-3
WARM_UP = 0.1
"""Share of the local head's training in which its learning rate grows."""
MOMENTS = ("exp_avg", "exp_avg_sq")
LEAST_SHARE = 1e-3
"""Of the deviation of all features, added to that of each: a feature that never varied must not count for much."""


class Tail(nn.Module):
    """The trained part of the detector.

    Args:
        stages: The last stages of the backbone, with their pretrained weights.
        features: Frozen features of any images, for their sizes.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, stages: nn.Sequential, features: FrozenFeatures) -> None:
        super().__init__()
        self.stages = stages
        one = {name: values[:1].float() for name, values in features.items()}
        with torch.inference_mode():
            width = stages(one[STAGE_INPUT]).shape[1]
        self.head = nn.Linear(width, 1)
        self.local = LocalHead(local_features(one).shape[-1])
        embedded = width + one[POOLED].shape[1]
        self.register_buffer("mean", torch.zeros(embedded))
        self.register_buffer("deviation", torch.ones(embedded))
        trained = [*self.stages.parameters(), *self.head.parameters()]
        self._optimizer = torch.optim.AdamW(trained, weight_decay=WEIGHT_DECAY, foreach=True)
        self._local_optimizer = torch.optim.AdamW(self.local.parameters(), weight_decay=WEIGHT_DECAY, foreach=True)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the first weights of the heads; those of the stages are pretrained."""
        bound = 1 / math.sqrt(self.head.in_features)
        for weights in (self.head.weight, self.head.bias):
            nn.init.uniform_(weights, -bound, bound, generator=generator)
        self.local.initialise(generator)

    def update(
        self,
        normal: FrozenFeatures,
        copies: FrozenFeatures,
        share: float,
        settings: TimmSettings,
        generator: torch.Generator,
    ) -> tuple[float, float]:
        """Make one update of the last stages on a batch, and return its loss and accuracy.

        Args:
            normal: The features of normal images.
            copies: The features of augmented copies.
            share: How much of the training is behind us, for the learning rate, which falls along half a cosine.
            settings: Batch size and learning rate.
            generator: Draws the batch.
        """
        device = self.head.weight.device
        batch = torch.cat([_drawn(images[STAGE_INPUT], settings.batch_size, generator) for images in (normal, copies)])
        batch = batch.float().to(device)
        target = torch.arange(2, device=device).repeat_interleave(settings.batch_size).float()
        logits = self.head(self._pooled(batch)).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, target)
        _step(self._optimizer, loss, settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share)))
        return loss.item(), ((logits > 0) == (target > 0)).float().mean().item()

    def update_local(self, places: ChangedPlaces, share: float, updates: int, generator: torch.Generator) -> None:
        """Make updates of the local head; its learning rate grows at first, then falls along half a cosine."""
        device = self.head.weight.device
        rising = min(1.0, (share + 1e-3) / WARM_UP)
        falling = 0.5 * (1 + math.cos(math.pi * max(0.0, share - WARM_UP) / (1 - WARM_UP)))
        for _ in range(updates):
            features, target = places.draw(generator)
            logits = self.local(features.to(device))
            loss = functional.binary_cross_entropy_with_logits(logits, target.to(device))
            _step(self._local_optimizer, loss, LOCAL_RATE * rising * falling)

    def forward(self, batch: FrozenFeatures) -> Tensor:
        """The pooled map of stride 16, joined with the pooled output of the last stages, a row for each image.

        Each feature is standardised by the train images: raw, the frozen ones would drown the trained ones in every
        distance that a selector measures.
        """
        return (self._joined(batch) - self.mean) / self.deviation

    @torch.inference_mode()
    def embed(self, features: FrozenFeatures) -> Tensor:
        """The embeddings of any number of images."""
        return joined(self, features, *EMBEDDED)

    @torch.inference_mode()
    def standardise_by(self, train: FrozenFeatures) -> None:
        """Take mean and deviation of the embedding from normal images."""
        rows = joined(self._joined, train, *EMBEDDED)
        self.mean.copy_(rows.mean(dim=0))
        self.deviation.copy_(rows.std(dim=0, correction=0) + LEAST_SHARE * rows.std(correction=0) + 1e-9)

    def _joined(self, batch: FrozenFeatures) -> Tensor:
        return torch.cat([batch[POOLED], self._pooled(batch[STAGE_INPUT])], dim=1)

    def optimizer_state(self) -> dict[str, Tensor]:
        """What a training must keep to resume: the moments of each parameter."""
        return {
            f"{index}.{key}.{moment}": state[moment]
            for index, optimizer in enumerate((self._optimizer, self._local_optimizer))
            for key, state in optimizer.state_dict()["state"].items()
            for moment in (*MOMENTS, "step")
        }

    def load_optimizer_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `optimizer_state` returned."""
        for index, optimizer in enumerate((self._optimizer, self._local_optimizer)):
            for key, parameter in enumerate(optimizer.param_groups[0]["params"]):
                if f"{index}.{key}.step" in tensors:
                    optimizer.state[parameter] = {
                        moment: tensors[f"{index}.{key}.{moment}"].clone() for moment in (*MOMENTS, "step")
                    }

    def _pooled(self, values: Tensor) -> Tensor:
        pooled: Tensor = self.stages(values.contiguous(memory_format=torch.channels_last)).mean(dim=(2, 3))
        return pooled


def _drawn(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows drawn at random, each once if there are enough."""
    if count <= len(values):
        return values[torch.randperm(len(values), generator=generator)[:count]]
    return values[torch.randint(len(values), (count,), generator=generator)]


def _step(optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    optimizer.param_groups[0]["lr"] = rate
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
