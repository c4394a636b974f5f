"""A saved CutPaste ResNet18 is the same when it is loaded, and damage is named."""

from __future__ import annotations

import json

import pytest
import torch
from detectors import cutpaste, detector, same_weights, textures, trained
from safetensors.torch import load_file, save_file

from dsv_plugins import (
    InputError,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_saved_files_are_safetensors_and_json(finished_detector, tmp_path):
    finished_detector.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector.json", "detector.safetensors"]
    json.loads((tmp_path / "detector.json").read_text())
    tensors = load_file(tmp_path / "detector.safetensors")
    assert not any(name.startswith("momentum.") for name in tensors), "a finished_detector training needs none"


@pytest.mark.parametrize("density", ["gaussian", "kde"])
def test_a_loaded_detector_is_the_saved_one(density, tmp_path):
    found = trained(density=density)
    found.save(tmp_path)
    loaded = detector(density=density)
    loaded.load(tmp_path)
    images = textures(5, seed=5)
    assert same_weights(loaded, found)
    assert torch.equal(loaded.encode(images), found.encode(images))
    assert torch.equal(loaded.score(images), found.score(images))
    assert loaded.training_accuracy == pytest.approx(found.training_accuracy)


def test_loading_into_other_settings_is_refused(finished_detector, tmp_path):
    finished_detector.save(tmp_path)
    other = detector(width=8)
    with pytest.raises(InputError, match=r"other settings; make this one with .*'width': 4"):
        other.load(tmp_path)


def without(name):
    def damage(folder):
        (folder / name).unlink()

    return damage


def cut(name):
    def damage(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def empty(name):
    return lambda folder: (folder / name).write_bytes(b"")


def without_part(part):
    def damage(folder):
        file = folder / "detector.safetensors"
        save_file({k: v.clone() for k, v in load_file(file).items() if not k.startswith(part)}, file)

    return damage


def other_json(content):
    return lambda folder: (folder / "detector.json").write_text(content)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (without("detector.json"), "detector.json"),
        (cut("detector.json"), "detector.json"),
        (empty("detector.json"), "detector.json"),
        (other_json("[]"), "detector.json"),
        (other_json("{}"), "detector.json"),
        (other_json("\xff"), "detector.json"),
        (without("detector.safetensors"), "detector.safetensors"),
        (cut("detector.safetensors"), "detector.safetensors"),
        (empty("detector.safetensors"), "detector.safetensors"),
        (without_part("network.backbone.conv1"), "detector.safetensors"),
        (without_part("network."), "detector.safetensors"),
        (without_part("density."), "detector.safetensors"),
        (without_part("momentum."), "detector.safetensors"),
        (without_part("momentum.3"), "detector.safetensors"),
    ],
)
def test_a_damaged_folder_is_one_line_that_names_the_file(damage, name, tmp_path):
    trained(until=2).save(tmp_path)
    damage(tmp_path)
    found = detector()
    with pytest.raises(InputError) as caught:
        found.load(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / name} cannot be read as a saved detector")
    assert "\n" not in message
    with pytest.raises(InputError, match="not trained yet"):
        found.encode(textures(1))


def test_a_save_that_is_cut_short_is_not_mistaken_for_a_whole_one(tmp_path, monkeypatch):
    found = trained(until=2)
    found.save(tmp_path)
    found.fit(textures(), cutpaste(), updates=4)

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr("dsv_plugins.toolkit.saved_files.save_file", fail)
    with pytest.raises(OSError, match="no space"):
        found.save(tmp_path)
    with pytest.raises(InputError, match=r"detector\.json"):
        detector().load(tmp_path)
