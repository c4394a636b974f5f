"""The CutPaste detector (Li et al. 2021): a ResNet18 that tells normal images from augmented ones, and a density.

The network is in a separate module, imported only to train or load. The process that runs a study reads a detector's
settings only, so it does not wait for Lightning and torchvision.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsv_plugins import Augmentation, InputError, Progress
from dsv_plugins.builtin.detectors.cutpaste_resnet18.mixture import Mixture
from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet18_settings import DENSITIES, Settings
from dsv_plugins.toolkit.densities import Density, Gaussian, Kernel
from dsv_plugins.toolkit.embedding_detector import ENCODE_BATCH, EmbeddingDetector
from dsv_plugins.toolkit.saved_files import (
    PROGRESS_FILE,
    TENSORS_FILE,
    check_images,
    joined,
    read_parts,
    read_progress,
    readable,
    write_saved,
)
from dsv_plugins.transforms import resized

if TYPE_CHECKING:
    from dsv_plugins.builtin.detectors.cutpaste_resnet18.cutpaste_module import CutPasteModule

__all__ = ["CutPasteResNet18"]

DENSITY_CLASSES: dict[str, type[Density]] = dict(zip(DENSITIES, (Gaussian, Kernel), strict=True))


class CutPasteResNet18(EmbeddingDetector["CutPasteModule"]):
    """The detector of the paper. Its embedding is the pooled ResNet18 output, scaled to unit length.

    Attributes:
        settings: All its numbers.
        image_size: The height and width it works at; images of another size are resized.
        updates: The training budget of each candidate.
        shared_updates: The updates before those, which all candidates have in common.
    """

    image_size: int
    updates: int

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.image_size = settings.image_size
        self.updates = settings.updates
        self.shared_updates = settings.shared_updates

    @property
    def training_accuracy(self) -> float | None:
        """The share of images told apart correctly in the last updates."""
        accuracies = self.trained_network.accuracies
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
        """Train until `updates` updates have been made in all, resuming where an earlier call stopped.

        The first call makes the shared start too, unless it was loaded.
        """
        check_images(images)
        network = self._network or self._started(images, seed, progress)
        if network.seed != seed:
            raise InputError(f"this training began with seed {network.seed} and cannot resume with seed {seed}")
        target = self.updates if updates is None else min(updates, self.updates)
        self._density = None
        if network.completed_updates < target:
            network.train_to(target, images, augmentation, progress)
        self._model_density(images)

    def fit_shared_start(self, images: Tensor, *, seed: int = 0, progress: Progress | None = None) -> None:
        """Make the updates that all trainings on these images start with, for any augmentation.

        They learn to tell normal images from patches of every built-in kind and size at once. Small patches, which a
        short training from scratch does not learn at all, are then within reach of a few updates more.
        """
        check_images(images)
        self._started(images, seed, progress)
        self._model_density(images)

    def warm_up(self) -> None:
        """Import what a training needs."""
        importlib.import_module("dsv_plugins.builtin.detectors.cutpaste_resnet18.cutpaste_module")

    def _started(self, images: Tensor, seed: int, progress: Progress | None) -> CutPasteModule:
        network = _new_network(self.settings, seed)
        if self.shared_updates:
            network.train_shared_start(images, Mixture(), progress)
        self._network = network  # only now: an interrupted start cannot be resumed
        return network

    def _model_density(self, images: Tensor) -> None:
        embeddings = self.encode(images)
        if not embeddings.isfinite().all():
            raise self.trained_network.diverged("its embeddings were not finite")
        self.fit_density(embeddings)

    def network(self, seed: int = 0) -> CutPasteModule:
        """Return the LightningModule, for another training loop than `fit`; a new one if there is none."""
        if self._network is None:
            self._network = _new_network(self.settings, seed)
        return self._network

    def fit_density(self, embeddings: Tensor) -> None:
        """Model the normal embeddings, against which images are scored; `fit` ends with this."""
        self._density = DENSITY_CLASSES[self.settings.density].fit(embeddings)

    def encode_augmented(self, images: Tensor, augmentation: Augmentation, *, generator: torch.Generator) -> Tensor:
        """Embed one augmented copy of each image, a batch at a time."""
        check_images(images)
        batches = (resized(batch, self.image_size) for batch in torch.split(images, ENCODE_BATCH))
        return torch.cat([self.encode(augmentation(batch, generator=generator)) for batch in batches])

    def save(self, folder: Path) -> None:
        """Write `detector.safetensors` and `detector.json`; an unfinished training can resume from them."""
        network = self.trained_network
        parts = {"network": network.state_dict(), "density": self.density.state()}
        if network.completed_updates < self.updates:
            parts["momentum"] = {
                str(index): buffers["momentum_buffer"]
                for index, buffers in network.optimizer.state_dict()["state"].items()
                if buffers["momentum_buffer"] is not None  # as with a momentum of zero
            }
        progress = {
            "settings": asdict(self.settings),
            "seed": network.seed,
            "completed_updates": network.completed_updates,
            "accuracies": [float(accuracy) for accuracy in network.accuracies],
        }
        write_saved(folder, joined(parts), progress)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            InputError: A file is missing or broken, or the detector in the folder has other settings.
        """
        progress = read_progress(folder, asdict(self.settings))
        with readable(folder / PROGRESS_FILE):
            seed, completed = int(progress["seed"]), int(progress["completed_updates"])
            accuracies = [torch.tensor(float(accuracy)) for accuracy in progress["accuracies"]]
        with readable(folder / TENSORS_FILE) as file:
            parts = read_parts(file)
            network = _new_network(self.settings, seed, initialise=False)
            network.load_state_dict(parts["network"])
            if 0 < completed < self.updates and self.settings.momentum:
                network.set_momentum(parts["momentum"])
            density = DENSITY_CLASSES[self.settings.density].from_state(parts["density"])
        network.completed_updates = completed
        network.accuracies.extend(accuracies)
        self._network, self._density = network, density


def _new_network(settings: Settings, seed: int, *, initialise: bool = True) -> CutPasteModule:
    from dsv_plugins.builtin.detectors.cutpaste_resnet18.cutpaste_module import new_module

    return new_module(settings, seed, initialise=initialise)
