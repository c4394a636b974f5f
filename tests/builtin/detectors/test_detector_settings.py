"""Settings and pretrained weights of the CutPaste ResNet18."""

from __future__ import annotations

import math
import time

import pytest
import torch
from detectors import REGISTRY, detector, same_weights, textures, trained
from torchvision.models import resnet18

from dsv_plugins import (
    DetectorEncoderPlugin,
    InputError,
    PluginSettingsError,
)

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHTS_FILE = "resnet18-f37072fd.pth"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"preset": "slow"}, "preset is 'slow'; give one of paper, quick"),
        ({"width": 0}, "width is 0; give a whole number of at least 1"),
        ({"image_size": 32.5}, "image_size is 32.5; give a whole number"),
        ({"updates": True}, "updates is True; give a whole number"),
        ({"batch_size": "8"}, "batch_size is '8'; give a whole number"),
        ({"learning_rate": 0}, "learning_rate is 0; give a number above 0"),
        ({"learning_rate": math.nan}, "learning_rate is nan; give a number above 0"),
        ({"learning_rate": math.inf}, "learning_rate is inf; give a number above 0"),
        ({"learning_rate": "high"}, "learning_rate is 'high'; give a number above 0"),
        ({"momentum": 1.0}, "momentum is 1.0; give a number from 0 to below 1"),
        ({"weight_decay": -1e-5}, "weight_decay is -1e-05; give a number from 0 to below 1"),
        ({"colour_jitter": 0.6}, "colour_jitter is 0.6; give a number from 0 to 0.5"),
        ({"density": "flow"}, "density is 'flow'; give one of gaussian, kde"),
        ({"pretrained": "yes"}, "pretrained is 'yes'; give true or false"),
        ({"pretrained": True}, "width 64 only, not 4"),
        ({"depth": 50}, "does not take 'depth'; it takes 'preset', 'image_size'"),
    ],
)
def test_wrong_settings_are_refused_when_the_detector_is_made(params, message):
    with pytest.raises(PluginSettingsError, match=message):
        detector(**params)


def test_presets_and_what_replaces_their_numbers():
    paper = REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18", {"preset": "paper"}).settings
    assert (paper.image_size, paper.width, paper.updates, paper.batch_size) == (256, 64, 10_000, 32)
    assert (paper.learning_rate, paper.momentum, paper.weight_decay) == (0.03, 0.9, 3e-5)
    assert (paper.colour_jitter, paper.pretrained, paper.density) == (0.1, False, "gaussian")
    default = REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18").settings
    assert (default.image_size, default.width) == (64, 16)
    changed = REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18", {"preset": "paper", "updates": 1000}).settings
    assert (changed.image_size, changed.updates) == (256, 1000)


@pytest.fixture
def torch_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    checkpoints = tmp_path / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    return checkpoints


PRETRAINED = {"width": 64, "pretrained": True, "updates": 1, "batch_size": 4}


def test_pretrained_weights_that_cannot_be_had(torch_home, monkeypatch, capfd):
    def no_network(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("socket.getaddrinfo", no_network)
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        trained(textures(2), **PRETRAINED)
    assert time.monotonic() - started < 20
    message = str(caught.value)
    for part in (WEIGHTS_FILE, "Network is unreachable", f"into {torch_home}", "pretrained=False"):
        assert part in message
    assert "\n" not in message
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_pretrained_weights_that_are_broken(torch_home, content):
    if content is None:
        torch.save({"conv1.weight": torch.zeros(1)}, torch_home / WEIGHTS_FILE)
    else:
        (torch_home / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(InputError, match=WEIGHTS_FILE) as caught:
        trained(textures(2), **PRETRAINED)
    assert "\n" not in str(caught.value)


def test_pretrained_weights_from_the_cache(torch_home, tmp_path):
    state = resnet18().state_dict()
    torch.save(state, torch_home / WEIGHTS_FILE)
    begun = trained(textures(2), until=0, **PRETRAINED)
    assert all(torch.equal(value, state[name]) for name, value in begun.network().backbone.state_dict().items())

    folder = tmp_path / "saved"
    folder.mkdir()
    begun.save(folder)
    (torch_home / WEIGHTS_FILE).unlink()
    loaded = detector(**PRETRAINED)
    loaded.load(folder)
    assert same_weights(loaded, begun), "a saved detector needs no pretrained weights"


def test_another_training_loop_can_take_the_network_and_bring_its_embeddings(finished_detector, tmp_path):
    driven = detector()
    driven.network(seed=0).load_state_dict(finished_detector.network().state_dict())
    driven.fit_density(driven.encode(textures()))
    assert torch.equal(driven.score(textures(seed=1)), finished_detector.score(textures(seed=1)))
    torch.save(driven.network(), tmp_path / "network.pt")  # as Lightning and anomalib export modules
