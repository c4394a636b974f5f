"""The start that the trainings of a study have in common: what it is, that it is made once, and that it survives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import TINY, dsv, journal, texture, tiny_select

from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, TrainingError, build_registry
from dsv_plugins.builtin.detectors.cutpaste_resnet18.mixture import Mixture

REGISTRY = build_registry()


def detector(**params):
    return REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18", {**TINY, **params})


def augmentation(name, patch_size=0.1):
    return REGISTRY.create(AugmentationPlugin, name, {"patch_size": patch_size})


@pytest.fixture(scope="module")
def images():
    return torch.stack([torch.from_numpy(texture(seed, size=32)) for seed in range(9)])[:, None]


def weights(found):
    return found.network().state_dict()


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_training_is_the_same_whether_its_start_was_made_or_loaded(images, tmp_path):
    alone = detector()
    alone.fit(images, augmentation("cutout"), seed=3)
    start = detector()
    start.fit_shared_start(images, seed=3)
    start.save(tmp_path)
    resumed = detector()
    resumed.load(tmp_path)
    resumed.fit(images, augmentation("cutout"), seed=3)
    assert same(weights(resumed), weights(alone))
    assert not same(weights(start), weights(alone))
    assert torch.equal(resumed.score(images), alone.score(images))


def test_without_shared_updates_there_is_no_start(images):
    seen = []
    detector(shared_updates=0).fit(images, augmentation("cutout"), progress=lambda *reported: seen.append(reported[:2]))
    assert {planned for _, planned in seen} == {TINY["updates"]}


def test_first_the_shared_updates_then_the_candidates_own(images):
    seen = []
    found = detector(shared_updates=20)
    found.fit(images, augmentation("cutout"), progress=lambda *reported: seen.append(reported[:2]))
    assert seen == [(1, 20), (10, 20), (20, 20), (1, 12), (10, 12), (12, 12)]
    assert len(found.network().accuracies) == 12, "the accuracy is that of the candidate's own updates"


def test_the_two_phases_have_schedules_of_their_own(images, monkeypatch):
    rates = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD,
        "step",
        lambda self, *a, **k: (rates.append(self.param_groups[0]["lr"]), step(self, *a, **k))[1],
    )
    detector(shared_learning_rate=0.2, learning_rate=0.05).fit(images, augmentation("cutout"))
    shared, own = rates[: TINY["shared_updates"]], rates[TINY["shared_updates"] :]
    for phase, first in ((shared, 0.2), (own, 0.05)):
        cosine = 0.5 * (1 + torch.cos(torch.pi * torch.arange(len(phase)) / len(phase)))
        assert phase == pytest.approx((first * cosine).tolist(), rel=1e-4)


def test_a_start_that_diverges_names_its_own_learning_rate(images):
    with pytest.raises(TrainingError, match="try a shared_learning_rate below 1e"):
        detector(shared_learning_rate=1e36, shared_updates=10).fit(images, augmentation("cutout"))


def test_an_interrupted_start_is_not_resumed(images):
    def interrupt(*_):
        raise KeyboardInterrupt

    found = detector()
    with pytest.raises(KeyboardInterrupt):
        found.fit(images, augmentation("cutout"), progress=interrupt)
    found.fit(images, augmentation("cutout"))
    fresh = detector()
    fresh.fit(images, augmentation("cutout"))
    assert same(weights(found), weights(fresh))


@pytest.mark.parametrize(("given", "expected"), [({}, 400), ({"updates": 50}, 200), ({"updates": 5000}, 20_000)])
def test_the_shared_updates_grow_with_the_budget(given, expected):
    assert REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18", given).shared_updates == expected


def test_the_papers_preset_has_no_shared_start():
    assert REGISTRY.create(DetectorEncoderPlugin, "cutpaste-resnet18", {"preset": "paper"}).shared_updates == 0


def test_the_mixture_has_a_quarter_of_each_augmentation():
    """On a flat grey image CutAvg and CutPaste change nothing, CutOut leaves two values, CutDiff many."""
    flat = torch.full((2000, 1, 16, 16), 0.5)
    augmented = Mixture()(flat, generator=torch.Generator().manual_seed(0))
    values = torch.tensor([len(image.unique()) for image in augmented])
    unchanged = (augmented == flat).flatten(1).all(dim=1)
    assert unchanged.float().mean() == pytest.approx(0.5, abs=0.04)
    assert ((values == 2) & ~unchanged).float().mean() == pytest.approx(0.25, abs=0.06)
    assert augmented.min() >= 0
    assert augmented.max() <= 0.5


def test_a_study_makes_it_once(finished):
    _, run, output = finished
    (noted,) = journal(run, "shared start")
    assert noted["updates"] == TINY["shared_updates"]
    assert [folder.name for folder in (run / "shared").iterdir()] == [noted["start"]]
    assert len(journal(run, "finished")) == 3
    assert f"training shared start for {TINY['shared_updates']} updates" in output


def test_a_damaged_start_is_made_again_where_it_is_needed(finished, tmp_path):
    task, undisturbed, _ = finished
    shutil.copytree(undisturbed, tmp_path / "run")
    shutil.rmtree(next((tmp_path / "run/candidates").iterdir()))
    start = next((tmp_path / "run/shared").iterdir())
    (start / "detector/detector.safetensors").write_bytes(b"")
    completed = dsv(*tiny_select(task, tmp_path / "run"))
    assert completed.returncode == 0, completed.stderr
    assert "is damaged; shared start is trained again" in completed.stdout
    assert (tmp_path / "run/selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()


def test_killed_during_the_start_it_resumes(finished, tmp_path):
    task, undisturbed, _ = finished
    kill = (
        "import os, signal, sys; from dsv_plugins.study import schedule; from dsv_plugins.cli import main\n"
        "schedule.train_shared_start = lambda job: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = [*map(str, tiny_select(task, tmp_path / "run"))]
    killed = subprocess.run([sys.executable, "-c", kill, *arguments], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert dsv(*arguments).returncode == 0
    assert (tmp_path / "run/selection.json").read_bytes() == (undisturbed / "selection.json").read_bytes()


def test_whoever_only_asks_a_detector_for_its_settings_waits_for_no_library_of_the_training():
    script = (
        "import sys; from dsv_plugins import DetectorEncoderPlugin, build_registry\n"
        "there = lambda *names: print(*(name for name in names if name in sys.modules))\n"
        "detector = build_registry().create(DetectorEncoderPlugin, 'cutpaste-resnet18')\n"
        "print(detector.updates); there('lightning', 'torchvision', 'sklearn')\n"
        "detector.warm_up(); there('lightning', 'torchvision', 'sklearn')"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    # Scikit-learn is for the end of a training, and would keep its beginning waiting.
    assert completed.stdout == "100\n\nlightning torchvision\n", completed.stderr
