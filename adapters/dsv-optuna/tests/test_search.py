"""The search by Optuna, against a landscape whose best point is known, and in real studies that are killed."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import optuna
import pytest
import torch

from dsv_plugins import (
    AugmentationPlugin,
    Candidate,
    DetectorEncoder,
    DetectorEncoderPlugin,
    InputError,
    PluginSettingsError,
    Range,
    Rungs,
    SearchPlugin,
    SearchProblem,
    SelectorPlugin,
    Study,
    When,
    build_registry,
    hookimpl,
)
from dsv_plugins.testing import parametrize_with_checks

RECORD = build_registry().get(SearchPlugin, "optuna")
BUDGET = 90


@parametrize_with_checks([RECORD])
def test_conforms(check):
    check()


class Landscape:
    """Losses by formula: the best is `paste` at size 0.1 and angle 30; more updates add a constant less."""

    def __init__(self, folder: Path, *, failing=lambda candidate: False, penalty: float = 0.0) -> None:
        self.penalty = penalty
        self.rounds: list[tuple[list[Candidate], int | None, int | None]] = []
        self.notes: list[str] = []
        self.failing = failing
        self.problem = SearchProblem(
            spaces={
                "cut": {"size": Range(0.001, 1.0, log=True)},
                "paste": {"size": Range(0.001, 1.0, log=True), "angle": Range(-90.0, 90.0), "mode": ["a", [1, 2]]},
            },
            candidate=Candidate,
            evaluate=self.evaluate,
            losses=lambda evaluations: [self.loss(candidate) + 9 / updates for candidate, updates in evaluations],
            budget=BUDGET,
            rungs=Rungs(3, 3.0),
            seed=4,
            run=folder,
            note=self.notes.append,
        )

    def loss(self, candidate: Candidate) -> float:
        distance = abs(math.log10(candidate.params["size"]) + 1)
        loss = distance + abs(candidate.params.get("angle", 90) - 30) / 90 + (candidate.augmentation == "cut")
        return loss + self.penalty

    def evaluate(self, candidates, updates, resumes_from):
        self.rounds.append((list(candidates), updates, resumes_from))
        return {each.id: (each, updates or 9) for each in candidates if not self.failing(each)}

    def requested(self) -> dict[str, Candidate]:
        return {each.id: each for candidates, _, _ in self.rounds for each in candidates}

    def search(self, **settings):
        return RECORD.factory(**settings).run(self.problem)


def test_it_finds_the_augmentation_and_the_ranges_together_better_than_by_chance(tmp_path):
    landscape = Landscape(tmp_path)
    found = landscape.search(trials=60)
    best = min((landscape.loss(candidate) for candidate, _ in found.values()))
    generator = torch.Generator().manual_seed(1)
    by_chance = []
    for _ in range(400):  # the mean best of as many random points: what no search would reach, too
        draws = torch.rand(60, 3, generator=generator, dtype=torch.float64).tolist()
        points = [
            Candidate("paste", {"size": 10 ** (3 * size - 3), "angle": 180 * angle - 90, "mode": "a"})
            if choice < 0.5
            else Candidate("cut", {"size": 10 ** (3 * size - 3)})
            for size, angle, choice in draws
        ]
        by_chance.append(min(map(landscape.loss, points)))
    assert best < sum(by_chance) / len(by_chance)
    assert len(landscape.requested()) == 60


def test_trials_that_promise_little_end_at_an_early_rung(tmp_path):
    landscape = Landscape(tmp_path)
    found = landscape.search(trials=30)
    highest = {each.id: updates for candidates, updates, _ in landscape.rounds for each in candidates}
    assert {10, 90} <= set(highest.values()) <= {10, 30, 90}
    assert {name for name, updates in highest.items() if updates == 90} == set(found)
    stopped = [landscape.loss(landscape.requested()[name]) for name, updates in highest.items() if updates == 10]
    whole = [landscape.loss(candidate) for candidate, _ in found.values()]
    assert sum(stopped) / len(stopped) > sum(whole) / len(whole)
    for candidates, _, resumes_from in landscape.rounds:
        assert len(candidates) <= 4
        assert resumes_from in (None, 10, 30)
    everything = Landscape(tmp_path)
    assert len(everything.search(trials=30, pruner="none")) == 30


def test_those_that_fail_count_and_are_left_out(tmp_path):
    landscape = Landscape(tmp_path, failing=lambda candidate: candidate.augmentation == "cut")
    found = landscape.search(trials=12, pruner="none")
    requested = Counter(candidate.augmentation for candidate in landscape.requested().values())
    assert len(found) == requested["paste"] == 12 - requested["cut"]
    assert requested["cut"] > 0


def test_a_hyperparameter_that_does_not_count_is_not_proposed(tmp_path):
    landscape = Landscape(tmp_path)
    space = {"mode": ["drop", "posterize"], "size": When("mode", "drop", Range(0.05, 0.4))}
    object.__setattr__(landscape.problem, "spaces", {"cut": space})
    landscape.loss = lambda candidate: candidate.params.get("size", 0.1)
    found = landscape.search(trials=20, pruner="none")
    proposed = [candidate.params for candidate in landscape.requested().values()]
    assert {"mode": "posterize"} in proposed
    dropped = [params for params in proposed if params["mode"] == "drop"]
    assert all(0.05 <= params["size"] <= 0.4 for params in dropped)
    assert len(found) == len(dropped) + 1, "all that do not count it are one candidate"


def test_machines_share_a_search_through_a_storage(tmp_path):
    storage = f"sqlite:///{tmp_path}/search.db"
    first, second = Landscape(tmp_path / "first"), Landscape(tmp_path / "second")
    first.search(trials=6, storage=storage, pruner="none")
    found = second.search(trials=10, storage=storage, pruner="none")
    assert (len(first.requested()), len(second.requested())) == (6, 4)
    assert not set(first.requested()) & set(second.requested())
    assert set(found) == set(second.requested())
    (study,) = optuna.get_all_study_summaries(storage)
    assert study.n_trials == 10


@pytest.mark.parametrize(("penalty", "is_noted"), [(10.0, True), (-10.0, False)])
def test_a_better_trial_in_another_run_folder_is_noted(tmp_path, penalty, is_noted):
    storage = f"sqlite:///{tmp_path}/search.db"
    first, second = Landscape(tmp_path / "first"), Landscape(tmp_path / "second", penalty=penalty)
    first.search(trials=2, storage=storage, pruner="none")
    second.search(trials=4, storage=storage, pruner="none")
    best = min(map(first.loss, first.requested().values())) + 9 / BUDGET
    where = f"is in {socket.gethostname()}:{tmp_path / 'first'}"
    expected = [f"the best trial of the shared search, with a loss of {best:.4g}, {where}"] if is_noted else []
    assert second.notes == expected
    assert first.notes == []


def test_a_search_with_a_storage_resumes_after_a_kill(tmp_path):
    storage = f"sqlite:///{tmp_path}/search.db"
    killed = Landscape(tmp_path)

    def die_in_the_third_round(candidates, updates, resumes_from):
        if len(killed.rounds) == 2:
            raise KeyboardInterrupt
        return killed.evaluate(candidates, updates, resumes_from)

    object.__setattr__(killed.problem, "evaluate", die_in_the_third_round)
    with pytest.raises(KeyboardInterrupt):
        killed.search(trials=16, storage=storage, pruner="none", batch=2)
    left = {each.id for candidates, _, _ in killed.rounds for each in candidates}
    again = Landscape(tmp_path)
    found = again.search(trials=16, storage=storage, pruner="none", batch=2)
    assert len(found) == 16
    assert left <= set(found), "what the killed process had begun is tried again"
    states = Counter(trial.state.name for trial in optuna.load_study(study_name=None, storage=storage).trials)
    assert states["COMPLETE"] == 16
    assert states["RUNNING"] == states["WAITING"] == 0


LEVELS = (optuna.logging.DEBUG, optuna.logging.INFO, optuna.logging.WARNING, optuna.logging.CRITICAL)


@pytest.mark.parametrize("level", LEVELS)
def test_optuna_is_as_talkative_after_a_search_as_before(tmp_path, level):
    levels = []
    landscape = Landscape(tmp_path, failing=lambda candidate: levels.append(optuna.logging.get_verbosity()))
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(level)
    try:
        landscape.search(trials=2)
        assert optuna.logging.get_verbosity() == level
        with pytest.raises(InputError, match="the Optuna storage 'nowhere://' cannot be used"):
            landscape.search(storage="nowhere://")
        assert optuna.logging.get_verbosity() == level
    finally:
        optuna.logging.set_verbosity(before)
    assert set(levels) == {optuna.logging.WARNING}, "no line for each trial"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"trials": 0}, "trials is 0"), ({"batch": 0}, "batch is 0"), ({"pruner": "best"}, "give one of median")],
)
def test_wrong_settings(settings, complaint):
    with pytest.raises(PluginSettingsError, match=complaint):
        build_registry().create(SearchPlugin, "optuna", settings)


def test_a_storage_that_is_none_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"the Optuna storage 'nowhere://' cannot be used: .*") as caught:
        Landscape(tmp_path).search(storage="nowhere://")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------
# In a study
# ---------------------------------------------------------------------------


class Shade:
    def __init__(self, size):
        self.size = size

    def __call__(self, images, *, generator):
        return images * (1 - self.size * torch.rand(len(images), 1, 1, 1, generator=generator))


class Mean(DetectorEncoder):
    """Learns the mean brightness under the augmentation, and can be killed at a training."""

    image_size, updates = 8, 9

    def fit(self, images, augmentation, *, updates=None, seed=0, progress=None):
        if os.environ.get("DSV_TEST_KILL"):
            with Path(os.environ["DSV_TEST_KILL"]).open("a") as trainings:
                trainings.write(".")
            if Path(os.environ["DSV_TEST_KILL"]).stat().st_size == 6:
                os.kill(os.getpid(), signal.SIGKILL)
        shaded = augmentation(images.float() / 255, generator=torch.Generator().manual_seed(seed))
        self.weight = shaded.mean() * (updates or self.updates)

    def encode(self, images):
        floats = images if images.is_floating_point() else images.float() / 255
        return floats.flatten(1) * self.weight

    def score(self, images):
        return self.encode(images).norm(dim=1)

    def save(self, folder):
        (folder / "mean.json").write_text(str(float(self.weight)))

    def load(self, folder):
        self.weight = torch.tensor(float((folder / "mean.json").read_text()))


class First:
    """Prefers sizes near 0.3, whatever was learned, so that the answer is known."""

    def losses(self, evaluations):
        return [abs(evaluation.candidate.params["size"] - 0.3) for evaluation in evaluations]


class Plugins:
    @hookimpl
    def augmentation(self):
        return AugmentationPlugin("shade", Shade, space={"size": Range(0.01, 0.9)})

    @hookimpl
    def detector_encoder(self):
        return DetectorEncoderPlugin("mean", Mean)

    @hookimpl
    def selector(self):
        return SelectorPlugin("near", First, judges_alone=True)


def study(out: Path) -> Study:
    images = torch.randint(0, 256, (14, 3, 8, 8), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    return Study(
        images[:8],
        images[8:],
        "shade",
        detector="mean",
        selector=["near", "dsv"],
        search="optuna",
        search_params={"trials": 14},
        executor="serial",
        plugins=(Plugins(),),
        out=out,
    )


def test_a_killed_study_resumes_to_the_same_bytes(tmp_path):
    result = study(tmp_path / "whole").run()
    assert len(result.candidates) == 14
    assert abs(result.choice.candidate.params["size"] - 0.3) < 0.1
    assert {entry.status for entry in result.candidates} == {"finished", "stopped"}
    script = f"from test_search import *; study(Path({str(tmp_path / 'killed')!r})).run()"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "DSV_TEST_KILL": str(tmp_path / "trainings")}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    finished = list((tmp_path / "killed/candidates").glob("[!.]*"))
    times = {folder: folder.stat().st_mtime_ns for folder in finished}
    assert len(times) == 5
    study(tmp_path / "killed").run()
    assert {folder: folder.stat().st_mtime_ns for folder in finished} == times, "nothing finished is trained again"
    assert (tmp_path / "killed/selection.json").read_bytes() == (tmp_path / "whole/selection.json").read_bytes()
