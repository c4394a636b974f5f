"""Images of all kinds, embedded by the CutPaste ResNet18."""

from __future__ import annotations

import pytest
import torch
from detectors import Recording, cutpaste, same_weights, textures, trained, weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("density", ["gaussian", "kde"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_train_images_than_a_batch(count, density):
    found = trained(textures(count), density=density)
    unseen = textures(5, seed=1)
    embeddings, scores = found.encode(unseen), found.score(unseen)
    assert embeddings.shape == (5, 32)
    assert embeddings.isfinite().all()
    assert scores.shape == (5,)
    assert scores.isfinite().all()
    assert len(set(scores.tolist())) > 1


def test_grey_images_are_taken_as_colour_images_without_colour(finished_detector):
    grey = textures(channels=1)
    found = trained(grey)
    assert found.score(grey).isfinite().all()
    assert torch.allclose(
        finished_detector.encode(grey), finished_detector.encode(grey.expand(-1, 3, -1, -1)), atol=1e-6
    )


@pytest.mark.parametrize(("height", "width"), [(20, 50), (96, 32), (32, 32), (7, 5), (1, 1)])
def test_images_of_any_size(height, width):
    images = textures(6, height=height, width=width)
    found = trained(images, until=2)
    assert found.encode(images).shape == (6, 32)
    assert found.score(images).isfinite().all()
    augmented = found.encode_augmented(images, cutpaste(), generator=torch.Generator().manual_seed(0))
    assert augmented.shape == (6, 32)


def test_number_types_make_no_difference(finished_detector):
    images = textures(6)
    as_float = images.float() / 255
    embeddings = finished_detector.encode(images)
    assert torch.equal(finished_detector.encode(as_float), embeddings)
    assert torch.allclose(finished_detector.encode(images.double() / 255), embeddings, atol=1e-6)
    assert torch.allclose(finished_detector.encode(as_float.half()), embeddings, atol=1e-2)
    assert torch.equal(finished_detector.score(as_float), finished_detector.score(images))
    assert same_weights(trained(textures().float() / 255), finished_detector)


@pytest.mark.parametrize("size", [1, 3, 64, 65])
def test_an_embedding_does_not_depend_on_its_neighbours(size, finished_detector):
    images = textures(70, seed=2)
    apart = torch.cat([finished_detector.encode(batch) for batch in torch.split(images, size)])
    assert torch.allclose(
        apart, finished_detector.encode(images), atol=1e-4
    )  # convolutions sum in an order of their own


def test_embeddings_have_unit_length_and_encoding_changes_nothing(finished_detector):
    images = textures(9, seed=3)
    before = {name: value.clone() for name, value in weights(finished_detector).items()}
    embeddings = finished_detector.encode(images)
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(9), atol=1e-6)
    assert not embeddings.requires_grad
    assert torch.equal(finished_detector.encode(images), embeddings)
    assert all(torch.equal(value, before[name]) for name, value in weights(finished_detector).items())


def test_augmented_copies_are_the_encoded_copies(finished_detector):
    images = textures(9)
    found = finished_detector.encode_augmented(images, cutpaste(), generator=torch.Generator().manual_seed(3))
    copies = cutpaste()(images.float() / 255, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(found, finished_detector.encode(copies), atol=1e-6)


def test_augmented_copies_are_drawn_apart_from_those_of_training():
    recording = Recording()
    found = trained(augmentation=recording)
    training_seeds = {seed for _, _, seed in recording.calls}
    from dsv_plugins.seeding import derived_seed
    from dsv_plugins.training.evaluate import AUGMENTED_COPIES

    assert derived_seed(0, AUGMENTED_COPIES) not in training_seeds
    assert found.network().completed_updates == len(training_seeds)
