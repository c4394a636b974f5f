"""The CutPaste detector (Li et al. 2021): a ResNet18 that tells normal images from augmented ones, and a density.

The network is in a separate module, imported only to train or load. The process that runs a study reads a detector's
settings only, so it does not wait for Lightning and torchvision.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dsv_plugins import Augmentation, DetectorEncoder, InputError, Progress
from dsv_plugins.builtin.detectors.cutpaste_resnet18.mixture import Mixture
from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet18_settings import Settings
from dsv_plugins.toolkit.densities import DENSITY_CLASSES, Density
from dsv_plugins.toolkit.saved_files import (
    PROGRESS_FILE,
    TENSORS_FILE,
    by_prefix,
    check_images,
    fitted,
    read_progress,
    readable,
)
from dsv_plugins.transforms import best_device, resized

if TYPE_CHECKING:
    from dsv_plugins.builtin.detectors.cutpaste_resnet18.cutpaste_module import CutPasteModule

__all__ = ["CutPasteResNet18"]

ENCODE_BATCH = 64


class CutPasteResNet18(DetectorEncoder):
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
        """Train until `updates` updates have been made in all, resuming where an earlier call stopped.

        The first call makes the shared start too, unless it was loaded.
        """
        check_images(images)
        module = self._module or self._started(images, seed, progress)
        if module.seed != seed:
            raise InputError(f"this training began with seed {module.seed} and cannot resume with seed {seed}")
        target = min(self.settings.updates, self.settings.updates if updates is None else updates)
        self._density = None
        if module.completed_updates < target:
            module.train_to(target, images, augmentation, progress)
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
        module = _new_module(self.settings, seed)
        if self.shared_updates:
            module.train_shared_start(images, Mixture(), progress)
        self._module = module  # only now: an interrupted start cannot be resumed
        return module

    def _model_density(self, images: Tensor) -> None:
        embeddings = self.encode(images)
        if not embeddings.isfinite().all():
            raise self._trained.diverged("its embeddings were not finite")
        self.fit_density(embeddings)

    def network(self, seed: int = 0) -> CutPasteModule:
        """The LightningModule with the network, for another training loop than `fit`; a new one if there is none."""
        if self._module is None:
            self._module = _new_module(self.settings, seed)
        return self._module

    def fit_density(self, embeddings: Tensor) -> None:
        """Model the normal embeddings, against which images are scored; `fit` ends with this."""
        self._density = DENSITY_CLASSES[self.settings.density].fit(embeddings)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Embed images, of any size, as vectors of unit length on the CPU."""
        check_images(images)
        module = self._trained.to(best_device()).eval()
        embeddings = [module.embed(batch.to(module.device)).cpu() for batch in torch.split(images, ENCODE_BATCH)]
        return torch.cat(embeddings)

    def encode_augmented(self, images: Tensor, augmentation: Augmentation, *, generator: torch.Generator) -> Tensor:
        """Embed one augmented copy of each image, a batch at a time."""
        check_images(images)
        return torch.cat(
            [
                self.encode(augmentation(resized(batch, self.settings.image_size), generator=generator))
                for batch in torch.split(images, ENCODE_BATCH)
            ]
        )

    def score(self, images: Tensor) -> Tensor:
        """How improbable each image's embedding is among those of the train images."""
        return self.density.score(self.encode(images))

    def as_module(self) -> nn.Module:
        """A copy of the network with the density behind it."""
        return copy.deepcopy(_Scored(self._trained, self.density)).cpu().eval().requires_grad_(False)

    def save(self, folder: Path) -> None:
        """Write `detector.safetensors` and `detector.json`; an unfinished training can resume from them."""
        module, density = self._trained, self.density
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
        progress = read_progress(folder, asdict(self.settings))
        with readable(folder / PROGRESS_FILE):
            seed, completed = int(progress["seed"]), int(progress["completed_updates"])
            accuracies = [torch.tensor(float(accuracy)) for accuracy in progress["accuracies"]]
        with readable(folder / TENSORS_FILE) as file:
            parts = by_prefix(load_file(file))
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
        return fitted(self._module)

    @property
    def density(self) -> Density:
        """The model of the normal embeddings."""
        return fitted(self._density)


class _Scored(nn.Module):
    """From images to scores."""

    def __init__(self, network: CutPasteModule, density: Density) -> None:
        super().__init__()
        self.network = network
        self.density = density

    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (self.density.score(self.network.embed(images)),)


def _new_module(settings: Settings, seed: int, *, initialise: bool = True) -> CutPasteModule:
    from dsv_plugins.builtin.detectors.cutpaste_resnet18.cutpaste_module import new_module

    return new_module(settings, seed, initialise=initialise)


def _set_momentum(optimizer: torch.optim.Optimizer, buffers: Mapping[str, Tensor]) -> None:
    parameters = optimizer.param_groups[0]["params"]
    for place, parameter in enumerate(parameters):
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffers[str(place)])
