"""The pretrained network as it is: what a detector reaches without training, as a rival of all that are trained."""

from __future__ import annotations

from torch import Tensor

from dsv_plugins import Augmentation, Progress
from dsv_plugins.builtin.detectors.backbone import FrozenFeatures
from dsv_plugins.builtin.detectors.cutpaste_timm import CutPasteTimm
from dsv_plugins.builtin.detectors.tail import Tail

__all__ = ["FrozenTimm"]


class FrozenTimm(CutPasteTimm):
    """`cutpaste-timm` without its training: Mahalanobis distances of whole images and of their places.

    Augmentations play no part in it, so there is nothing to select.
    """

    learns_from_augmentation = False

    def _train(
        self,
        tail: Tail,
        target: int,
        images: Tensor,
        features: FrozenFeatures,
        augmentation: Augmentation,
        progress: Progress | None,
    ) -> None:
        tail.local.silence()
        self._completed = target
        if progress is not None:
            progress(target, self.updates, 0.0)
