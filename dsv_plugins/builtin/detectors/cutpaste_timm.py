"""CutPaste on a pretrained backbone: frozen early stages, trained last stages, and a local head that says where.

What the frozen part makes of images is computed once: of train and test images once per study, of augmented copies once
per candidate. Everything random in update k comes from a generator seeded with the seed and k, so that a training that
stops and resumes ends with the same weights as one in a single go.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from dsv_plugins import Augmentation, DetectorEncoder, InputError, Progress, TrainingError
from dsv_plugins.builtin.detectors.timm_settings import TimmSettings
from dsv_plugins.detectors.saved_files import (
    PROGRESS_FILE,
    TENSORS_FILE,
    by_prefix,
    check_images,
    fitted,
    read_progress,
    readable,
)
from dsv_plugins.seeding import derived_seed
from dsv_plugins.transforms import as_float, best_device

if TYPE_CHECKING:  # timm comes with these
    from dsv_plugins.builtin.detectors.backbone import Backbone, FrozenFeatures
    from dsv_plugins.builtin.detectors.scorer import Scorer
    from dsv_plugins.builtin.detectors.tail import Tail

__all__ = ["CutPasteTimm"]

COPIES, COPIED, WEIGHTS, UPDATES = 5, 6, 7, 8
"""Separate the draws of the copies, of the images that are copied, of the first weights and of the updates."""
ACCURACY_WINDOW = 50
REPORT_EVERY = 10
AUGMENT_BATCH = 64
CHANGED_SHARES = "changed_shares"


class CutPasteTimm(DetectorEncoder):
    """The pretrained detector. Its embedding is the pooled map of stride 16 joined with the pooled last stage.

    Attributes:
        settings: All its numbers.
    """

    has_frozen_part = True
    image_size: int
    updates: int

    def __init__(self, settings: TimmSettings) -> None:
        self.settings = settings
        self.image_size = settings.image_size
        self.updates = settings.updates
        self._known = WeakIdKeyDictionary()
        self._tail: Tail | None = None
        self._scorer: Scorer | None = None
        self._seed = 0
        self._completed = 0
        self._accuracies: deque[float] = deque(maxlen=ACCURACY_WINDOW)

    @property
    def training_accuracy(self) -> float | None:
        """The share of images told apart correctly in the last updates."""
        return sum(self._accuracies) / len(self._accuracies) if self._accuracies else None

    def warm_up(self) -> None:
        """Import what a training needs."""
        for module in ("dsv_plugins.builtin.detectors.scorer", "sklearn.covariance"):
            importlib.import_module(module)

    # ------------------------------------------------------------------
    # The frozen part
    # ------------------------------------------------------------------

    def frozen_features(self, images: Tensor) -> FrozenFeatures:
        """What the frozen part makes of images, of any size, as uint8 or in [0, 1]."""
        check_images(images)
        return self._network.features(images)

    def reuse_features(self, images: Tensor, features: FrozenFeatures) -> None:
        """Take the features of exactly these images from there, from now on."""
        self._known[images] = features

    def _features(self, images: Tensor) -> FrozenFeatures:
        known: FrozenFeatures | None = self._known.get(images)  # type: ignore[no-untyped-call]
        return self.frozen_features(images) if known is None else known

    @property
    def _network(self) -> Backbone:
        from dsv_plugins.builtin.detectors.backbone import load_backbone

        settings = self.settings
        return load_backbone(settings.backbone, settings.weights, settings.image_size, settings.trained_stages)

    # ------------------------------------------------------------------
    # Training
    # ------------------------------------------------------------------

    def fit(
        self,
        images: Tensor,
        augmentation: Augmentation,
        *,
        updates: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Train until `updates` updates have been made in all, resuming where an earlier call stopped."""
        from dsv_plugins.builtin.detectors.scorer import Scorer

        check_images(images)
        features = self._features(images)
        if self._tail is None:
            self._seed, self._tail = seed, self._new_tail(features)
            self._tail.initialise(torch.Generator().manual_seed(derived_seed(seed, WEIGHTS)))
        elif self._seed != seed:
            raise InputError(f"this training began with seed {self._seed} and cannot resume with seed {seed}")
        target = min(self.updates, self.updates if updates is None else updates)
        if self._completed < target:
            self._train(self._tail, target, images, features, augmentation, progress)
        self._scorer = Scorer.fit(self._tail, features, density=self.settings.density, seed=seed)

    def _train(
        self,
        tail: Tail,
        target: int,
        images: Tensor,
        features: FrozenFeatures,
        augmentation: Augmentation,
        progress: Progress | None,
    ) -> None:
        from dsv_plugins.builtin.detectors.local_head import ChangedPlaces

        copies, shares = self._augmented_copies(images, augmentation)
        places = ChangedPlaces(features, copies, shares)
        if self._completed == 0:
            tail.local.standardise_by(features)
        tail.to(best_device())
        while self._completed < target:
            generator = torch.Generator().manual_seed(derived_seed(self._seed, UPDATES, self._completed))
            share = self._completed / self.updates
            loss, accuracy = tail.update(features, copies, share, self.settings, generator)
            if places.can_be_learned:
                tail.update_local(places, share, self.settings.local_updates, generator)
            self._completed += 1
            self._accuracies.append(accuracy)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the training diverged: its loss was {loss} at update {self._completed} of {self.updates}; "
                    f"try a learning_rate below {self.settings.learning_rate}"
                )
            if progress is not None and (self._completed % REPORT_EVERY == 0 or self._completed in (1, target)):
                progress(self._completed, self.updates, loss)
        tail.to("cpu")

    def _augmented_copies(self, images: Tensor, augmentation: Augmentation) -> tuple[FrozenFeatures, Tensor]:
        """The frozen features of augmented copies, and the share of changed pixels at each of their places.

        No more copies than the updates look at, of images drawn at random: a large train set takes no longer. Of those,
        only what the updates look at.
        """
        from dsv_plugins.builtin.detectors.backbone import FINE_PLACES, PLACES, STAGE_INPUT
        from dsv_plugins.builtin.detectors.local_head import MOST_IMAGES

        settings = self.settings
        count = min(settings.copies * len(images), settings.updates * settings.batch_size)
        seeds = (derived_seed(self._seed, part) for part in (COPIED, COPIES))
        drawing, augmenting = (torch.Generator().manual_seed(seed) for seed in seeds)
        rounds = math.ceil(count / len(images))
        order = torch.cat([torch.randperm(len(images), generator=drawing) for _ in range(rounds)])[:count]
        placed = min(count, MOST_IMAGES)
        kept = {STAGE_INPUT: count, PLACES: placed, FINE_PLACES: placed, CHANGED_SHARES: placed}
        copies: dict[str, Tensor] = {}
        for start, chosen in zip(range(0, count, AUGMENT_BATCH), torch.split(order, AUGMENT_BATCH), strict=True):
            found = self._augmented(images[chosen], augmentation, augmenting)
            for name, most in kept.items():  # written in place, for the reason that `written` gives
                rows = found[name][: max(0, most - start)]
                if name not in copies:
                    copies[name] = rows.new_empty((most, *rows.shape[1:]))
                copies[name][start : start + len(rows)] = rows
        return copies, copies.pop(CHANGED_SHARES)

    def _augmented(self, images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> FrozenFeatures:
        """The same of one copy of each image. The images in floating point are gone before the next ones come."""
        from dsv_plugins.builtin.detectors.backbone import PLACES
        from dsv_plugins.builtin.detectors.local_head import changed_shares

        normal = as_float(images).float()
        augmented = augmentation(normal, generator=generator)
        features = self._network.features(augmented)
        return {**features, CHANGED_SHARES: changed_shares(normal, augmented, features[PLACES].shape[1:3])}

    def _new_tail(self, features: FrozenFeatures) -> Tail:
        from dsv_plugins.builtin.detectors.tail import Tail

        with torch.random.fork_rng(devices=[]):  # the heads' first weights are drawn again, from the seed
            return Tail(self._network.trained_part(), features)

    # ------------------------------------------------------------------
    # What it makes of images
    # ------------------------------------------------------------------

    def encode(self, images: Tensor) -> Tensor:
        """Embed images: the pooled map of stride 16, joined with the pooled output of the trained stages."""
        return self._fitted[0].embed(self._features(images))

    def score(self, images: Tensor) -> Tensor:
        """How unusual each image is as a whole, plus how unusual its most unusual places are."""
        tail, scorer = self._fitted
        return scorer.score(tail, self._features(images))

    def heatmap(self, images: Tensor) -> Tensor:
        """How unusual each place is, at an eighth of the image size: (images, height, width)."""
        tail, scorer = self._fitted
        return scorer.heatmap(tail, self._features(images))

    def as_module(self) -> nn.Module:
        """A copy of the whole detector, from images to scores and heatmaps."""
        from dsv_plugins.builtin.detectors.whole import Whole

        return copy.deepcopy(Whole(self._network, *self._fitted)).cpu().eval().requires_grad_(False)

    @property
    def _fitted(self) -> tuple[Tail, Scorer]:
        return fitted(self._tail), fitted(self._scorer)

    # ------------------------------------------------------------------
    # Files
    # ------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `detector.safetensors` and `detector.json`; an unfinished training can resume from them."""
        tail, scorer = self._fitted
        parts = {"tail": tail.state_dict(), "scorer": scorer.state_dict()}
        if self._completed < self.updates:
            parts["optimizer"] = tail.optimizer_state()
        tensors = {
            f"{part}.{name}": value.contiguous() for part, state in parts.items() for name, value in state.items()
        }
        (folder / PROGRESS_FILE).unlink(missing_ok=True)  # a save that is cut short must not pass for a whole one
        save_file(tensors, folder / TENSORS_FILE)
        progress = {
            "settings": asdict(self.settings),
            "seed": self._seed,
            "completed_updates": self._completed,
            "accuracies": list(self._accuracies),
        }
        (folder / PROGRESS_FILE).write_text(json.dumps(progress, indent=2))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            InputError: A file is missing or broken, or the detector in the folder has other settings.
        """
        from dsv_plugins.builtin.detectors.scorer import Scorer

        progress = read_progress(folder, asdict(self.settings))
        with readable(folder / TENSORS_FILE) as file:
            parts = by_prefix(load_file(file))
            tail = self._new_tail(self._network.features(torch.zeros(1, 3, self.image_size, self.image_size)))
            tail.load_state_dict(parts["tail"])
            tail.load_optimizer_state(parts.get("optimizer", {}))
            scorer = Scorer.from_state(parts["scorer"], density=self.settings.density)
        with readable(folder / PROGRESS_FILE):
            self._seed, self._completed = int(progress["seed"]), int(progress["completed_updates"])
            self._accuracies = deque(map(float, progress["accuracies"]), maxlen=ACCURACY_WINDOW)
        self._tail, self._scorer = tail, scorer
