"""The CutPaste ResNet18: against torchvision, sklearn, scipy and closed forms, and whatever can go wrong with it."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score
from torch import nn
from torchvision.models import resnet18

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    InputError,
    PluginSettingsError,
    TrainingError,
    build_registry,
)
from dsv_plugins.builtin.densities import Gaussian, Kernel
from dsv_plugins.builtin.resnet import ResNet18
from dsv_plugins.builtin.training import Batches

REGISTRY = build_registry()
TINY = {"image_size": 32, "width": 4, "updates": 30, "batch_size": 8, "learning_rate": 0.03, "shared_updates": 0}
WEIGHTS_FILE = "resnet18-f37072fd.pth"


@pytest.fixture(autouse=True)
def _one_thread():
    """So small a network is slower on several threads, and far slower where others want the cores too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def detector(**params):
    return REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18", {**TINY, **params})


def cutpaste(patch_size=0.1):
    return REGISTRY.create(AugmentationPlugin, "cutpaste", {"patch_size": patch_size})


def textures(count=20, *, seed=0, channels=3, height=32, width=32):
    """Stripes of random phase with a little noise, as uint8."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(height)[:, None] / height
    columns = torch.arange(width)[None, :] / width
    phases = 2 * math.pi * torch.rand(count, channels, 1, 1, generator=generator)
    waves = torch.sin(2 * math.pi * (3 * rows + columns) + phases)
    noise = torch.randn(count, channels, height, width, generator=generator)
    return (128 + 50 * waves + 5 * noise).clamp(0, 255).to(torch.uint8)


def with_defects(images):
    """A black and a white bar across the middle."""
    images = images.clone()
    third = images.shape[-1] // 3
    images[:, :, third : third + 5, 4:-4] = 0
    images[:, :, third + 5 : third + 8, 4:-4] = 255
    return images


def trained(images=None, *, until=None, seed=0, augmentation=None, **params):
    found = detector(**params)
    found.fit(textures() if images is None else images, augmentation or cutpaste(), updates=until, seed=seed)
    return found


def weights(found):
    return found._module.state_dict()


def same_weights(first, second):
    first, second = weights(first), weights(second)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def finished():
    """One training that many tests look at, and none changes."""
    torch.set_num_threads(1)
    return trained()


IN_ANOTHER_PROCESS = """
    import sys
    from pathlib import Path

    import numpy as np
    import torch

    sys.path.insert(0, sys.argv[1])
    from test_detector import Recording, cutpaste, detector, textures

    torch.set_num_threads(1)
    folder = Path(sys.argv[2])

    # Go on with a training.
    found = detector()
    found.load(folder)
    found.fit(textures(), cutpaste())
    found.save(folder)

    # Train on 590 MB of mapped images.
    def anonymous_megabytes():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    if Path("/proc/self/status").exists():
        small = {"image_size": 16, "width": 2, "updates": 4, "shared_updates": 0, "batch_size": 8}
        few = textures(100, height=256, width=256)
        file = folder / "images"
        with file.open("wb") as images:
            for _ in range(30):
                images.write(few.numpy().tobytes())
        detector(**small).fit(few, cutpaste())
        before = anonymous_megabytes()
        mapped = torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r+", shape=(3000, 3, 256, 256)))
        found = detector(**small)
        found.fit(mapped, cutpaste())
        found.encode_augmented(mapped[:500], cutpaste(), generator=torch.Generator())
        print(anonymous_megabytes() - before, flush=True)
        file.unlink()
    else:
        print("nan", flush=True)

    # Be interrupted, then be terminated.
    class Announcing(Recording):
        def __call__(self, images, *, generator):
            print(".", flush=True)
            return images.clone()

    try:
        detector(updates=100_000).fit(textures(), Announcing())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    detector(updates=100_000).fit(textures(), Announcing())
"""


@dataclass
class AnotherProcess:
    folder: Path
    grown_megabytes: float
    interrupted: bool
    code: int


@pytest.fixture(scope="module")
def another_process(tmp_path_factory):
    """What happened in a process of its own: one for several tests, since it takes seconds to start."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("elsewhere")
    trained(until=10).save(folder)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(IN_ANOTHER_PROCESS), os.path.dirname(__file__), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        grown = float(process.stdout.readline())
        assert process.stdout.readline() == ".\n"
        process.send_signal(signal.SIGINT)
        interrupted = False
        while (line := process.stdout.readline()) == ".\n":
            pass
        interrupted = line == "interrupted\n"
        assert process.stdout.readline() == ".\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    return AnotherProcess(folder, grown, interrupted, process.returncode)


# ---------------------------------------------------------------------------
# The network
# ---------------------------------------------------------------------------


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
    module = found._module.train()
    images = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    reference = ResNet18(width).double()
    reference.load_state_dict(module.backbone.state_dict())
    probe = torch.rand(8 * width, generator=torch.Generator().manual_seed(1))
    (module(images) * probe).sum().backward()
    normalised = (images.double() - module.mean.double()) / module.std.double()
    (reference.train()(normalised) * probe.double()).sum().backward()
    for (name, ours), theirs in zip(module.backbone.named_parameters(), reference.parameters(), strict=True):
        error = (ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 0.05, name  # a rectifier may switch on the last digit; wrong gradients are wrong by factors


# ---------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("width", [4, 16])  # which have different memory formats
def test_training_in_rungs_ends_with_the_weights_of_one_go(width, tmp_path):
    images = textures()
    once = trained(images, width=width)

    rungs = detector(width=width)
    for updates in (10, 20, 30):
        rungs.fit(images, cutpaste(), updates=updates)
    assert same_weights(rungs, once)
    assert torch.equal(rungs.score(images), once.score(images))
    assert rungs.training_accuracy == once.training_accuracy

    reloaded = detector(width=width)
    reloaded.fit(images, cutpaste(), updates=7)
    for updates in (20, None):
        reloaded.save(tmp_path)
        reloaded = detector(width=width)
        reloaded.load(tmp_path)
        reloaded.fit(images, cutpaste(), updates=updates)
    assert same_weights(reloaded, once)
    assert torch.equal(reloaded.score(images), once.score(images))
    assert reloaded.training_accuracy == pytest.approx(once.training_accuracy)


def test_training_without_momentum_goes_on_after_loading(tmp_path):
    trained(momentum=0.0, until=3).save(tmp_path)
    found = detector(momentum=0.0)
    found.load(tmp_path)
    found.fit(textures(), cutpaste(), updates=6)
    assert same_weights(found, trained(momentum=0.0, until=6))


def test_training_goes_on_in_another_process(finished, another_process):
    elsewhere = detector()
    elsewhere.load(another_process.folder)
    assert same_weights(elsewhere, finished)


def test_seed_decides(finished):
    assert same_weights(trained(), finished)
    other = trained(seed=1)
    assert not same_weights(other, finished)
    start, other_start = trained(until=0), trained(until=0, seed=1)
    assert not torch.equal(weights(start)["backbone.conv1.weight"], weights(other_start)["backbone.conv1.weight"])


def test_updates_past_the_budget_and_before_the_present_change_nothing():
    found = trained(until=10**6)
    before = {name: value.clone() for name, value in weights(found).items()}
    found.fit(textures(), cutpaste(), updates=5)
    found.fit(textures(), cutpaste())
    assert found._module.completed_updates == TINY["updates"]
    assert all(torch.equal(value, before[name]) for name, value in weights(found).items())


def test_global_state_is_left_alone():
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    deterministic = torch.are_deterministic_algorithms_enabled()
    found = trained(until=3)
    found.score(textures(3))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert handlers == {number: signal.getsignal(number) for number in handlers}


def test_nothing_is_printed_and_nothing_is_written(capfd, tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    trained(until=2).encode(textures(2))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert [str(warning.message) for warning in recwarn] == []


def test_learning_rate_follows_half_a_cosine_through_all_rungs(monkeypatch):
    rates = []
    step = torch.optim.SGD.step

    def recording(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", recording)
    found = detector(learning_rate=0.05)
    for updates in (7, 20, 30):
        found.fit(textures(), cutpaste(), updates=updates)
    assert rates == pytest.approx([0.025 * (1 + math.cos(math.pi * k / 30)) for k in range(30)], rel=1e-12)


def test_settings_reach_the_optimizer():
    group = trained(until=1, momentum=0.5, weight_decay=1e-3)._module.optimizer.param_groups[0]
    assert group["momentum"] == 0.5
    assert group["weight_decay"] == 1e-3


def test_progress_is_told_at_the_first_update_every_ten_and_at_the_end_of_a_rung():
    calls = []
    found = detector()
    for updates in (7, 13, 30):
        found.fit(textures(), cutpaste(), updates=updates, progress=lambda *numbers: calls.append(numbers))
    assert [made for made, _, _ in calls] == [1, 7, 10, 13, 20, 30]
    assert {planned for _, planned, _ in calls} == {30}
    assert all(math.isfinite(loss) for _, _, loss in calls)


class Recording:
    """Passes images on unchanged, and remembers what it was given."""

    def __init__(self):
        self.calls = []

    def __call__(self, images, *, generator):
        self.calls.append((images, generator.device, generator.initial_seed()))
        return images.clone()


def test_augmentation_gets_float_images_of_the_networks_size_and_a_seed_for_each_update():
    recording = Recording()
    trained(textures(height=50, width=41), augmentation=recording, until=4)
    assert len(recording.calls) == 4
    for images, device, _ in recording.calls:
        assert images.shape == (8, 3, 32, 32)
        assert images.dtype == torch.float32
        assert 0 <= images.min() <= images.max() <= 1
        assert device == images.device
    assert len({seed for _, _, seed in recording.calls}) == 4


def test_images_are_made_in_full_precision_where_the_network_is_not():
    found = trained(until=0)
    module = found._module
    module.augmentation = cutpaste()
    seen = []
    module.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = textures(8)
    module.training_step(batch, 0)
    with torch.autocast("cpu", torch.bfloat16):
        module.training_step(batch, 0)
    assert seen[1].dtype == torch.float32
    assert torch.equal(seen[0], seen[1])


def test_it_learns():
    """Texture against texture with a dark square, in fewer updates than an epoch of most data sets."""

    class Square:
        def __call__(self, images, *, generator):
            size = 10
            starts = torch.randint(images.shape[-1] - size, (2, len(images), 1), generator=generator)
            inside = ((steps := torch.arange(images.shape[-1]) - starts) >= 0) & (steps < size)
            return images.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.0)

    images = textures(40)
    found = trained(images, augmentation=Square(), width=8, batch_size=16, updates=100)
    assert found.training_accuracy > 0.9
    unseen = textures(20, seed=1)
    scores = found.score(torch.cat([unseen, with_defects(unseen)]))
    assert roc_auc_score([0] * 20 + [1] * 20, scores.numpy()) > 0.9


def test_training_accuracy_is_that_of_the_last_updates():
    assert trained(until=0).training_accuracy is None
    found = trained(until=3)
    assert found.training_accuracy == pytest.approx(float(torch.stack(list(found._module.accuracies)).mean()))
    with pytest.raises(InputError, match="not trained yet"):
        _ = detector().training_accuracy


def test_images_are_let_go_after_training():
    images = textures()
    held = weakref.ref(images)
    found = trained(images, until=1)
    del images
    gc.collect()
    assert held() is None
    assert found._module.augmentation is None


def test_trainings_in_threads_do_not_disturb_each_other():
    expected = {seed: trained(seed=seed, until=3) for seed in (0, 1, 2)}
    found = {}

    def fit(seed):
        found[seed] = trained(seed=seed, until=3)

    threads = [threading.Thread(target=fit, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same_weights(found[seed], expected[seed]) for seed in expected)


def test_a_training_inside_a_cluster_job_is_one_process(monkeypatch, finished):
    for name, value in {
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "study",
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert same_weights(trained(), finished)


# ---------------------------------------------------------------------------
# What can go wrong in training
# ---------------------------------------------------------------------------


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


def test_keyboard_interrupt_stays_one_and_training_can_go_on(finished):
    handler = signal.getsignal(signal.SIGINT)
    found = detector()
    with pytest.raises(KeyboardInterrupt):
        found.fit(textures(), Spoiled(5, raising(KeyboardInterrupt())))
    assert signal.getsignal(signal.SIGINT) is handler
    assert found._module.completed_updates == 4
    with pytest.raises(InputError, match="not trained yet"):
        found.score(textures())
    found.fit(textures(), cutpaste())
    assert same_weights(found, finished)


@pytest.mark.parametrize("error", [RuntimeError("broken augmentation"), SystemExit(3), MemoryError()])
def test_what_an_augmentation_raises_comes_out_as_it_is(error, finished):
    found = detector()
    with pytest.raises(type(error)) as caught:
        found.fit(textures(), Spoiled(5, raising(error)))
    assert caught.value is error
    found.fit(textures(), cutpaste())
    assert same_weights(found, finished)


def test_what_progress_raises_comes_out_as_it_is():
    error = RuntimeError("stop")
    with pytest.raises(RuntimeError) as caught:
        detector().fit(textures(), cutpaste(), progress=lambda *_: raising(error)(None))
    assert caught.value is error


def test_signals_end_a_process_as_they_would_without_a_training(another_process):
    assert another_process.interrupted
    assert another_process.code == -signal.SIGTERM


@pytest.mark.parametrize("shape", [(3, 32, 32), (0, 3, 32, 32), (4, 2, 32, 32), (4, 32, 32, 3)])
def test_images_of_another_shape_are_refused(shape, finished):
    images = torch.zeros(shape, dtype=torch.uint8)
    for call in (
        lambda: detector().fit(images, cutpaste()),
        lambda: finished.encode(images),
        lambda: finished.score(images),
        lambda: finished.encode_augmented(images, cutpaste(), generator=torch.Generator()),
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
    with pytest.raises(InputError, match="began with seed 0 and cannot go on with seed 1"):
        found.fit(textures(), cutpaste(), seed=1)


# ---------------------------------------------------------------------------
# Images of all kinds
# ---------------------------------------------------------------------------


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


def test_grey_images_are_taken_as_colour_images_without_colour(finished):
    grey = textures(channels=1)
    found = trained(grey)
    assert found.score(grey).isfinite().all()
    assert torch.allclose(finished.encode(grey), finished.encode(grey.expand(-1, 3, -1, -1)), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(20, 50), (96, 32), (32, 32), (7, 5), (1, 1)])
def test_images_of_any_size(height, width):
    images = textures(6, height=height, width=width)
    found = trained(images, until=2)
    assert found.encode(images).shape == (6, 32)
    assert found.score(images).isfinite().all()
    augmented = found.encode_augmented(images, cutpaste(), generator=torch.Generator().manual_seed(0))
    assert augmented.shape == (6, 32)


def test_number_types_make_no_difference(finished):
    images = textures(6)
    as_float = images.float() / 255
    embeddings = finished.encode(images)
    assert torch.equal(finished.encode(as_float), embeddings)
    assert torch.allclose(finished.encode(images.double() / 255), embeddings, atol=1e-6)
    assert torch.allclose(finished.encode(as_float.half()), embeddings, atol=1e-2)
    assert torch.equal(finished.score(as_float), finished.score(images))
    assert same_weights(trained(textures().float() / 255), finished)


@pytest.mark.parametrize("size", [1, 3, 64, 65])
def test_an_embedding_does_not_depend_on_its_neighbours(size, finished):
    images = textures(70, seed=2)
    apart = torch.cat([finished.encode(batch) for batch in torch.split(images, size)])
    assert torch.allclose(apart, finished.encode(images), atol=1e-4)  # convolutions sum in an order of their own


def test_embeddings_have_unit_length_and_encoding_changes_nothing(finished):
    images = textures(9, seed=3)
    before = {name: value.clone() for name, value in weights(finished).items()}
    embeddings = finished.encode(images)
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(9), atol=1e-6)
    assert not embeddings.requires_grad
    assert torch.equal(finished.encode(images), embeddings)
    assert all(torch.equal(value, before[name]) for name, value in weights(finished).items())


def test_augmented_copies_are_the_encoded_copies(finished):
    images = textures(9)
    found = finished.encode_augmented(images, cutpaste(), generator=torch.Generator().manual_seed(3))
    copies = cutpaste()(images.float() / 255, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(found, finished.encode(copies), atol=1e-6)


def test_augmented_copies_are_drawn_apart_from_those_of_training():
    recording = Recording()
    found = trained(augmentation=recording)
    training_seeds = {seed for _, _, seed in recording.calls}
    from dsv_plugins.evaluate import AUGMENTED_COPIES
    from dsv_plugins.seeds import derived_seed

    assert derived_seed(0, AUGMENTED_COPIES) not in training_seeds
    assert found._module.completed_updates == len(training_seeds)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_mapped_images_stay_on_disk(another_process):
    assert another_process.grown_megabytes < 0.1 * 590


# ---------------------------------------------------------------------------
# The score
# ---------------------------------------------------------------------------


def test_gaussian_score_is_sklearns_mahalanobis_distance(finished):
    train, test = textures(), with_defects(textures(7, seed=4))
    estimate = LedoitWolf().fit(finished.encode(train).double().numpy())
    expected = np.sqrt(estimate.mahalanobis(finished.encode(test).double().numpy()))
    assert finished.score(test).numpy() == pytest.approx(expected, rel=1e-5)


def test_kernel_score_is_the_negative_log_density():
    train, test = textures(), with_defects(textures(7, seed=4))
    found = trained(train, density="kde")
    rows, others = (found.encode(images).double().numpy() for images in (train, test))
    squared = ((others[:, None] - rows[None]) ** 2).sum(axis=2)
    expected = -logsumexp(-squared / 2, axis=1) + math.log(len(rows)) + rows.shape[1] / 2 * math.log(2 * math.pi)
    assert found.score(test).numpy() == pytest.approx(expected, rel=1e-5)
    first = np.mean([multivariate_normal(row).pdf(others[0]) for row in rows])
    assert expected[0] == pytest.approx(-math.log(first))


@pytest.mark.parametrize("rows", [torch.ones(1, 3), torch.ones(5, 3), torch.zeros(5, 3)])
def test_gaussian_without_spread_measures_plain_distances(rows):
    density = Gaussian.fit(rows)
    others = rows[:1] + torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]])
    assert density.score(others).tolist() == pytest.approx([5.0, 2.0])
    assert density.score(rows[:1]).tolist() == [0.0]


@pytest.mark.parametrize("density_class", [Gaussian, Kernel])
def test_a_density_is_made_again_from_its_state(density_class):
    rows = torch.rand(20, 5, generator=torch.Generator().manual_seed(0))
    density = density_class.fit(rows)
    again = density_class.from_state(density.state())
    assert torch.equal(again.score(rows), density.score(rows))
    rows.zero_()
    assert torch.equal(again.score(torch.ones(1, 5)), density.score(torch.ones(1, 5)))


# ---------------------------------------------------------------------------
# Saving and loading
# ---------------------------------------------------------------------------


def test_saved_files_are_safetensors_and_json(finished, tmp_path):
    finished.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector.json", "detector.safetensors"]
    json.loads((tmp_path / "detector.json").read_text())
    tensors = load_file(tmp_path / "detector.safetensors")
    assert not any(name.startswith("momentum.") for name in tensors), "a finished training needs none"


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


def test_loading_into_other_settings_is_refused(finished, tmp_path):
    finished.save(tmp_path)
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

    monkeypatch.setattr("dsv_plugins.builtin.cutpaste_resnet18.save_file", fail)
    with pytest.raises(OSError, match="no space"):
        found.save(tmp_path)
    with pytest.raises(InputError, match=r"detector\.json"):
        detector().load(tmp_path)


# ---------------------------------------------------------------------------
# Settings and pretrained weights
# ---------------------------------------------------------------------------


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
    assert all(torch.equal(value, state[name]) for name, value in begun._module.backbone.state_dict().items())

    folder = tmp_path / "saved"
    folder.mkdir()
    begun.save(folder)
    (torch_home / WEIGHTS_FILE).unlink()
    loaded = detector(**PRETRAINED)
    loaded.load(folder)
    assert same_weights(loaded, begun), "a saved detector needs no pretrained weights"


def test_another_training_loop_can_take_the_network_and_bring_its_embeddings(finished, tmp_path):
    driven = detector()
    driven.network(seed=0).load_state_dict(finished.network().state_dict())
    driven.fit_density(driven.encode(textures()))
    assert torch.equal(driven.score(textures(seed=1)), finished.score(textures(seed=1)))
    torch.save(driven.network(), tmp_path / "network.pt")  # as Lightning and anomalib export modules
