"""The detector `patch-memory`, which learns from good images alone."""

from __future__ import annotations

import copy
import importlib
import math
import os
from collections.abc import MutableMapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from dsv_plugins import Augmentation, DetectorEncoder, Progress
from dsv_plugins.builtin.detectors.patch_memory.patch_settings import PatchSettings
from dsv_plugins.errors import InputError
from dsv_plugins.toolkit.densities import Gaussian
from dsv_plugins.toolkit.saved_files import (
    PROGRESS_FILE,
    TENSORS_FILE,
    check_images,
    fitted,
    read_parts,
    read_progress,
    readable,
    write_saved,
)
from dsv_plugins.types import height_and_width, size_of_same_aspect

if TYPE_CHECKING:  # timm comes with these
    from dsv_plugins.builtin.detectors.patch_memory.backbone import Backbone, PatchFeatures
    from dsv_plugins.builtin.detectors.patch_memory.components import Components, Head

__all__ = ["PatchMemoryDetector"]

MEMORY_FILE = "memory.safetensors"
HALF_BYTES, SINGLE_BYTES = 2, 4


class PatchMemoryDetector(DetectorEncoder):
    """Scores an image by how far its patches are from those of good images. Its embedding is the component scores.

    Attributes:
        settings: All its settings.
    """

    has_frozen_part = True
    frozen_settings = ("backbone", "weights", "image_size", "layers")
    learns_from_augmentation = False
    keeps_aspect = True
    damped = False
    image_size: int

    def __init__(self, settings: PatchSettings) -> None:
        self.settings = settings
        self.image_size = settings.image_size
        # Of images that were prepared; they go when the images do.
        self._known_features: MutableMapping[Tensor, PatchFeatures] = WeakIdKeyDictionary()
        self._measured_before: MutableMapping[Tensor, tuple[Components, tuple[Tensor, Tensor]]] = WeakIdKeyDictionary()
        self._shape: tuple[int, int] | None = None
        self._components: Components | None = None
        self._head: Head | None = None
        self._memory_file: Path | None = None

    def warm_up(self) -> None:
        """Import what a training needs."""
        for module in ("dsv_plugins.builtin.detectors.patch_memory.components", "sklearn.covariance"):
            importlib.import_module(module)

    # ------------------------------------------------------------------
    # The frozen part
    # ------------------------------------------------------------------

    def frozen_features(self, images: Tensor) -> PatchFeatures:
        """Return the features of images, of any size, as uint8 or in [0, 1]."""
        check_images(images)
        shape = self._shape or self._shape_of(images)
        least = min(shape) // self._backbone.stride
        if self.settings.window >= least:
            raise InputError(
                f"window is {self.settings.window}, and these images have {least} patches on a side; give a smaller "
                "window, or a larger image_size"
            )
        return self._backbone.features(images, shape)

    def reuse_features(self, images: Tensor, features: PatchFeatures) -> None:
        """Take the features of exactly these images from there, from now on."""
        self._known_features[images] = features
        self._measured_before.pop(images, None)

    def prepare_copies(self, augmented: Tensor, images: Tensor, rows: Tensor) -> None:
        """Let the frozen part see augmented copies, which must not be compared with the images they are copies of."""
        from dsv_plugins.builtin.detectors.patch_memory.backbone import POOLED, SOURCE

        if images not in self._known_features:
            self.prepare(images)
        source = self._known_features[images][POOLED][rows]
        self.reuse_features(augmented, {**self.frozen_features(augmented), SOURCE: source})

    def _features(self, images: Tensor) -> PatchFeatures:
        known = self._known_features.get(images)
        return self.frozen_features(images) if known is None else known

    def _shape_of(self, images: Tensor) -> tuple[int, int]:
        height, width = images.shape[-2:]
        return height_and_width(size_of_same_aspect(height, width, self.settings.image_size))

    @property
    def _backbone(self) -> Backbone:
        from dsv_plugins.builtin.detectors.patch_memory.backbone import load_backbone

        layers = self.settings.layers
        return load_backbone(self.settings.backbone, self.settings.weights, None if layers is None else tuple(layers))

    # ------------------------------------------------------------------
    # Fitting
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
        """Remember the patches of good images, unless that was done at a shared start, and weigh the components."""
        from dsv_plugins.builtin.detectors.patch_memory.components import Head

        check_images(images)
        if self._components is None or not self.shared_updates:
            self.fit_shared_start(images, seed=seed)
        self._head = Head(self._learned_weights(images, augmentation, seed, progress), damped=self.damped)

    def fit_shared_start(self, images: Tensor, *, seed: int = 0, progress: Progress | None = None) -> None:
        """Remember the patches of good images, which is the same for every augmentation."""
        from dsv_plugins.builtin.detectors.patch_memory.components import Components

        check_images(images)
        self._shape, self._memory_file = self._shape_of(images), None
        features = self._features(images)
        window, remembered = self.settings.window, self.settings.memory_images
        _check_memory(features, remembered)
        self._components = Components.fit(features, window=window, images=remembered, largest=self._largest, seed=seed)
        if progress is not None:
            progress(1, 1, 0.0)

    @property
    def _largest(self) -> Sequence[int]:
        """How many of the largest patch distances are averaged, for each component of the patches."""
        return (self.settings.largest,)

    def _learned_weights(
        self, images: Tensor, augmentation: Augmentation, seed: int, progress: Progress | None
    ) -> Tensor:
        """Return how much each component counts; the augmentation plays no part here."""
        counted = {"both": ("raw-", "standardised-")}.get(self.settings.score, (self.settings.score,))
        names = fitted(self._components).names
        if progress is not None:
            progress(1, 1, 0.0)
        return torch.tensor([float(name.startswith(counted) and not name.endswith("-all")) for name in names])

    # ------------------------------------------------------------------
    # What it makes of images
    # ------------------------------------------------------------------

    def encode(self, images: Tensor) -> Tensor:
        """Embed images as their component scores, large ones damped."""
        return self._measured(images)[0].asinh()

    def score(self, images: Tensor) -> Tensor:
        """Return the sum of the components that count."""
        return fitted(self._head).score(self._measured(images)[0])

    def heatmap(self, images: Tensor) -> Tensor:
        """Return how unusual each patch is: (images, height, width)."""
        return fitted(self._head).heatmap(fitted(self._components), self._measured(images)[1])

    def _measured(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the components and the patch distances of images; of those that were prepared, they are kept."""
        components = fitted(self._components)
        kept = self._measured_before.get(images)
        if kept is not None and kept[0] is components:
            return kept[1]
        measured = components.of(self._features(images))
        if images in self._known_features:
            self._measured_before[images] = components, measured
        return measured

    @torch.no_grad()
    def remember(self, images: Tensor) -> None:
        """Add the patches of good images to the memory. What is usual, and how the components count, stays."""
        components = fitted(self._components)
        components.memory = components.memory.extended(self._features(images))
        self._memory_file = None
        self._measured_before.clear()

    def parts(self) -> dict[str, float]:
        """Return how much each component counts: the share of its weight, since all vary alike on good images."""
        weights = fitted(self._head).weights
        return dict(zip(fitted(self._components).names, (weights / weights.sum()).tolist(), strict=True))

    def as_module(self) -> nn.Module:
        """Return a copy of the detector as one module, from images to scores and heatmaps."""
        module = _Detector(self._backbone, fitted(self._components), fitted(self._head))
        return copy.deepcopy(module).cpu().eval().requires_grad_(False)

    # ------------------------------------------------------------------
    # Files
    # ------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the memory, the weights of the components, and the settings.

        A memory that was loaded is linked, not copied: the candidates of a study have the same one.
        """
        components, file = fitted(self._components), folder / MEMORY_FILE
        file.unlink(missing_ok=True)  # written last: a save that is cut short must not pass for a complete one
        progress = {"settings": asdict(self.settings), "shape": self._shape, "largest": components.largest}
        write_saved(folder, {} if self._head is None else self._head.state_dict(), progress)
        try:
            os.link(self._memory_file or "", file)
        except OSError:  # there is none, or it is on another disk
            save_file({name: value.contiguous() for name, value in components.state_dict().items()}, file)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            InputError: A file is missing or broken, or the detector in the folder has other settings.
        """
        from dsv_plugins.builtin.detectors.patch_memory.components import Components
        from dsv_plugins.builtin.detectors.patch_memory.memory import PatchMemory

        progress = read_progress(folder, asdict(self.settings))
        with readable(folder / PROGRESS_FILE):
            height, width = map(int, progress["shape"])
            largest = [int(count) for count in progress["largest"]]
        with readable(folder / MEMORY_FILE) as file:
            parts = read_parts(file)
            memory = PatchMemory(parts["memory"], self.settings.window)
            state = {name: parts[""][name] for name in ("scale", "typical", "left_out", "train_rows")}
            components = Components(memory, Gaussian.from_state(parts["whole"]), state, largest)
        self._shape, self._components, self._memory_file = (height, width), components, folder / MEMORY_FILE
        self._head = self._read_head(folder)

    def _read_head(self, folder: Path) -> Head | None:
        """Return the weights of the components; None if there are none yet."""
        from dsv_plugins.builtin.detectors.patch_memory.components import Head

        with readable(folder / TENSORS_FILE) as file:
            tensors = load_file(file)
            return Head(**tensors, damped=self.damped) if tensors else None


class _Detector(nn.Module):
    """The detector in one pass, from images in [0, 1] to scores and heatmaps."""

    def __init__(self, backbone: Backbone, components: Components, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.components = components
        self.head = head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = {name: values.float() for name, values in self.backbone(images).items()}
        rows, distances = self.components(features)
        return self.head.score(rows), self.head.heatmap(self.components, distances)


def _check_memory(features: PatchFeatures, most: int) -> None:
    """Refuse a memory that cannot be held, before the system kills the process.

    Raises:
        InputError: It needs more than is available.
    """
    from dsv_plugins.builtin.detectors.patch_memory.backbone import PATCHES

    images, *patches = features[PATCHES].shape
    needed = min(images, most) * math.prod(patches) * (HALF_BYTES + SINGLE_BYTES)  # the bank, and a copy to multiply by
    available = available_memory()
    if available is not None and needed > available:
        raise InputError(
            f"a memory of {min(images, most)} images needs {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are "
            "available; give a smaller memory_images or image_size"
        )


def available_memory() -> int | None:
    """Return the bytes that a process could take now; None if that is not known."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, LookupError, ValueError):  # not Linux
        return None
