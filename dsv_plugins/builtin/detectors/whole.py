"""The whole pretrained detector in one pass, from images to scores and heatmaps."""

from __future__ import annotations

from torch import Tensor, nn

from dsv_plugins.builtin.detectors.backbone import Backbone
from dsv_plugins.builtin.detectors.scorer import Scorer
from dsv_plugins.builtin.detectors.tail import Tail

__all__ = ["Whole"]


class Whole(nn.Module):
    """The frozen part, the trained part and the scorer behind each other."""

    def __init__(self, backbone: Backbone, tail: Tail, scorer: Scorer) -> None:
        super().__init__()
        self.backbone = backbone
        self.tail = tail
        self.scorer = scorer

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The scores and heatmaps of images in [0, 1] of the detector's size."""
        features = {name: values.float() for name, values in self.backbone(images).items()}
        scores, heatmaps = self.scorer(self.tail, features)
        return scores, heatmaps
