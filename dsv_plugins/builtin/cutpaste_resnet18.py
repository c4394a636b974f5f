"""The CutPaste detector (Li et al. 2021): a ResNet18 that tells normal images from augmented ones, and a density.

Everything random in update k is drawn from a generator seeded with the seed and k. A training that stops and goes on
therefore ends with the same weights as one in a single go, and no random state has to be kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from dsv_plugins import Augmentation, DetectorEncoder, InputError, Progress, TrainingError
from dsv_plugins.builtin.colour import jitter_colours
from dsv_plugins.builtin.densities import DENSITY_CLASSES, Density
from dsv_plugins.builtin.detectors import Settings
from dsv_plugins.builtin.resnet import ResNet18
from dsv_plugins.builtin.training import Batches, train
from dsv_plugins.images import as_float
from dsv_plugins.seeds import derived_seed

__all__ = ["CutPasteModule", "CutPasteResNet18"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HEAD_WIDTH = 128
CLASSES = 2
ACCURACY_WINDOW = 50
"""Over how many of the last updates the training accuracy is taken."""
REPORT_EVERY = 10
"""Reading the loss makes a GPU wait, so it is read once in so many updates."""
ENCODE_BATCH = 64
VECTOR_WIDTH = 16
"""Channels last is a quarter quicker on a CPU. With fewer channels than fill a vector (8 on AVX2, 16 on AVX-512) its
backward pass writes past its buffers, crashes or gives wrong gradients: oneDNN's issue 6035, seen with torch 2.15."""
UPDATES = 2
"""Sets the draws of the updates apart from other draws with the same seed."""
TENSORS_FILE, PROGRESS_FILE = "detector.safetensors", "detector.json"


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
        self.memory_format = torch.channels_last if settings.width >= VECTOR_WIDTH else torch.contiguous_format
        self.to(memory_format=self.memory_format)
        self.optimizer = torch.optim.SGD(
            self.parameters(),
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        self.seed = 0
        self.completed_updates = 0
        self.target_updates = 0
        self.augmentation: Augmentation | None = None
        self.progress: Progress | None = None
        self.accuracies: deque[Tensor] = deque(maxlen=ACCURACY_WINDOW)

    def forward(self, images: Tensor) -> Tensor:
        """The embedding before normalisation, of images of any size, as uint8 or in [0, 1]."""
        images = _resized(images, self.settings.image_size)
        images = (images - self.mean) / self.std  # broadcasts grey to three channels
        features: Tensor = self.backbone(images.contiguous(memory_format=self.memory_format))
        return features

    def training_step(self, batch: Tensor, batch_index: int) -> Tensor:
        """The cross-entropy of one batch of normal images and their augmented copies."""
        with torch.autocast(self.device.type, enabled=False):  # images stay exact where the network does not
            images = self.training_images(batch)
        labels = torch.arange(CLASSES, device=self.device).repeat_interleave(len(batch))
        logits = self.head(self(images))
        loss = functional.cross_entropy(logits, labels)
        self.accuracies.append((logits.detach().argmax(dim=1) == labels).float().mean())
        return loss

    @torch.no_grad()
    def training_images(self, batch: Tensor) -> Tensor:
        """The batch, and behind it its augmented copies."""
        assert self.augmentation is not None
        generator = torch.Generator(self.device)
        generator.manual_seed(derived_seed(self.seed, UPDATES, self.completed_updates))
        normal = _resized(batch, self.settings.image_size)
        images = torch.cat([normal, self.augmentation(normal, generator=generator)])
        if self.settings.colour_jitter:
            images = jitter_colours(images, self.settings.colour_jitter, generator=generator)
        return images

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the update, and say how it went."""
        self.completed_updates += 1
        planned = self.settings.updates
        if self.completed_updates % REPORT_EVERY and self.completed_updates != self.target_updates:
            return
        loss = float(outputs["loss"])
        if not math.isfinite(loss):
            raise self.diverged(f"its loss was {loss}")
        if self.progress is not None:
            self.progress(self.completed_updates, planned, loss)

    def diverged(self, sign: str) -> TrainingError:
        """The error that ends a training which came to nothing, with the sign by which that was seen."""
        return TrainingError(
            f"the training diverged: {sign} at update {self.completed_updates} of {self.settings.updates}; "
            f"try a learning_rate below {self.settings.learning_rate}"
        )

    def configure_optimizers(self) -> Any:
        """SGD whose rate falls to zero along half a cosine over the whole budget, wherever this training starts."""
        start, planned = self.completed_updates, self.settings.updates
        cosine = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, (start + step) / planned)))
        )
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


class CutPasteResNet18(DetectorEncoder):
    """The detector of the paper. Its embedding is the pooled ResNet18 output, scaled to unit length.

    Attributes:
        settings: All its numbers.
        image_size: The height and width it works at; images of another size are resized.
        updates: Its whole training budget.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.image_size = settings.image_size
        self.updates = settings.updates
        self._module: CutPasteModule | None = None
        self._density: Density | None = None

    @property
    def training_accuracy(self) -> float | None:
        """The share of images told apart correctly in the last updates."""
        accuracies = self._trained.accuracies
        return float(torch.stack([accuracy.cpu() for accuracy in accuracies]).mean()) if accuracies else None

    def fit(
        self,
        images: Tensor,
        augmentation: Augmentation,
        *,
        updates: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Train until `updates` updates have been made in all, going on where an earlier call stopped."""
        _check_images(images)
        if self._module is None:
            self._module = _new_module(self.settings, seed)
        module = self._module
        if module.seed != seed:
            raise InputError(f"this training began with seed {module.seed} and cannot go on with seed {seed}")
        target = min(self.settings.updates, self.settings.updates if updates is None else updates)
        self._density = None
        if module.completed_updates < target:
            module.augmentation, module.progress, module.target_updates = augmentation, progress, target
            try:
                train(module, Batches(images, self.settings.batch_size, seed, range(module.completed_updates, target)))
            finally:
                module.augmentation = module.progress = None
        embeddings = self.encode(images)
        if not embeddings.isfinite().all():
            raise module.diverged("its embeddings were not finite")
        self._density = DENSITY_CLASSES[self.settings.density].fit(embeddings)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Embed images, of any size, as vectors of unit length on the CPU."""
        _check_images(images)
        module = self._trained.to(_best_device()).eval()
        embeddings = [
            functional.normalize(module(batch.to(module.device)), dim=1).cpu()
            for batch in torch.split(images, ENCODE_BATCH)
        ]
        return torch.cat(embeddings)

    def encode_augmented(self, images: Tensor, augmentation: Augmentation, *, generator: torch.Generator) -> Tensor:
        """Embed one augmented copy of each image, a batch at a time."""
        _check_images(images)
        return torch.cat(
            [
                self.encode(augmentation(_resized(batch, self.image_size), generator=generator))
                for batch in torch.split(images, ENCODE_BATCH)
            ]
        )

    def score(self, images: Tensor) -> Tensor:
        """How improbable each image's embedding is among those of the train images."""
        return self._fitted.score(self.encode(images))

    def save(self, folder: Path) -> None:
        """Write `detector.safetensors` and `detector.json`; an unfinished training can go on from them."""
        module, density = self._trained, self._fitted
        tensors = {f"network.{name}": value.contiguous().cpu() for name, value in module.state_dict().items()}
        tensors |= {f"density.{name}": value.contiguous() for name, value in density.state().items()}
        if module.completed_updates < self.settings.updates:
            momentum = module.optimizer.state_dict()["state"]
            tensors |= {
                f"momentum.{key}": value["momentum_buffer"].contiguous().cpu()
                for key, value in momentum.items()
                if value["momentum_buffer"] is not None  # as with a momentum of zero
            }
        (folder / PROGRESS_FILE).unlink(missing_ok=True)  # a save that is cut short must not pass for a whole one
        save_file(tensors, folder / TENSORS_FILE)
        progress = {
            "settings": asdict(self.settings),
            "seed": module.seed,
            "completed_updates": module.completed_updates,
            "accuracies": [float(accuracy) for accuracy in module.accuracies],
        }
        (folder / PROGRESS_FILE).write_text(json.dumps(progress, indent=2))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            InputError: A file is missing or broken, or the detector in the folder has other settings.
        """
        with _readable(folder / PROGRESS_FILE) as file:
            progress = json.loads(file.read_text())
            settings, seed, completed = progress["settings"], int(progress["seed"]), int(progress["completed_updates"])
            accuracies = [torch.tensor(float(accuracy)) for accuracy in progress["accuracies"]]
        if settings != asdict(self.settings):
            raise InputError(f"{folder} holds a detector of other settings; make this one with {settings} to load it")
        with _readable(folder / TENSORS_FILE) as file:
            parts = _by_prefix(load_file(file))
            module = _new_module(self.settings, seed, initialise=False)
            module.load_state_dict(parts["network"])
            if completed < self.settings.updates and completed > 0 and self.settings.momentum:
                _set_momentum(module.optimizer, parts["momentum"])
            density = DENSITY_CLASSES[self.settings.density].from_state(parts["density"])
        module.completed_updates = completed
        module.accuracies.extend(accuracies)
        self._module, self._density = module, density

    @property
    def _trained(self) -> CutPasteModule:
        if self._module is None:
            raise InputError("this detector is not trained yet; call fit or load first")
        return self._module

    @property
    def _fitted(self) -> Density:
        if self._density is None:
            raise InputError("this detector is not trained yet; call fit or load first")
        return self._density


_GLOBAL_GENERATOR = threading.Lock()
"""Layers draw their weights from torch's global generator, one network at a time."""


def _new_module(settings: Settings, seed: int, *, initialise: bool = True) -> CutPasteModule:
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = CutPasteModule(settings)
    if settings.pretrained and initialise:
        module.backbone.load_imagenet()
    module.seed = seed
    return module


def _best_device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def _resized(images: Tensor, side: int) -> Tensor:
    """The images in [0, 1], of the network's size and precision."""
    images = as_float(images).to(torch.float32)
    if images.shape[-2:] != (side, side):
        images = functional.interpolate(images, size=(side, side), mode="bilinear", antialias=True)
    return images


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or len(images) == 0 or images.shape[1] not in (1, 3):
        raise InputError(
            f"images have the shape {tuple(images.shape)}; give at least one, as (images, 1 or 3, height, width)"
        )


def _by_prefix(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        prefix, _, rest = name.partition(".")
        parts.setdefault(prefix, {})[rest] = value
    return parts


def _set_momentum(optimizer: torch.optim.Optimizer, buffers: Mapping[str, Tensor]) -> None:
    parameters = optimizer.param_groups[0]["params"]
    for place, parameter in enumerate(parameters):
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffers[str(place)])


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[Path]:
    """Whatever goes wrong with a saved file becomes one line that names it."""
    try:
        yield file
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{file} cannot be read as a saved detector; save it again ({reason:.200})") from error
