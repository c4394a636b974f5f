"""Models that are no name in the table: functions that make one, and entries of a user's own."""

from __future__ import annotations

import dataclasses
import operator
from typing import ClassVar

import pytest
import torch
from anomalib import LearningType
from anomalib.data import InferenceBatch
from anomalib.models.components import AnomalibModule
from anomalib.models.image.general_ad import GeneralAD
from conftest import SIDE, augmentation, folder
from torch import nn

import dsv_anomalib
from dsv_anomalib import Entry, ImageSpace
from dsv_anomalib.models import detector_of
from dsv_anomalib.table import ENTRIES
from dsv_plugins import InputError, UnknownPluginError


def small_generalad() -> GeneralAD:
    (entry,) = (entry for entry in ENTRIES if entry.name == "generalad")
    pre_processor = GeneralAD.configure_pre_processor(image_size=(SIDE, SIDE))
    return GeneralAD(pre_processor=pre_processor, **entry.check_params["model_params"])


def test_a_function_may_make_the_model(task, tmp_path):
    found = dsv_anomalib.select(
        small_generalad,
        folder(task),
        augmentation="anomalib-feature-noise",
        space={"noise_std": [0.1, 0.5]},
        detector_params={"updates": 2, "batch_size": 4},
        executor="serial",
        out=tmp_path / "run",
    )
    assert found.choice.candidate.detector.startswith("anomalib-generalad-")
    assert found.model.model.noise_std == found.choice.candidate.params["noise_std"]


class MyNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 4))

    def forward(self, pixels):
        return InferenceBatch(pred_score=self.encoder(pixels).norm(dim=1))


class Mine(AnomalibModule):
    """A model of a user's own, with a generator of anomalies that returns no masks."""

    learning_type = LearningType.ONE_CLASS
    trainer_arguments: ClassVar = {}

    def __init__(self, **components):
        super().__init__(**components)
        self.generator = nn.Identity()
        self.model = MyNetwork()

    def training_step(self, batch, *args):
        normal, augmented = (self.model(pixels).pred_score for pixels in (batch.image, self.generator(batch.image)))
        return {"loss": normal.mean() + (1 - augmented).relu().mean()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def test_a_model_of_ones_own_takes_an_entry_of_a_few_lines(task, tmp_path):
    entry = Entry(
        name="mine",
        model=Mine,
        tap=lambda module, pixels: module.model.encoder(pixels),
        image=ImageSpace("generator", normalised=True),
    )
    found = dsv_anomalib.select(
        entry,
        folder(task),
        augmentation="cutout",
        space={"patch_size": [0.1, 0.4]},
        detector_params={"image_size": SIDE, "updates": 3, "batch_size": 4},
        executor="serial",
        holdout=0.5,
        out=tmp_path / "run",
    )
    assert isinstance(found.model, Mine)
    with pytest.raises(UnknownPluginError, match="if it is an Entry or a function of your own, give it as model="):
        dsv_anomalib.load(tmp_path / "run")
    loaded = dsv_anomalib.load(tmp_path / "run", model=entry)
    assert torch.equal(loaded.model.encoder[-1].weight, found.model.model.encoder[-1].weight)
    pixels = torch.rand(2, 3, SIDE, SIDE)
    expected = found.model.model.encoder(found.model.pre_processor.transform(pixels))
    torch.testing.assert_close(
        found.load_detector(found.choice.candidate).encode(pixels), expected, rtol=1e-4, atol=1e-5
    )


def own_entry(place="generator", model=Mine, **settings):
    tap = operator.attrgetter("model.encoder")
    return Entry("mine", model, tap=lambda module, pixels: tap(module)(pixels), image=ImageSpace(place, **settings))


def trained_once(entry):
    detector = entry.record().factory(image_size=SIDE, updates=1, batch_size=2)
    detector.fit(torch.randint(256, (4, 3, SIDE, SIDE), dtype=torch.uint8), augmentation("cutout", patch_size=0.1))
    return detector


class Masked(Mine):
    """Its generator returns masks."""

    def __init__(self, **components):
        super().__init__(**components)
        self.generator = WithMask()

    def training_step(self, batch, *args):
        _, mask = self.generator(batch.image)
        assert mask.shape == (len(batch.image), 1, SIDE, SIDE)
        return {"loss": self.model(batch.image).pred_score.mean()}


class WithMask(nn.Module):
    def forward(self, pixels):
        return pixels, pixels[:, :1]


class Picky(Mine):
    """Its generator takes more than images."""

    def __init__(self, **components):
        super().__init__(**components)
        self.generator = nn.Bilinear(2, 2, 2)


def test_whether_a_generator_returns_masks_is_found_out():
    assert not trained_once(own_entry()).module.generator.masked
    assert trained_once(own_entry(model=Masked)).module.generator.masked
    with pytest.raises(InputError, match="say in ImageSpace whether it returns masks, with masked=True"):
        trained_once(own_entry(model=Picky))
    assert not trained_once(own_entry(model=Picky, masked=False)).module.generator.masked


def test_a_wrong_place_is_not_blamed_on_anomalib():
    with pytest.raises(InputError, match="Mine has no attribute generater, .*; did you mean 'generator'\\?"):
        trained_once(own_entry("generater"))


def test_what_a_function_makes_gets_images_of_the_size_that_was_asked_for():
    seen = set()

    def made():
        module = Mine(pre_processor=Mine.configure_pre_processor((256, 256)))
        module.model.register_forward_pre_hook(lambda _, inputs: seen.add(tuple(inputs[0].shape[-2:])))
        return module

    found = dataclasses.replace(own_entry(), build=lambda **arguments: made())
    trained_once(found)
    assert seen == {(SIDE, SIDE)}


def test_a_module_that_is_made_is_not_made_again(task):
    with pytest.raises(InputError, match="the model is a Mine that is made already; give the class Mine"):
        dsv_anomalib.select(Mine(), folder(task))


def test_a_wrong_tap_is_named():
    wrong = dataclasses.replace(own_entry(), tap=lambda module, pixels: module.model.missing(pixels))
    with pytest.raises(InputError, match=r"the tap of mine failed \(AttributeError: .*missing.*; it takes the module"):
        trained_once(wrong).encode(torch.rand(2, 3, SIDE, SIDE))


@pytest.mark.parametrize(
    ("model", "detector"),
    [
        ("cutpaste", "cutpaste-resnet18"),
        (dsv_anomalib.CutPaste, "cutpaste-resnet18"),
        (dsv_anomalib.PatchFusion, "patch-fusion"),
        ("dsv_anomalib.PatchMemory", "patch-memory"),
        ("patch-memory", "patch-memory"),
    ],
)
def test_our_modules_are_selected_as_their_detectors(model, detector):
    assert detector_of(model)[0] == detector
