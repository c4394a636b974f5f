"""What can go wrong in a training of the CutPaste ResNet18."""

from __future__ import annotations

import math
import signal

import pytest
import torch
from detectors import cutpaste, detector, same_weights, textures, trained

from dsv_plugins import (
    InputError,
    TrainingError,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class Spoiled:
    """CutPaste, until something happens at one call."""

    def __init__(self, call, happens):
        self.call, self.happens, self.calls = call, happens, 0

    def __call__(self, images, *, generator):
        self.calls += 1
        augmented = cutpaste()(images, generator=generator)
        return self.happens(augmented) if self.calls == self.call else augmented


def raising(error):
    def happens(_):
        raise error

    return happens


@pytest.mark.parametrize(
    ("updates", "at"), [(30, 10), (5, 5)]
)  # the loss is read every ten updates, and at the end of a rung
def test_a_diverged_training_says_where_and_what_to_do(updates, at):
    found = detector()
    with pytest.raises(TrainingError, match=rf"its loss was nan at update {at} of 30; try a learning_rate below 0.03"):
        found.fit(textures(), Spoiled(4, lambda images: images * math.nan), updates=updates)
    with pytest.raises(InputError, match="not trained yet"):
        found.score(textures())


@pytest.mark.parametrize("updates", [1, 30])
def test_a_learning_rate_far_too_large_ends_in_a_training_error(updates):
    with pytest.raises(TrainingError, match=r"the training diverged: .* at update \d+ of 30"):
        trained(learning_rate=1e36, until=updates)


def test_keyboard_interrupt_stays_one_and_training_can_go_on(finished_detector):
    handler = signal.getsignal(signal.SIGINT)
    found = detector()
    with pytest.raises(KeyboardInterrupt):
        found.fit(textures(), Spoiled(5, raising(KeyboardInterrupt())))
    assert signal.getsignal(signal.SIGINT) is handler
    assert found.network().completed_updates == 4
    with pytest.raises(InputError, match="not trained yet"):
        found.score(textures())
    found.fit(textures(), cutpaste())
    assert same_weights(found, finished_detector)


@pytest.mark.parametrize("error", [RuntimeError("broken augmentation"), SystemExit(3), MemoryError()])
def test_what_an_augmentation_raises_comes_out_as_it_is(error, finished_detector):
    found = detector()
    with pytest.raises(type(error)) as caught:
        found.fit(textures(), Spoiled(5, raising(error)))
    assert caught.value is error
    found.fit(textures(), cutpaste())
    assert same_weights(found, finished_detector)


def test_what_progress_raises_comes_out_as_it_is():
    error = RuntimeError("stop")
    with pytest.raises(RuntimeError) as caught:
        detector().fit(textures(), cutpaste(), progress=lambda *_: raising(error)(None))
    assert caught.value is error


@pytest.mark.parametrize("shape", [(3, 32, 32), (0, 3, 32, 32), (4, 2, 32, 32), (4, 32, 32, 3)])
def test_images_of_another_shape_are_refused(shape, finished_detector):
    images = torch.zeros(shape, dtype=torch.uint8)
    for call in (
        lambda: detector().fit(images, cutpaste()),
        lambda: finished_detector.encode(images),
        lambda: finished_detector.score(images),
        lambda: finished_detector.encode_augmented(images, cutpaste(), generator=torch.Generator()),
    ):
        with pytest.raises(InputError, match=r"give at least one, as \(images, 1 or 3, height, width\)"):
            call()


def test_an_untrained_detector_says_so(tmp_path):
    for call in (
        lambda: detector().encode(textures(2)),
        lambda: detector().score(textures(2)),
        lambda: detector().save(tmp_path),
    ):
        with pytest.raises(InputError, match="not trained yet; call fit or load first"):
            call()


def test_training_cannot_go_on_with_another_seed():
    found = trained(until=2)
    with pytest.raises(InputError, match="began with seed 0 and cannot resume with seed 1"):
        found.fit(textures(), cutpaste(), seed=1)
