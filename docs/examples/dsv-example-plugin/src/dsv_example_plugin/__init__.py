"""An augmentation and a selector, found by dsv-plugins through the entry point in pyproject.toml."""

import math

from dsv_plugins import AugmentationPlugin, SelectorPlugin, hookimpl


class Scar:
    """Scratches each image: a thin straight line of one grey, anywhere and at any angle."""

    def __init__(self, length, thickness=1.5):
        self.length = length  # as a share of the image's diagonal
        self.thickness = thickness  # in pixels

    def __call__(self, images, *, generator):
        import torch  # here, since listing plugins must be quick

        count, _, height, width = images.shape
        like = {"dtype": images.dtype, "device": images.device}
        row, column, turn, grey = torch.rand(4, count, 1, 1, generator=generator, **like)
        down = torch.arange(height, **like)[:, None] - row * (height - 1)
        right = torch.arange(width, **like) - column * (width - 1)
        cosine, sine = torch.cos(turn * math.pi), torch.sin(turn * math.pi)
        along, across = down * sine + right * cosine, down * cosine - right * sine
        reach = self.length * math.hypot(height, width) / 2
        scar = (along.abs() <= reach) & (across.abs() <= self.thickness / 2)
        return torch.where(scar[:, None], grey[:, None], images)


class ScoreGap:
    """Prefers the detector whose highest test scores stand farthest above the median, in units of the usual spread."""

    def losses(self, evaluations):
        return [-self.gap(evaluation.scores.test) for evaluation in evaluations]

    def gap(self, scores):
        low, middle, high = (float(scores.quantile(share)) for share in (0.25, 0.5, 0.95))
        return (high - middle) / (middle - low) if middle > low else math.nan


@hookimpl
def augmentation():
    space = {"length": [0.1, 0.2, 0.4, 0.8]}
    return AugmentationPlugin(name="scar", factory=Scar, space=space, summary="A thin scratch at any angle")


@hookimpl
def selector():
    summary = "How far the highest scores stand above the rest"
    return SelectorPlugin(name="score-gap", factory=ScoreGap, judges_alone=True, summary=summary)
