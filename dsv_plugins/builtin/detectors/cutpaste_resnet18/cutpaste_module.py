"""The network of the CutPaste detector, and one update of its training.

Everything random in update k is drawn from a generator seeded with the seed and k. A training that stops and resumes
therefore ends with the same weights as one without a break, and no random state has to be kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dsv_plugins import Augmentation, Progress, TrainingError
from dsv_plugins.builtin.augmentations.colour import jitter_colours
from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet import ResNet18
from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet18_settings import Settings
from dsv_plugins.seeding import derived_seed
from dsv_plugins.toolkit.lightning_loop import Batches, train
from dsv_plugins.transforms import resized

__all__ = ["CutPasteModule", "new_module"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HEAD_WIDTH = 128
CLASSES = 2
ACCURACY_WINDOW = 50
"""Over how many of the last updates the training accuracy is taken."""
REPORT_EVERY = 10
"""Reading the loss makes a GPU wait, so it is read once in this many updates, and after the first one."""
VECTOR_WIDTH = 16
"""Channels last is a quarter quicker on a CPU. With fewer channels than fill a vector (8 on AVX2, 16 on AVX-512) its
backward pass writes past its buffers, crashes or gives wrong gradients: oneDNN's issue 6035, seen with torch 2.15."""
OWN_DRAWS, SHARED_DRAWS = 2, 4
"""Set the draws of the two phases apart from each other and from other draws with the same seed."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the training with a schedule of its own.

    Attributes:
        updates: How many there are in all, which is the length of the schedule.
        learning_rate: Where the schedule begins.
        rate_setting: The name of the setting that the learning rate comes from.
        draws: Sets the randomness of this phase apart.
    """

    updates: int
    learning_rate: float
    rate_setting: str
    draws: int


class CutPasteModule(pl.LightningModule):
    """The network and one training update; an update's randomness depends on the seed and its number only."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.backbone = ResNet18(settings.width)
        self.head = nn.Sequential(
            nn.Linear(self.backbone.features, HEAD_WIDTH),
            nn.BatchNorm1d(HEAD_WIDTH),
            nn.ReLU(inplace=True),
            nn.Linear(HEAD_WIDTH, CLASSES),
        )
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=self.memory_format)
        self.seed = 0
        self.target_updates = 0
        self.augmentation: Augmentation | None = None
        self.progress: Progress | None = None
        self._begin(Phase(settings.updates, settings.learning_rate, "learning_rate", OWN_DRAWS))

    @property
    def memory_format(self) -> torch.memory_format:
        """How the pixels lie in memory. Not an attribute: `torch.save` cannot write one."""
        return torch.channels_last if self.settings.width >= VECTOR_WIDTH else torch.contiguous_format

    def _begin(self, phase: Phase) -> None:
        """Start a stretch of training: of what came before only the weights remain."""
        self.phase = phase
        self.completed_updates = 0
        self.accuracies: deque[Tensor] = deque(maxlen=ACCURACY_WINDOW)
        self.optimizer = torch.optim.SGD(
            self.parameters(),
            lr=phase.learning_rate,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
        )

    def train_shared_start(self, images: Tensor, augmentation: Augmentation, progress: Progress | None) -> None:
        """Make the updates that come before any of the candidate's own."""
        own = self.phase
        settings = self.settings
        shared = Phase(settings.shared_updates, settings.shared_learning_rate, "shared_learning_rate", SHARED_DRAWS)
        self._begin(shared)
        self.train_to(shared.updates, images, augmentation, progress)
        self._begin(own)

    def train_to(self, target: int, images: Tensor, augmentation: Augmentation, progress: Progress | None) -> None:
        """Make updates until this phase has `target` of them."""
        self.augmentation, self.progress, self.target_updates = augmentation, progress, target
        try:
            updates = range(self.completed_updates, target)
            train(self, Batches(images, self.settings.batch_size, self.seed, updates))
        finally:
            self.augmentation = self.progress = None

    def forward(self, images: Tensor) -> Tensor:
        """Embed images, of any size, as uint8 or in [0, 1]: vectors of unit length."""
        return functional.normalize(self.features(images), dim=1)

    def features(self, images: Tensor) -> Tensor:
        """Return the embedding before it is scaled, from which the head tells normal from augmented."""
        images = resized(images, self.settings.image_size)
        images = (images - self.mean) / self.std  # broadcasts grey to three channels
        features: Tensor = self.backbone(images.contiguous(memory_format=self.memory_format))
        return features

    def training_step(self, batch: Tensor, batch_index: int) -> Tensor:
        """Return the cross-entropy of one batch of normal images and their augmented copies."""
        with torch.autocast(self.device.type, enabled=False):  # images keep full precision even if the network does not
            images = self.training_images(batch)
        labels = torch.arange(CLASSES, device=self.device).repeat_interleave(len(batch))
        logits = self.head(self.features(images))
        loss = functional.cross_entropy(logits, labels)
        self.accuracies.append((logits.detach().argmax(dim=1) == labels).float().mean())
        return loss

    @torch.no_grad()
    def training_images(self, batch: Tensor) -> Tensor:
        """Return the batch, and behind it its augmented copies."""
        assert self.augmentation is not None
        generator = torch.Generator(self.device)
        generator.manual_seed(derived_seed(self.seed, self.phase.draws, self.completed_updates))
        normal = resized(batch, self.settings.image_size)
        images = torch.cat([normal, self.augmentation(normal, generator=generator)])
        if self.settings.colour_jitter:
            images = jitter_colours(images, self.settings.colour_jitter, generator=generator)
        return images

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the update, and report its loss."""
        self.completed_updates += 1
        if self.completed_updates % REPORT_EVERY and self.completed_updates not in (1, self.target_updates):
            return
        loss = float(outputs["loss"])
        if not math.isfinite(loss):
            raise self.diverged(f"its loss was {loss}")
        if self.progress is not None:
            self.progress(self.completed_updates, self.phase.updates, loss)

    def diverged(self, sign: str) -> TrainingError:
        """Return the error that ends a training, with the sign by which its failure was seen."""
        return TrainingError(
            f"the training diverged: {sign} at update {self.completed_updates} of {self.phase.updates}; "
            f"try a {self.phase.rate_setting} below {self.phase.learning_rate}"
        )

    def configure_optimizers(self) -> Any:
        """Return SGD whose rate falls to zero along half a cosine over the phase, even if resumed in its middle."""
        start, planned = self.completed_updates, self.phase.updates
        cosine = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, (start + step) / planned)))
        )
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}

    def set_momentum(self, buffers: Mapping[str, Tensor]) -> None:
        """Take the momentum of each parameter, by its index, from a training that stopped."""
        for index, parameter in enumerate(self.optimizer.param_groups[0]["params"]):
            self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffers[str(index)])


class _DrawingFrom(TorchFunctionMode):
    """Lets layers draw their first weights from a generator of ours, in this thread.

    They would take the global one, which Lightning sets back whenever a training begins in another thread.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "generator" in kwargs:  # all draws of torch.nn.init name it
            kwargs["generator"] = self._generator
        return function(*args, **kwargs)


def new_module(settings: Settings, seed: int, *, initialise: bool = True) -> CutPasteModule:
    """Make an untrained module whose weights depend on the seed alone, or are pretrained if it is to be initialised."""
    with _DrawingFrom(torch.Generator().manual_seed(seed)):
        module = CutPasteModule(settings)
    if settings.pretrained and initialise:
        module.backbone.load_imagenet()
    module.seed = seed
    return module
