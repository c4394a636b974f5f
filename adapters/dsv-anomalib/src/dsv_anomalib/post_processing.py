"""Thresholds and normalised scores without labels."""

from __future__ import annotations

from typing import Any

import torch
from anomalib.post_processing import PostProcessor
from torch import Tensor

from dsv_plugins.calibration import Calibration

__all__ = ["LabelFreePostProcessor"]


class LabelFreePostProcessor(PostProcessor):
    """Sets the threshold from the scores of normal images; anomalib's own needs labelled validation images.

    The threshold is a quantile of the scores of normal images. Scores are brought into (0, 1), the threshold to 0.5,
    and keep their order however large they are: anomalib's own cuts them off, and its AUROC takes raw scores above 20
    or so for equal. Anomaly maps are judged by the same numbers, unless `fit_pixels` gives them others.

    Args:
        quantile: Share of normal images below the threshold.
        **kwargs: Those of anomalib's `PostProcessor`.
    """

    def __init__(self, quantile: float = 0.99, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.quantile = quantile

    def fit(self, scores: Tensor, threshold: float | None = None) -> None:
        """Take threshold and scale from the scores of normal images.

        Args:
            scores: Those of normal images.
            threshold: One that is known already, in place of the quantile.
        """
        scores = scores.detach().float().flatten()
        found = torch.quantile(scores, self.quantile) if threshold is None else torch.tensor(threshold)
        self._image_threshold.copy_(found)
        for lowest, highest in ((self.image_min, self.image_max), (self.pixel_min, self.pixel_max)):
            lowest.copy_(scores.min())
            highest.copy_(scores.max())

    def decide_by(self, scores: Tensor, maps: Tensor | None, *, is_held_out: bool) -> None:
        """Take the thresholds from good images: with the promise of a study if they were held out, else the quantile.

        Args:
            scores: Their scores.
            maps: Their anomaly maps, (images, height, width), if there are any.
            is_held_out: Whether nothing was trained on them.
        """
        calibration = Calibration(scores.detach().cpu().numpy())
        rate = calibration.default_rate if is_held_out else 1 - self.quantile
        self.fit(scores, calibration.threshold(rate) if is_held_out else None)
        if maps is not None:
            peaks = maps.detach().float().flatten(1).amax(dim=1)
            self.fit_pixels(float(maps.mean()), float(peaks.max()), float(torch.quantile(peaks, 1 - rate)))

    def fit_pixels(self, lowest: float, highest: float, threshold: float) -> None:
        """Take threshold and scale of anomaly maps, which have numbers of their own."""
        self._pixel_threshold.fill_(threshold)
        self.pixel_min.fill_(lowest)
        self.pixel_max.fill_(highest)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Look at no validation image, and so at no label."""

    def on_validation_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """As above."""

    @staticmethod
    def _normalize(preds: Tensor | None, norm_min: Tensor, norm_max: Tensor, threshold: Tensor) -> Tensor | None:
        if preds is None:
            return None
        scale = norm_max - norm_min
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        # The arc tangent flattens slowly: scores a thousand scales apart remain apart.
        return torch.atan((preds - threshold) / scale) / torch.pi + 0.5
