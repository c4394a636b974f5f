"""The detectors `patch-memory` and `patch-fusion` of dsv-plugins as models of anomalib, which the Engine trains."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from anomalib.data import ImageBatch
from anomalib.metrics import Evaluator
from anomalib.models.components import AnomalibModule
from anomalib.post_processing import PostProcessor
from anomalib.pre_processing import PreProcessor
from anomalib.visualization import Visualizer
from torch import Tensor

from dsv_anomalib.augmentations import make_augmentation
from dsv_anomalib.own import LEVELS, DetectorNetwork, Learning, ResizingPreProcessor
from dsv_plugins import Augmentation, DetectorEncoder, DetectorEncoderPlugin, build_registry

__all__ = ["PatchFusion", "PatchMemory"]

FILES = "dsv_detector"
"""Where a checkpoint has what the detector saves."""


class _RemembersPatches(Learning):
    """Collects the good images of an epoch, and has the detector learn from them."""

    plugin: ClassVar[str]
    device: torch.device
    detector: DetectorEncoder
    augmentation: Augmentation

    def begin(self, settings: Mapping[str, Any], augmentation: Augmentation, holdout: float | None, seed: int) -> None:
        """Make the detector, which has learned nothing yet; a setting that is None is left to it."""
        given = {name: value for name, value in settings.items() if value is not None}
        self.detector = build_registry().create(DetectorEncoderPlugin, self.plugin, given)
        self.augmentation, self.holdout, self.seed = augmentation, holdout, seed
        self.model = DetectorNetwork()
        self._seen: list[tuple[str, bool, Tensor]] = []

    def on_train_epoch_start(self) -> None:
        """Begin anew: every epoch has all images."""
        self._seen = []

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Remember the images of a batch, as eight bits; there is no loss."""
        assert batch.image is not None
        paths = batch.image_path or [""] * len(batch.image)
        pixels = (batch.image * LEVELS).round().to(torch.uint8).cpu()
        self._seen += zip(map(str, paths), self.is_held_out(batch).tolist(), pixels, strict=True)
        return torch.zeros((), requires_grad=True, device=self.device)

    def configure_optimizers(self) -> None:
        """None: the detector has a way of its own to learn."""

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """One look at each image; no validation before it, when there is nothing to score by."""
        return {"max_epochs": 1, "num_sanity_val_steps": 0}

    def learn(self) -> None:
        """Have the detector learn from the images, in the order of their paths, and decide by those held out."""
        seen, self._seen = sorted(self._seen, key=lambda each: each[0]), []
        train, held_out = (
            [image for _, is_held_out, image in seen if is_held_out == wanted] for wanted in (False, True)
        )
        images = torch.stack(train)
        self.detector.prepare(images)
        self.detector.fit(images, self.augmentation, seed=self.seed)
        if held_out:
            images = torch.stack(held_out)
            self.detector.prepare(images)
        self.decide_by(self.detector.score(images), self.detector.heatmap(images), is_held_out=bool(held_out))
        self._take_over()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the detector saves, in place of its tensors, whose shapes depend on the images."""
        super().on_save_checkpoint(checkpoint)  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder:
            self.detector.save(Path(folder))
            checkpoint[FILES] = {
                file.name: torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
                for file in Path(folder).iterdir()
            }
        for name in self.model.state_dict(prefix="model."):
            del checkpoint["state_dict"][name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the detector."""
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder:
            for name, content in checkpoint[FILES].items():
                Path(folder, name).write_bytes(content.numpy().tobytes())
            self.detector.load(Path(folder))
        self._take_over()
        checkpoint["state_dict"].update(self.model.state_dict(prefix="model."))

    def __getstate__(self) -> dict[str, Any]:
        """Without the detector, which an exported module can do without, and which cannot be pickled."""
        return {**super().__getstate__(), "detector": None}  # type: ignore[misc]

    def _take_over(self) -> None:
        network = self.detector.as_module()
        assert network is not None
        self.model.network = network.to(self.device)


def _sized(pre_processor: PreProcessor | bool, image_size: int) -> PreProcessor | bool:
    """The pre-processor, by default one for this size."""
    return ResizingPreProcessor((image_size, image_size)) if pre_processor is True else pre_processor


class PatchMemory(_RemembersPatches, AnomalibModule):
    """The detector `patch-memory`: the distances of patches to those of good images. Nothing is trained.

    Args:
        backbone: "efficientnet-lite0", whose weights come with a package, or a model of timm.
        weights: A safetensors file with the weights, if not the backbone's own.
        image_size: Height and width to which images are resized.
        layers: Feature maps of the backbone that are used; see the detector.
        window: How many steps away a patch may be compared.
        memory_images: The images in the memory at most.
        score: "raw", "standardised", "both" or "whole".
        largest: How many of the largest patch distances count.
        holdout: Share of the train images that are left out, to set the threshold by; if None, as many as
            `dsv_plugins.Study` holds out.
        seed: Fixes which images are held out, and what is drawn.
        pre_processor: As for any model of anomalib.
        post_processor: Likewise; by default one that needs no labels.
        evaluator: Likewise.
        visualizer: Likewise.
    """

    plugin = "patch-memory"

    def __init__(
        self,
        backbone: str | None = None,
        weights: str | None = None,
        image_size: int = 256,
        layers: Sequence[int] | None = None,
        window: int | None = None,
        memory_images: int | None = None,
        score: str | None = None,
        largest: int | None = None,
        holdout: float | None = None,
        seed: int = 0,
        pre_processor: PreProcessor | bool = True,
        post_processor: PostProcessor | bool = True,
        evaluator: Evaluator | bool = True,
        visualizer: Visualizer | bool = True,
    ) -> None:
        super().__init__(
            pre_processor=_sized(pre_processor, image_size),
            post_processor=post_processor,
            evaluator=evaluator,
            visualizer=visualizer,
        )
        settings = {
            "backbone": backbone,
            "weights": weights,
            "image_size": image_size,
            "layers": layers,
            "window": window,
            "memory_images": memory_images,
            "score": score,
            "largest": largest,
        }
        self.begin(settings, make_augmentation("cutpaste"), holdout, seed)  # which it does not look at


class PatchFusion(_RemembersPatches, AnomalibModule):
    """The detector `patch-fusion`: pseudo-anomalies teach it which distances of patches count.

    Args:
        augmentation: Name of any augmentation plugin of dsv-plugins.
        augmentation_params: Its hyperparameters, such as `{"patch_size": 0.08}`.
        backbone: "efficientnet-lite0", whose weights come with a package, or a model of timm.
        weights: A safetensors file with the weights, if not the backbone's own.
        image_size: Height and width to which images are resized.
        layers: Feature maps of the backbone that are used; see the detector.
        window: How many steps away a patch may be compared.
        memory_images: The images in the memory at most.
        holdout: Share of the train images that are left out, to set the threshold by; if None, as many as
            `dsv_plugins.Study` holds out.
        seed: Fixes which images are held out, and what is drawn.
        pre_processor: As for any model of anomalib.
        post_processor: Likewise; by default one that needs no labels.
        evaluator: Likewise.
        visualizer: Likewise.
    """

    plugin = "patch-fusion"

    def __init__(
        self,
        augmentation: str = "cutpaste",
        augmentation_params: dict[str, Any] | None = None,
        backbone: str | None = None,
        weights: str | None = None,
        image_size: int = 256,
        layers: Sequence[int] | None = None,
        window: int | None = None,
        memory_images: int | None = None,
        holdout: float | None = None,
        seed: int = 0,
        pre_processor: PreProcessor | bool = True,
        post_processor: PostProcessor | bool = True,
        evaluator: Evaluator | bool = True,
        visualizer: Visualizer | bool = True,
    ) -> None:
        super().__init__(
            pre_processor=_sized(pre_processor, image_size),
            post_processor=post_processor,
            evaluator=evaluator,
            visualizer=visualizer,
        )
        settings = {
            "backbone": backbone,
            "weights": weights,
            "image_size": image_size,
            "layers": layers,
            "window": window,
            "memory_images": memory_images,
        }
        self.begin(settings, make_augmentation(augmentation, augmentation_params), holdout, seed)
