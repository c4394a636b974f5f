"""The metric by itself, across processes and in a Lightning training."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from dsv_plugins.errors import EmbeddingError
from dsv_plugins.losses import dsv
from dsv_plugins.metric import DSVMetric


def embeddings(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "train": torch.randn(12, 5, generator=generator),
        "augmented": torch.randn(12, 5, generator=generator) + 2,
        "test": torch.randn(9, 5, generator=generator) + 1,
    }


@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_batches_add_up_to_the_loss_of_the_whole(variant: Any) -> None:
    sets = embeddings()
    metric = DSVMetric(variant=variant)
    for train, augmented in zip(sets["train"].split(5), sets["augmented"].split(5), strict=True):
        metric.update(train=train, augmented=augmented)
    for test in sets["test"].split(2):
        metric.update(test=test)
    loss = metric.compute()
    assert loss.shape == ()
    assert loss == dsv(**sets, variant=variant)


def test_reset_forgets() -> None:
    metric = DSVMetric()
    metric.update(**embeddings(0))
    first = metric.compute()
    metric.reset()
    metric.update(**embeddings(1))
    assert metric.compute() == dsv(**embeddings(1)) != first


def test_forward_gives_the_loss_of_the_batch_and_keeps_it() -> None:
    metric = DSVMetric()
    assert metric(**embeddings(0)) == dsv(**embeddings(0))
    assert metric(**embeddings(1)) == dsv(**embeddings(1))
    both: dict[str, Any] = {name: torch.cat([embeddings(0)[name], embeddings(1)[name]]) for name in embeddings()}
    assert metric.compute() == dsv(**both)


@pytest.mark.parametrize("missing", ["train", "augmented", "test"])
def test_a_set_that_never_came_is_named(missing: str) -> None:
    metric = DSVMetric()
    metric.update(**{name: each for name, each in embeddings().items() if name != missing})
    with pytest.raises(EmbeddingError, match=f"^{missing} is empty"):
        metric.compute()


def test_an_unknown_variant_is_refused_before_any_training() -> None:
    with pytest.raises(ValueError, match=r"'papre'.*paper, reference"):
        DSVMetric(variant="papre")  # type: ignore[arg-type]


def test_it_stays_a_module_that_can_switch_modes() -> None:
    metric = DSVMetric()
    metric.update(**embeddings())
    assert metric.eval().train() is metric


def test_no_graph_is_kept() -> None:
    metric = DSVMetric()
    metric.update(**{name: each.requires_grad_() for name, each in embeddings().items()})
    assert not metric.compute().requires_grad
    assert not metric.train_embeddings[0].requires_grad


def test_it_can_be_pickled_with_what_it_has_seen() -> None:
    metric = DSVMetric(variant="reference")
    metric.update(**embeddings())
    assert pickle.loads(pickle.dumps(metric)).compute() == metric.compute()


def test_the_embeddings_of_all_processes_count() -> None:
    other = embeddings(1)
    places = iter(("train", "augmented", "test"))

    def gather(mine: Tensor, group: object = None) -> list[Tensor]:
        return [mine, other[next(places)]]

    metric = DSVMetric(dist_sync_fn=gather, distributed_available_fn=lambda: True)
    metric.update(**embeddings(0))
    both: dict[str, Any] = {name: torch.cat([mine, other[name]]) for name, mine in embeddings(0).items()}
    assert metric.compute() == dsv(**both)


class Encoder(LightningModule):
    """All three sets come out of every validation batch; keeps what the metric should have been."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.metric = DSVMetric()
        self.expected: list[float] = []

    def training_step(self, batch: Tensor) -> Tensor:
        return self.layer(batch).square().mean()  # type: ignore[no-any-return]

    def on_validation_epoch_start(self) -> None:
        self.seen: dict[str, list[Tensor]] = {"train": [], "augmented": [], "test": []}

    def update(self, **sets: Tensor) -> None:
        for name, each in sets.items():
            self.seen[name].append(each)
        self.metric.update(**sets)

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.update(train=self.layer(batch), augmented=self.layer(batch + 1), test=self.layer(batch - 1))
        self.log("dsv", self.metric, on_step=False, on_epoch=True)

    def on_validation_epoch_end(self) -> None:
        sets: dict[str, Any] = {name: torch.cat(batches) for name, batches in self.seen.items()}
        self.expected.append(float(dsv(**sets)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TwoLoaders(Encoder):
    """Train and test images come one after the other, so the metric is logged when both have been seen."""

    def validation_step(self, batch: Tensor, index: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx == 0:
            self.update(train=self.layer(batch), augmented=self.layer(batch + 1))
        else:
            self.update(test=self.layer(batch))

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log("dsv", self.metric)


@pytest.mark.parametrize(("module", "loaders"), [(Encoder, 1), (TwoLoaders, 2)])
def test_lightning_logs_and_resets_it_each_epoch(module: type[Encoder], loaders: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    images: Any = torch.randn(16, 4)
    loader: DataLoader[Tensor] = DataLoader(images, batch_size=4)
    encoder = module()
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
    )
    trainer.fit(encoder, loader, [loader] * loaders)
    first, last = encoder.expected
    assert first != last
    assert float(trainer.callback_metrics["dsv"]) == pytest.approx(last)
    assert encoder.metric.train_embeddings == []
