"""The network is that of torchvision, and every epoch has every image once."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from detectors import textures, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import resnet18

from dsv_plugins.builtin.detectors.cutpaste_resnet18.resnet import ResNet18
from dsv_plugins.toolkit.lightning_loop import Batches

pytestmark = pytest.mark.usefixtures("one_thread")


def test_resnet18_is_that_of_torchvision():
    reference = resnet18()
    reference.fc = nn.Identity()
    ours = ResNet18(64)
    assert list(ours.state_dict()) == list(reference.state_dict())
    with torch.no_grad():
        for value in reference.state_dict().values():  # statistics that are not those of a new network
            if value.is_floating_point():
                value.uniform_(0.01, 0.1, generator=torch.Generator().manual_seed(value.numel()))
    ours.load_state_dict(reference.state_dict())
    images = torch.rand(3, 3, 64, 96)
    for network in (reference, ours):
        network.eval()
    assert torch.allclose(ours(images), reference(images), rtol=1e-4, atol=1e-5)
    for network in (reference, ours):
        network.train()
    assert torch.allclose(ours(images), reference(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [1, 4, 16])
def test_embedding_is_eight_times_as_wide_as_the_first_stage(width):
    assert trained(width=width, until=1).encode(textures(2)).shape == (2, 8 * width)


@pytest.mark.parametrize("width", [4, 8, 16])
def test_gradients_are_those_of_double_precision(width):
    """Some memory formats of some widths have crashed oneDNN, or given it wrong gradients."""
    found = trained(width=width, until=0)
    module = found.network().train()
    images = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    reference = ResNet18(width).double()
    reference.load_state_dict(module.backbone.state_dict())
    probe = torch.rand(8 * width, generator=torch.Generator().manual_seed(1))
    (module.features(images) * probe).sum().backward()
    normalised = (images.double() - module.mean.double()) / module.std.double()
    (reference.train()(normalised) * probe.double()).sum().backward()
    for (name, ours), theirs in zip(module.backbone.named_parameters(), reference.parameters(), strict=True):
        error = (ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 0.05, name  # a rectifier may switch on the last digit; wrong gradients are wrong by factors


def stream(count, batch_size, seed, updates):
    images = torch.arange(count).view(-1, 1, 1, 1)
    batches = Batches(images, batch_size, seed, updates)
    assert len(batches) == len(updates)
    return [batches[index].flatten().tolist() for index in range(len(batches))]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 17), st.integers(0, 2**40))
def test_every_epoch_has_every_image_once(count, batch_size, seed):
    updates = math.ceil(3 * count / batch_size)
    batches = stream(count, batch_size, seed, range(updates))
    assert all(len(batch) == batch_size for batch in batches)
    images = [image for batch in batches for image in batch]
    for epoch in range(3):
        assert Counter(images[epoch * count : (epoch + 1) * count]) == Counter(range(count))


def test_epochs_and_seeds_have_orders_of_their_own():
    images = [image for batch in stream(50, 10, 0, range(10)) for image in batch]
    assert images[:50] != images[50:]
    assert stream(50, 10, 0, range(5)) != stream(50, 10, 1, range(5))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 17), st.integers(0, 20), st.integers(0, 20))
def test_a_batch_depends_on_the_number_of_its_update_only(count, batch_size, start, length):
    whole = stream(count, batch_size, 7, range(start + length))
    assert stream(count, batch_size, 7, range(start, start + length)) == whole[start:]
