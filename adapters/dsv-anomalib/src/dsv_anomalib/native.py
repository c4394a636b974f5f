"""CutPaste (Li et al. 2021) as a model of anomalib: the network and the score of dsv-plugins' own detector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, cast

import lightning.pytorch as pl
import torch
from anomalib.data import ImageBatch, InferenceBatch
from anomalib.metrics import Evaluator
from anomalib.models.components import AnomalibModule
from anomalib.post_processing import PostProcessor
from anomalib.pre_processing import PreProcessor
from anomalib.visualization import Visualizer
from torch import Tensor, nn

from dsv_anomalib.augmentations import make_augmentation
from dsv_anomalib.data import preprocessed
from dsv_anomalib.modes import evaluating
from dsv_anomalib.own import Learning
from dsv_plugins import Augmentation, DetectorEncoder, DetectorEncoderPlugin, build_registry

__all__ = ["DETECTOR", "CutPaste"]

DETECTOR = "cutpaste-resnet18"


class _Density(Protocol):
    def state(self) -> Mapping[str, Tensor]: ...


class _Network(Protocol):
    """What this module asks of the network of dsv-plugins' detector, a LightningModule."""

    augmentation: Augmentation | None

    def training_step(self, batch: Tensor, batch_index: int) -> Tensor: ...
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...
    def configure_optimizers(self) -> Any: ...


class _Detector(Protocol):
    """What it asks of the detector."""

    image_size: int
    updates: int
    density: _Density
    settings: Any

    def network(self, seed: int = 0) -> pl.LightningModule: ...
    def fit_density(self, embeddings: Tensor) -> None: ...


class GaussianScore(nn.Module):
    """The Mahalanobis distance to the normal embeddings.

    The precision is kept as a factor: distances are then sums of squares, which single precision and exported models
    hold well.
    """

    mean: Tensor
    whitening: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("whitening", torch.eye(width))

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Take mean and precision from a density of dsv-plugins."""
        self.mean.copy_(state["mean"])
        self.whitening.copy_(torch.linalg.cholesky(state["precision"]))

    def forward(self, embeddings: Tensor) -> Tensor:
        """One distance per embedding."""
        whitened: Tensor = (embeddings - self.mean) @ self.whitening
        return whitened.square().sum(dim=1).sqrt()


class KernelScore(nn.Module):
    """The negative log-density of Gaussian kernels of bandwidth one on the normal embeddings."""

    embeddings: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("embeddings", torch.zeros(1, width))

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Take the normal embeddings from a density of dsv-plugins."""
        self.embeddings = state["embeddings"].to(self.embeddings)

    def forward(self, embeddings: Tensor) -> Tensor:
        """One score per embedding."""
        normal = self.embeddings
        products = embeddings @ normal.T
        squared = embeddings.square().sum(dim=1, keepdim=True) + normal.square().sum(dim=1) - 2 * products
        constant = math.log(len(normal)) + normal.shape[1] / 2 * math.log(2 * math.pi)
        return constant - torch.logsumexp(-squared / 2, dim=1)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        """Make room first: how many embeddings a checkpoint has is not known before."""
        if f"{prefix}embeddings" in state_dict:
            self.embeddings = self.embeddings.new_empty(state_dict[f"{prefix}embeddings"].shape)
        super()._load_from_state_dict(state_dict, prefix, *others)


SCORES: Mapping[str, type[GaussianScore] | type[KernelScore]] = {"gaussian": GaussianScore, "kde": KernelScore}
"""By the detector's setting `density`."""


class CutPasteModel(nn.Module):
    """The network, and how improbable an embedding is among those of normal images."""

    def __init__(self, network: pl.LightningModule, density: str) -> None:
        super().__init__()
        self.network = network
        with evaluating(self), torch.no_grad():
            width = self.embed(torch.zeros(1, 3, 32, 32)).shape[1]
        self.density = SCORES[density](width)

    def embed(self, images: Tensor) -> Tensor:
        """Vectors of unit length."""
        embeddings: Tensor = self.network(images)
        return embeddings

    def forward(self, images: Tensor) -> InferenceBatch:
        """The scores of images in [0, 1]."""
        return InferenceBatch(pred_score=self.density(self.embed(images)))


class CutPaste(Learning, AnomalibModule):
    """A ResNet18 that learns to tell normal images from augmented ones, and scores images by its embeddings.

    With `Engine`, every epoch ends with one more look at the train images, to model their embeddings. The updates that
    the candidates of a study share have no place there: what a study calls "quick" needs more updates here.

    Args:
        augmentation: Name of any augmentation plugin of dsv-plugins.
        augmentation_params: Its hyperparameters, such as `{"patch_size": 0.08}`.
        preset: The detector's preset, "paper" or "quick".
        image_size: Height and width, in place of the preset's.
        width: Channels of the first stage, likewise.
        updates: Training updates, likewise; `max_epochs` may end the training before.
        learning_rate: Learning rate, likewise.
        pretrained: Start from ImageNet weights.
        density: How normal embeddings are modelled: "gaussian", or "kde" for a kernel on each; the preset's if None.
        holdout: Share of the train images that the Engine leaves out of the training, to set the threshold by; if None,
            as many as `dsv_plugins.Study` holds out.
        seed: Fixes the initial weights, every draw of the augmentation, and which images are held out.
        pre_processor: As for any model of anomalib.
        post_processor: Likewise; by default one that needs no labels.
        evaluator: Likewise.
        visualizer: Likewise; off by default, as there are no anomaly maps to show.
    """

    plugin = DETECTOR

    def __init__(
        self,
        augmentation: str = "cutpaste",
        augmentation_params: dict[str, Any] | None = None,
        preset: str = "paper",
        image_size: int | None = None,
        width: int | None = None,
        updates: int | None = None,
        learning_rate: float | None = None,
        pretrained: bool = False,
        density: str | None = None,
        holdout: float | None = None,
        seed: int = 0,
        pre_processor: PreProcessor | bool = True,
        post_processor: PostProcessor | bool = True,
        evaluator: Evaluator | bool = True,
        visualizer: Visualizer | bool = False,
    ) -> None:
        settings = {
            "preset": preset,
            "image_size": image_size,
            "width": width,
            "updates": updates,
            "learning_rate": learning_rate,
            "pretrained": pretrained,
            "density": density,
            "shared_updates": 0,  # they come before a training, which is the Engine's here
        }
        detector = cast(_Detector, build_registry().create(DetectorEncoderPlugin, DETECTOR, settings))
        if pre_processor is True:
            pre_processor = self.configure_pre_processor((detector.image_size, detector.image_size))
        super().__init__(
            pre_processor=pre_processor, post_processor=post_processor, evaluator=evaluator, visualizer=visualizer
        )
        self.detector = detector
        self.model: CutPasteModel = CutPasteModel(detector.network(seed), detector.settings.density)
        self.network.augmentation = make_augmentation(augmentation, augmentation_params)
        self.holdout, self.seed = holdout, seed

    @classmethod
    def from_detector(cls, detector: DetectorEncoder, **arguments: Any) -> CutPaste:
        """The module with the weights and the scores of a trained detector of dsv-plugins.

        Args:
            detector: A trained "cutpaste-resnet18".
            **arguments: Those of the class, beside the detector's settings.
        """
        trained = cast(_Detector, detector)
        # The weights are there: none are to be fetched, so `pretrained` stays false.
        names = ("image_size", "width", "updates", "learning_rate", "density")
        given = {name: getattr(trained.settings, name) for name in names}
        module = cls(**given, **arguments)
        module.model.network.load_state_dict(trained.network().state_dict())
        module.model.density.set_state(trained.density.state())
        return module.eval()

    @property
    def network(self) -> _Network:
        """The network, with the augmentation in it."""
        return cast(_Network, self.model.network)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor | None:
        """The cross-entropy of a batch of normal images and their augmented copies."""
        assert batch.image is not None
        images = batch.image[~self.is_held_out(batch)]
        if not len(images):
            return None
        loss = self.network.training_step(images, batch_idx)
        self.log("train_loss", loss.detach(), on_epoch=True, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let the network count its updates: each has draws of its own."""
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.network.on_train_batch_end(outputs, batch, batch_idx)

    def configure_optimizers(self) -> Any:
        """SGD whose rate falls to zero along half a cosine."""
        return self.network.configure_optimizers()

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """The length of the training; no validation before it, when there is nothing to score by."""
        return {"max_steps": self.detector.updates, "num_sanity_val_steps": 0}

    @torch.no_grad()
    def learn(self) -> None:
        """Model the embeddings of the train images."""
        embedded, chosen = [], []
        with evaluating(self.model):
            for batch in self.trainer.train_dataloader:
                embedded.append(self.model.embed(preprocessed(self, batch.image)))
                chosen.append(self.is_held_out(batch))
        embeddings, held_out = torch.cat(embedded), torch.cat(chosen)
        self.detector.fit_density(embeddings[~held_out].cpu())
        self.model.density.set_state(self.detector.density.state())
        judging = embeddings[held_out] if held_out.any() else embeddings
        self.decide_by(self.model.density(judging), is_held_out=bool(held_out.any()))
