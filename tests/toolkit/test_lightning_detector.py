"""A LightningModule as a detector: the example of the guide, and what the base class promises."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf
from torch import nn

from dsv_plugins import DetectorEncoderPlugin, InputError, LightningDetector, TrainingError, build_registry
from dsv_plugins.testing import parametrize_with_checks

pytestmark = pytest.mark.usefixtures("one_thread")
GUIDE = Path(__file__).parents[2] / "docs/how-to/wrap-a-lightningmodule.md"


class Tiny(pl.LightningModule):
    def __init__(self, rate: float = 0.01, dropout: float = 0.0) -> None:
        super().__init__()
        self.rate = rate
        self.encoder = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Dropout(dropout), nn.Linear(48, 5))
        self.head = nn.Linear(5, 1)
        self.batches = []

    def forward(self, images):
        return self.encoder(images)

    def training_step(self, batch, index):
        self.batches.append([each.clone() for each in batch])
        normal, augmented = batch
        return nn.functional.softplus(self.head(self(normal)) - self.head(self(augmented))).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


class TinyDetector(LightningDetector):
    image_size = 16
    updates = 6
    batch_size = 4

    def __init__(self, rate: float = 0.01, dropout: float = 0.0, **others: int) -> None:
        super().__init__(**others)
        self.settings = {"rate": rate, "dropout": dropout}

    def new_module(self):
        return Tiny(**self.settings)


def darker(images, *, generator):
    return images * torch.rand(len(images), 1, 1, 1, generator=generator)


def images(count: int = 10, side: int = 20) -> torch.Tensor:
    return torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def trained(seed: int = 0, **settings: float) -> TinyDetector:
    detector = TinyDetector(**settings)
    detector.fit(images(), darker, seed=seed)
    return detector


@parametrize_with_checks([DetectorEncoderPlugin("tiny", TinyDetector)])
def test_conformance(check) -> None:
    check()


def test_the_guide_is_short_and_its_example_is_a_detector() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    module = ModuleType("squeeze")
    exec(code, vars(module))
    detector = build_registry(plugins=module).create(DetectorEncoderPlugin, "squeeze")
    detector.fit(images(4, 64), darker, updates=2)
    assert detector.encode(images(3, 64)).shape == (3, 512)
    assert detector.score(images(3, 64)).isfinite().all()


def test_the_score_is_the_mahalanobis_distance_to_the_train_embeddings() -> None:
    detector = trained()
    fitted = LedoitWolf().fit(detector.encode(images()).double().numpy())
    new = images(30, 16)[10:]
    expected = np.sqrt(fitted.mahalanobis(detector.encode(new).double().numpy()))
    np.testing.assert_allclose(detector.score(new).numpy(), expected, rtol=1e-5)


def test_a_batch_has_normal_images_and_augmented_copies_of_the_same() -> None:
    batches = trained().trained_network.batches
    assert len(batches) == 6
    shares = []
    for normal, augmented in batches:
        assert normal.shape == augmented.shape == (4, 3, 16, 16)
        ratios = (augmented / normal.clamp(min=1e-6)).flatten(1).median(dim=1).values
        assert torch.allclose(augmented, normal * ratios[:, None, None, None], atol=1e-5)
        shares.append(ratios)
    assert len(torch.stack(shares).unique()) == 24  # every copy of every batch has its own draw


def test_the_same_seed_gives_the_same_detector_even_with_dropout() -> None:
    first, again, other = (trained(seed, dropout=0.5).encode(images()) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_updates_are_counted_and_told() -> None:
    told = []
    detector = TinyDetector()
    detector.fit(images(), darker, updates=3, progress=lambda *event: told.append(event))
    assert [event[:2] for event in told] == [(1, 3), (2, 3), (3, 3)]
    assert all(np.isfinite(event[2]) for event in told)
    assert len(detector.trained_network.batches) == 3


def test_a_saved_detector_scores_the_same_and_another_module_is_refused(tmp_path: Path) -> None:
    detector = trained()
    detector.save(tmp_path)
    loaded = TinyDetector()
    before = torch.get_rng_state()
    loaded.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(loaded.score(images()), detector.score(images()))

    class Wider(TinyDetector):
        def new_module(self):
            module = Tiny()
            module.head = nn.Linear(7, 1)
            return module

    with pytest.raises(InputError, match="cannot be read as a saved detector"):
        Wider().load(tmp_path)


def test_the_exported_module_scores_the_same() -> None:
    detector = trained()
    (scores,) = detector.as_module()(images(side=16).float() / 255)
    assert torch.allclose(scores, detector.score(images(side=16)), rtol=1e-5)


def test_the_budget_the_size_and_the_batches_can_be_set() -> None:
    detector = TinyDetector(updates=2, image_size=8, batch_size=3)
    detector.fit(images(), darker)
    assert [normal.shape for normal, _ in detector.trained_network.batches] == [(3, 3, 8, 8)] * 2
    with pytest.raises(ValueError, match="updates is 0; give a whole number"):
        TinyDetector(updates=0)


@pytest.mark.parametrize(
    ("method", "replacement", "reason"),
    [
        ("training_step", lambda self, batch, index: None, "training_step of the module returned no loss"),
        (
            "forward",
            lambda self, images: (self.encoder(images),),
            "forward of the module returned tuple; return the em",
        ),
        (
            "forward",
            lambda self, images: images,
            r"returned a tensor of shape \(10, 3, 16, 16\); return the embeddings",
        ),
    ],
)
def test_what_a_module_returns_wrongly_is_named(method, replacement, reason, monkeypatch) -> None:
    if method == "forward":
        monkeypatch.setattr(Tiny, "training_step", lambda self, batch, index: self.head.weight.sum())
    monkeypatch.setattr(Tiny, method, replacement)
    with pytest.raises(TrainingError, match=reason):
        trained()


def test_a_training_that_diverges_and_a_detector_without_training_say_so() -> None:
    with pytest.raises(TrainingError, match="not finite after training"):
        trained(rate=float("inf"))
    with pytest.raises(InputError, match="not trained yet"):
        TinyDetector().score(images())
