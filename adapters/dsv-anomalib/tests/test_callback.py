"""DSV as something to monitor."""

from __future__ import annotations

import pytest
import torch
from anomalib.callbacks import ModelCheckpoint
from anomalib.engine import Engine
from anomalib.models import Padim
from anomalib.models.image.glass import Glass
from conftest import QUIET, SIDE, TINY_CUTPASTE, augmentation, folder
from lightning.pytorch.callbacks import Callback, EarlyStopping

from dsv_anomalib import CutPaste, DSVCallback
from dsv_anomalib.data import images_of
from dsv_anomalib.table import ENTRIES
from dsv_plugins import InputError
from dsv_plugins.losses import discordance, dsv, energy_distance, separability


def cosine(train, augmented, test):
    """The definition by squared distances in a Hilbert space, whose inner products are differences of them."""
    to_test, to_augmented = energy_distance(train, test), energy_distance(train, augmented)
    inner = (to_test + to_augmented - energy_distance(augmented, test)) / 2
    return -inner / (to_test * to_augmented).sqrt()


LOGGED = {
    "dsv": dsv,
    "dsv_discordance": discordance,
    "dsv_separability": separability,
    "energy": lambda train, _, test: -energy_distance(train, test) / torch.cdist(train, train).mean(),
    "cosine": cosine,
}


class Recorder(Callback):
    def __init__(self):
        self.epochs = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.epochs.append({name: float(trainer.callback_metrics[name]) for name in LOGGED})


def test_what_is_logged_is_dsv_of_the_module_and_can_be_monitored(task, tmp_path):
    module = CutPaste(**TINY_CUTPASTE)
    callback = DSVCallback("cutpaste", {"patch_size": 0.2}, images=6, every_n_epochs=2, seed=5)
    recorder = Recorder()
    monitors = [EarlyStopping(monitor="dsv", patience=9), ModelCheckpoint(dirpath=tmp_path / "best", monitor="dsv")]
    engine = Engine(callbacks=[callback, recorder, *monitors], default_root_dir=tmp_path, **QUIET)
    datamodule = folder(task, val_split_mode="same_as_test")
    engine.fit(module, datamodule=datamodule)

    first, second, third = recorder.epochs
    assert first == second != third
    train, test = (pixels / 255 for pixels in images_of(datamodule, SIDE, at_most=6))
    copies = augmentation("cutpaste", patch_size=0.2)(train, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        sets = [
            torch.nn.functional.normalize(module.eval().model.network(pixels), dim=1)
            for pixels in (train, copies, test)
        ]
    for name, loss in LOGGED.items():
        assert third[name] == pytest.approx(float(loss(*sets)), rel=1e-3)
    assert list((tmp_path / "best").glob("*.ckpt"))
    assert 0 < callback.share_of_time < 1


def test_a_model_of_the_table_and_a_training_without_validation(task, tmp_path):
    (entry,) = (entry for entry in ENTRIES if entry.name == "glass")
    module = entry.build(
        pre_processor=Glass.configure_pre_processor((SIDE, SIDE)), **entry.check_params["model_params"]
    )
    recorder, callback = Recorder(), DSVCallback(augmentation=None, images=4)
    engine = Engine(
        callbacks=[callback, recorder], default_root_dir=tmp_path, max_epochs=2, limit_val_batches=0, **QUIET
    )
    engine.fit(module, datamodule=folder(task))
    assert len(recorder.epochs) == 2
    assert recorder.epochs[0]["dsv"] != recorder.epochs[1]["dsv"]
    assert module.model.gaussian_noise_std == 0.015


def test_an_encoder_of_ones_own_sees_no_more_images_than_asked_for(task, tmp_path):
    seen = []

    def encode(module, pixels):
        seen.append(len(pixels))
        return pixels.flatten(1)

    callback = DSVCallback(encoder=encode, images=3, image_size=16)
    engine = Engine(callbacks=[callback], default_root_dir=tmp_path, limit_val_batches=0, max_epochs=1, **QUIET)
    module = CutPaste(**TINY_CUTPASTE)
    module.model.network.head.eval()
    engine.fit(module, datamodule=folder(task))
    assert seen == [3, 3, 3]
    assert module.model.network.backbone.training
    assert not module.model.network.head.training  # a part that was frozen is frozen still
    assert float(engine.trainer.callback_metrics["dsv"]) > 0


def test_models_without_augmentation_are_refused_before_they_train(task, tmp_path):
    module = Padim(backbone="resnet18", pre_trained=False)
    engine = Engine(callbacks=[DSVCallback()], default_root_dir=tmp_path, limit_val_batches=0, **QUIET)
    with pytest.raises(InputError, match="Padim has no augmentation to select"):
        engine.fit(module, datamodule=folder(task))
