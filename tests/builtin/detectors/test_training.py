"""The training of the CutPaste ResNet18: the same in rungs as in one go, and alone in its process."""

from __future__ import annotations

import gc
import math
import random
import signal
import threading
import weakref

import numpy as np
import pytest
import torch
from detectors import TINY, Recording, cutpaste, detector, same_weights, textures, trained, weights, with_defects
from sklearn.metrics import roc_auc_score

from dsv_plugins import InputError
from dsv_plugins.builtin.detectors.cutpaste_resnet18 import cutpaste_module

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_training_without_momentum_resumes_after_loading(tmp_path):
    trained(momentum=0.0, until=3).save(tmp_path)
    found = detector(momentum=0.0)
    found.load(tmp_path)
    found.fit(textures(), cutpaste(), updates=6)
    assert same_weights(found, trained(momentum=0.0, until=6))


def test_seed_decides(finished_detector):
    assert same_weights(trained(), finished_detector)
    other = trained(seed=1)
    assert not same_weights(other, finished_detector)
    start, other_start = trained(until=0), trained(until=0, seed=1)
    assert not torch.equal(weights(start)["backbone.conv1.weight"], weights(other_start)["backbone.conv1.weight"])


def test_updates_past_the_budget_and_before_the_present_change_nothing():
    found = trained(until=10**6)
    before = {name: value.clone() for name, value in weights(found).items()}
    found.fit(textures(), cutpaste(), updates=5)
    found.fit(textures(), cutpaste())
    assert found.network().completed_updates == TINY["updates"]
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
    group = trained(until=1, momentum=0.5, weight_decay=1e-3).network().optimizer.param_groups[0]
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
    module = found.network()
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
    assert found.training_accuracy == pytest.approx(float(torch.stack(list(found.network().accuracies)).mean()))
    with pytest.raises(InputError, match="not trained yet"):
        _ = detector().training_accuracy


def test_images_are_let_go_after_training():
    images = textures()
    held = weakref.ref(images)
    found = trained(images, until=1)
    del images
    gc.collect()
    assert held() is None
    assert found.network().augmentation is None


def test_first_weights_are_drawn_apart_from_torch_s_global_generator(monkeypatch):
    """Which another thread may set while they are drawn, as Lightning does."""
    undisturbed = detector().network(seed=5).state_dict()

    class Disturbed(cutpaste_module.ResNet18):
        def __init__(self, width):
            torch.manual_seed(99)
            super().__init__(width)

    monkeypatch.setattr(cutpaste_module, "ResNet18", Disturbed)
    disturbed = detector().network(seed=5).state_dict()
    assert all(torch.equal(disturbed[name], undisturbed[name]) for name in undisturbed)


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


def test_a_training_inside_a_cluster_job_is_one_process(monkeypatch, finished_detector):
    for name, value in {
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "study",
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert same_weights(trained(), finished_detector)
