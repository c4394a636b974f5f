"""The settings of a study: which of them tell one run folder from another."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pytest
import torch

from dsv_plugins import InputError, Range
from dsv_plugins.study.settings import StudySettings

SETTINGS = StudySettings(Path("/parts/train"), Path("/parts/test"))

OTHERS = {
    "train": Path("/parts/train-2"),
    "test": Path("/parts/test-2"),
    "augmentation": "cutout",
    "grid": {"patch_size": [0.1]},
    "search": "halving",
    "rungs": 4,
    "rung_factor": 2.5,
    "detector": "linear",
    "detector_params": {"width": 16},
    "holdout": 0.15,
    "seed": 1,
    "drop_suspects": 0.1,
    "tile": 512,
    "overlap": 0.5,
    "threads": 2,
    "image_size": 64,
}
"""Another value of each setting on which the trainings depend."""

FREE = {
    "search_params": {"trials": 3},
    "selector": "mmd",
    "selector_params": {"sign": -1},
    "executor": "serial",
    "executor_params": {"num_gpus": 1},
    "workers": 3,
    "timeout": 60.0,
    "keep": "ensemble",
    "observers": "lines",
    "observer_params": {"lines": {"path": "elsewhere"}},
    "skip_bad": True,
    "confidence": False,
    "plugins": (object(),),
}
"""Another value of each setting on which no training depends, but for `out`, which names the folder itself."""


def test_every_setting_identifies_a_run_unless_it_is_listed_here_as_free():
    names = {setting.name for setting in fields(StudySettings)}
    assert set(SETTINGS.identity()) == names - {*FREE, "out"}
    assert names == {*OTHERS, *FREE, "out"}, "give a new setting another value in one of the two lists above"
    declared = {setting.name for setting in fields(StudySettings) if not setting.metadata.get("identifies", True)}
    assert declared == {*FREE, "out"}


@pytest.mark.parametrize("name", OTHERS)
def test_another_value_of_an_identifying_setting_is_another_folder(name):
    other = replace(SETTINGS, **{name: OTHERS[name]})
    assert other.identity()[name] != SETTINGS.identity()[name]
    assert other.folder() != SETTINGS.folder()


@pytest.mark.parametrize("name", FREE)
def test_another_value_of_a_free_setting_is_the_same_folder(name):
    assert replace(SETTINGS, **{name: FREE[name]}).folder() == SETTINGS.folder()


def test_a_setting_that_a_subclass_adds_identifies_too():
    @dataclass(frozen=True)
    class More(StudySettings):
        depth: int = 3
        colour: str = field(default="red", metadata={"identifies": False})

    more = More(Path("/parts/train"), Path("/parts/test"))
    assert set(more.identity()) == {*OTHERS, "depth"}
    assert replace(more, depth=4).folder() != more.folder()
    assert replace(more, colour="blue").folder() == more.folder()


def test_tensors_identify_by_their_content():
    images = torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4)
    same = replace(SETTINGS, train=images.clone())
    assert replace(SETTINGS, train=images).folder() == same.folder()
    assert replace(SETTINGS, train=images + 1).folder() != same.folder()


def test_a_name_alone_a_list_and_text_with_commas_are_one_setting():
    several = replace(SETTINGS, augmentation="cutout, cutpaste", selector="dsv,mc", observers="lines,notes")
    assert (several.augmentations, several.selectors) == (("cutout", "cutpaste"), ("dsv", "mc"))
    assert several.observer_names == ("lines", "notes")
    assert replace(SETTINGS, augmentation=["cutout", "cutpaste"]).folder() == several.folder()
    assert SETTINGS.observer_names == ()


def test_a_range_identifies_by_its_ends_and_its_scale():
    ranges = [Range(0.01, 0.3), Range(0.01, 0.4), Range(0.01, 0.3, log=True)]
    assert len({replace(SETTINGS, grid={"patch_size": each}).folder() for each in ranges}) == 3


def test_what_cannot_be_stored_is_refused_in_words():
    settings = replace(SETTINGS, detector_params={"layer": object()})
    with pytest.raises(InputError, match="the settings cannot be stored .*give numbers, text or lists"):
        settings.folder()
    with pytest.raises(InputError, match="a search with 0 rungs of factor 3"):
        replace(SETTINGS, rungs=0)
