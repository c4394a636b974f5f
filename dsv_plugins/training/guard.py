"""Guards a training against its plugins: they get copies to work on, and what they return is checked."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv_plugins.errors import PluginError
from dsv_plugins.plugins.interfaces import Augmentation, DetectorEncoder
from dsv_plugins.plugins.plugin_errors import wrap_errors

__all__ = ["CheckedDetector", "GuardedAugmentation"]

ROUNDING = 1e-3
"""By how much augmented images may leave [0, 1]: arithmetic in half precision is no fault."""


class GuardedAugmentation:
    """An augmentation that works on copies, and whose results are checked.

    Otherwise it is the augmentation: a detector may ask for its attributes, and whether it is one of a class that
    makes anomalies among features instead of in images, as those of the anomalib adapter do.

    Args:
        augmentation: The plugin's object.
        label: What names it in an error.
    """

    def __init__(self, augmentation: Augmentation, label: str) -> None:
        self._augmentation = augmentation
        self._label = label
        self._changes = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._augmentation)

    def __getattr__(self, name: str) -> object:
        return getattr(self._augmentation, name)

    def __call__(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Augment copies of the images.

        Raises:
            PluginError: The augmentation failed, or returned something else than such images.
        """
        with wrap_errors(self._label):
            copies: object = self._augmentation(images.clone(), generator=generator)
        if not isinstance(copies, Tensor):
            raise PluginError(f"{self._label} returned a {type(copies).__name__}; return a tensor")
        for name in ("shape", "dtype", "device"):
            found, expected = getattr(copies, name), getattr(images, name)
            if found != expected:
                raise PluginError(
                    f"{self._label} returned images of {name} {_told(found)} for images of {name} {_told(expected)}"
                )
        low, high = (float(end) for end in torch.aminmax(copies)) if len(copies) else (0.0, 1.0)
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):  # so put, NaN is outside too
            raise PluginError(f"{self._label} returned values from {low:g} to {high:g}; they must be in [0, 1]")
        self._changes = self._changes or not torch.equal(copies, images)
        return copies

    def check_effect(self, train: Tensor, augmented: Tensor) -> None:
        """Refuse an augmentation that has changed no image, unless it changes what the detector makes of them.

        Args:
            train: The embeddings of the train images.
            augmented: Those of their augmented copies.

        Raises:
            PluginError: There is nothing to learn from it.
        """
        if not self._changes and torch.allclose(train, augmented, rtol=1e-3):
            raise PluginError(f"{self._label} returns each image unchanged, so that there is nothing to learn from")


class CheckedDetector:
    """What a detector makes of images, checked: each method raises `PluginError` if that is not a finite row for each.

    Args:
        detector: The plugin's object.
        label: What names it in an error.
    """

    def __init__(self, detector: DetectorEncoder, label: str) -> None:
        self.detector = detector
        self._label = label

    def encode(self, images: Tensor) -> Tensor:
        """Return the embeddings of images."""
        return self._checked(self.detector.encode(images), "embeddings", len(images), "width")

    def encode_augmented(self, images: Tensor, augmentation: Augmentation, *, generator: torch.Generator) -> Tensor:
        """Return the embeddings of one augmented copy of each image."""
        embeddings = self.detector.encode_augmented(images, augmentation, generator=generator)
        return self._checked(embeddings, "embeddings", len(images), "width")

    def learned_copies(self, count: int) -> tuple[Tensor, Tensor] | None:
        """Return the embeddings and scores of the `count` copies that it learned from, if any."""
        learned = self.detector.learned_copies()
        if learned is None:
            return None
        embeddings, scores = learned
        return (
            self._checked(embeddings, "embeddings of copies", count, "width"),
            self._checked(scores, "scores of copies", count),
        )

    def score(self, images: Tensor) -> Tensor:
        """Return the scores of images."""
        return self._checked(self.detector.score(images), "scores", len(images))

    def heatmap(self, images: Tensor) -> Tensor | None:
        """Return the heatmaps of images, if the detector has any."""
        heatmaps = self.detector.heatmap(images)
        return None if heatmaps is None else self._checked(heatmaps, "heatmaps", len(images), "height", "width")

    def _checked(self, values: object, name: str, *expected: int | str) -> Tensor:
        if not isinstance(values, Tensor):
            raise PluginError(f"{self._label} returned {name} of type {type(values).__name__}; return a tensor")
        rows, *others = values.shape or (0,)
        if values.ndim != len(expected) or rows != expected[0] or 0 in others:
            wanted = f"({', '.join(map(str, expected))}{',' if len(expected) == 1 else ''})"
            raise PluginError(f"{self._label} returned {name} of shape {_told(values.shape)}; return {wanted}")
        if not values.is_floating_point():
            raise PluginError(f"{self._label} returned {name} of dtype {_told(values.dtype)}; return floating point")
        if not torch.isfinite(values).all():
            raise PluginError(f"{self._label} returned {name} that are not finite; a smaller learning rate may help")
        return values


def _told(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")
