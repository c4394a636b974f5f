"""What the modules of this package have in common: how they resize, learn from good images, decide and export."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from anomalib import LearningType
from anomalib.data import ImageBatch, InferenceBatch
from anomalib.post_processing import PostProcessor
from anomalib.pre_processing import PreProcessor
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.v2 import Compose, Resize
from torchvision.transforms.v2.functional import to_dtype
from torchvision.tv_tensors import Mask

from dsv_anomalib.post_processing import LabelFreePostProcessor
from dsv_plugins.calibration import images_to_keep_out
from dsv_plugins.toolkit.saved_files import fitted

__all__ = ["LEVELS", "OPSET", "DetectorNetwork", "Learning", "OwnModule", "ResizingPreProcessor"]

OPSET = 18
LEVELS = 255
"""Of brightness in an eight-bit image, beside black."""


class EightBitResize(Resize):  # type: ignore[misc]  # torchvision has no types
    """Resizes in eight bits, as images are when they are read for a study or by `dsv score`.

    One step: a datamodule takes the model's Resize over, and resizes by it before images become a batch.
    """

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Resize an image, or a mask as ever."""
        if not isinstance(inpt, Tensor) or isinstance(inpt, Mask) or not inpt.is_floating_point():
            return super().transform(inpt, params)
        resized = super().transform(to_dtype(inpt, torch.uint8, scale=True), params)
        return to_dtype(resized, torch.float32, scale=True)


class ResizingPreProcessor(PreProcessor):
    """Resizes images, and nothing else: the network normalises them by itself.

    An exported model gets images of the right size, which a plain Resize leaves as they are.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__(transform=Compose([Resize(size, antialias=True)]))
        self.transform = Compose([EightBitResize(size, antialias=True)])

    def checkpoint_config(self) -> dict[str, Any]:
        """Nothing: the module's arguments say it, and anomalib cannot write this step into a checkpoint."""
        return {}

    def load_checkpoint_config(self, config: dict[str, Any]) -> None:
        """As above."""


class DetectorNetwork(nn.Module):
    """From images in [0, 1] to scores and maps of their size.

    It sees eight bits, as in training: images without the rounding of files look unusual where a part is even, and some
    verdicts would differ.

    Args:
        network: What a detector's `as_module` returns; None until it is trained.
    """

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> InferenceBatch:
        """The scores of images in [0, 1], and their maps if there are any."""
        scores, *heatmaps = fitted(self.network)((images * LEVELS).round() / LEVELS)
        maps = [
            functional.interpolate(heat[:, None].float(), size=images.shape[-2:], mode="bilinear", align_corners=False)
            for heat in heatmaps
        ]
        return InferenceBatch(pred_score=scores, anomaly_map=maps[0] if maps else None)


class OwnModule:
    """What the modules of this package have in common. No module itself: `get_model` finds direct ones only."""

    model: nn.Module

    def to_onnx(self, *arguments: Any, **settings: Any) -> Any:
        """Export as anomalib does, but at the opset that torch writes: converting to an older one fails, at length."""
        return super().to_onnx(*arguments, **{"opset_version": OPSET, **settings})  # type: ignore[misc]

    @property
    def learning_type(self) -> LearningType:
        """Normal images only."""
        return LearningType.ONE_CLASS

    @staticmethod
    def configure_pre_processor(image_size: tuple[int, int] | None = None) -> PreProcessor:
        """Resize images; the network normalises them by itself."""
        return ResizingPreProcessor(image_size or (256, 256))

    def configure_post_processor(self) -> PostProcessor:
        """A threshold that needs no labels."""
        return LabelFreePostProcessor()

    def validation_step(self, batch: ImageBatch, *args: Any, **kwargs: Any) -> Any:
        """Score a batch."""
        return batch.update(**self.model(batch.image)._asdict())


class Learning(OwnModule):
    """A module that the Engine trains, on all good images but those that are held out to decide by.

    Attributes:
        holdout: The share to hold out; None for as many as a study holds out.
        seed: Which of them these are.
    """

    trainer: Any
    post_processor: nn.Module | None
    holdout: float | None
    seed: int
    _held_out: frozenset[str] = frozenset()
    _is_stale: bool = True

    def learn(self) -> None:
        """Do what is left to do after the updates of an epoch, so that images can be scored."""
        raise NotImplementedError

    def on_train_start(self) -> None:
        """Draw the images to hold out, by their paths: batches come in any order."""
        samples = getattr(self.trainer.train_dataloader.dataset, "samples", None)
        if samples is None:  # no dataset of anomalib: its images cannot be told apart
            return
        paths = sorted(map(str, samples["image_path"]))
        count = images_to_keep_out(len(paths), self.holdout)
        self._held_out = frozenset(np.random.default_rng(self.seed).choice(paths, count, replace=False).tolist())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note that something was learned."""
        self._is_stale = True

    def on_train_epoch_end(self) -> None:
        """Complete what was learned before a checkpoint is written."""
        self._complete()

    def on_validation_start(self) -> None:
        """Complete what was learned before images are scored by it."""
        if self.trainer.state.fn is TrainerFn.FITTING:
            self._complete()

    def is_held_out(self, batch: ImageBatch) -> Tensor:
        """Whether each image of a batch is held out."""
        assert batch.image is not None
        paths = batch.image_path or [""] * len(batch.image)
        return torch.tensor([str(path) in self._held_out for path in paths], device=batch.image.device)

    def decide_by(self, scores: Tensor, maps: Tensor | None = None, *, is_held_out: bool) -> None:
        """Set the thresholds of the post-processor, if it is ours, from good images; see there."""
        if isinstance(self.post_processor, LabelFreePostProcessor):
            self.post_processor.decide_by(scores, maps, is_held_out=is_held_out)

    def _complete(self) -> None:
        if self._is_stale:
            self.learn()
            self._is_stale = False
