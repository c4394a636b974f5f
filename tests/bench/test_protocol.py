"""Which methods take part, what is measured, and how a benchmark runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from conftest import DETECTOR, TINY, make_task
from known_evaluations import evaluation

from dsv_plugins import hookimpl
from dsv_plugins.bench.cells import POOLED, measure
from dsv_plugins.bench.figures import figures_page
from dsv_plugins.bench.methods import installed_selectors, losses_of
from dsv_plugins.bench.protocol import Bench
from dsv_plugins.bench.studies import Trained, reuse_work
from dsv_plugins.bench.tables import tabulate
from dsv_plugins.bench.tasks import find_tasks
from dsv_plugins.errors import TrainingError
from dsv_plugins.plugins.discovery import DISABLE_VARIABLE
from dsv_plugins.plugins.records import AugmentationPlugin, SelectorPlugin
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.run.artifacts import ImageIndex, read_image_index, write_image_index
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.study.study import Study
from dsv_plugins.types import Evaluation


class Failing:
    def losses(self, evaluations: list[Evaluation]) -> list[float]:
        raise RuntimeError("out of luck")


class Short:
    def losses(self, evaluations: list[Evaluation]) -> list[float]:
        return [0.0]


class Plugins:
    @hookimpl
    def selector(self) -> list[SelectorPlugin]:
        return [SelectorPlugin("failing", Failing), SelectorPlugin("short", Short)]


class Stripe:
    """An augmentation whose one hyperparameter has no range to draw from."""

    def __init__(self, shade: str) -> None:
        self.value = {"light": 1.0, "dark": 0.0}[shade]

    def __call__(self, images: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
        changed = images.clone()
        changed[..., :4, :] = self.value
        return changed


class StripePlugin:
    @hookimpl
    def augmentation(self) -> AugmentationPlugin:
        return AugmentationPlugin("stripe", Stripe, space={"shade": ["light", "dark"]})


class SpotPlugin:
    @hookimpl
    def augmentation(self) -> AugmentationPlugin:
        return AugmentationPlugin("spot", Stripe, space={"shade": ["dark", "light"]})


def test_every_selector_takes_part_and_a_failing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE_VARIABLE, "*")  # whatever else is installed beside the tests
    registry = build_registry([Plugins()])
    labels = installed_selectors(registry)
    paper, ours = ["base", "mmd", "std", "mc", "select", "hits"], ["cosine", "energy"]
    assert labels == [*paper, *ours, "failing", "short", "dsv", "discordance", "separability", "dsv-reference"]
    with_holdout = installed_selectors(registry, holdout=0.15)
    assert set(with_holdout) - set(labels) == {"pu-auc", "pseudo-auc", "weighted-pseudo-auc", "rank-aggregate"}
    losses, problems = losses_of(labels, [evaluation(0.01, 0), evaluation(0.02, 1)], registry)
    assert list(losses) == [label for label in labels if label not in ("failing", "short")]
    assert losses["dsv"] != losses["dsv-reference"]
    assert "out of luck" in problems[0]
    assert "gave 1 losses for 2 candidates" in problems[1]


def test_a_candidate_without_finite_scores_is_left_out_and_named() -> None:
    registry = build_registry()
    good, bad = evaluation(0.01, 0), evaluation(0.02, 1)
    bad.scores.test[0] = math.nan
    labels = [False] * 5 + [True] * 3
    measured = measure(("a", "cutout", 0), Trained([bad, good], labels), ["dsv"], registry)
    assert [candidate["params"]["patch_size"] for candidate in measured.candidates] == [0.01]
    assert "patch_size=0.02" in measured.notes[0]
    with pytest.raises(TrainingError, match="no candidate has test scores"):
        measure(("a", "cutout", 0), Trained([bad], labels), [], registry)


def test_an_augmentation_without_ranges_has_no_random_run_and_is_still_measured(task: Path, tmp_path) -> None:
    settings = {"plugins": (StripePlugin(),), "detector": DETECTOR, "detector_params": TINY, "executor": "serial"}
    said: list[str] = []
    bench = Bench(find_tasks([task]), tmp_path / "out", ["stripe"], settings=settings)
    result = bench.run(conduct=lambda study: study.run(), report=said.append)
    assert not result.failures
    (measured,) = result.cells
    assert "Random" not in measured.aucs["full"]
    assert measured.notes == [
        "no Random run: shade has values that are not numbers, so there is no range to draw it from"
    ]
    assert said == ["parts, stripe, seed 0"]
    assert "shade=light" in figures_page(result.cells, tabulate(result))


def test_the_time_left_is_estimated_from_the_studies_that_are_finished(tmp_path: Path, monkeypatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("dsv_plugins.bench.protocol.time.monotonic", lambda: now[0])
    make_task(tmp_path / "parts")
    said: list[str] = []

    def conduct(study: Study) -> None:
        now[0] += 60
        study.folder().mkdir(parents=True)
        if "cutdiff" not in study.augmentation:
            RunFolder(study.folder()).selection.write_text("{}")
        raise TrainingError("it is not trained here")

    augmentations = ["cutout", "cutavg", "cutdiff", "cutpaste"]
    finished = RunFolder(tmp_path / "out/parts/cutout-0").selection
    finished.parent.mkdir(parents=True)
    finished.write_text("{}")  # by an earlier call, which says nothing of the time that a study takes
    Bench(find_tasks([tmp_path / "parts"]), tmp_path / "out", augmentations).run(
        conduct=lambda study: conduct(study) if "cutout" not in study.augmentation else None, report=said.append
    )
    begun = [line for line in said if "failed" not in line]
    assert begun == [
        "parts, cutout, seed 0",
        "parts, cutavg, seed 0",
        "parts, cutdiff, seed 0; about 0:02:00 left",
        "parts, cutpaste, seed 0; about 0:04:00 left",
    ]


def test_each_seed_of_the_list_is_trained_and_its_images_are_prepared_once(tmp_path: Path, monkeypatch) -> None:
    written: list[Path] = []

    def counted(folder: Path, index: ImageIndex) -> None:
        written.append(folder)
        write_image_index(folder, index)

    monkeypatch.setattr("dsv_plugins.data.dataset.write_image_index", counted)
    settings = {
        "plugins": (StripePlugin(), SpotPlugin()),
        "detector": DETECTOR,
        "detector_params": TINY,
        "executor": "serial",
    }
    bench = Bench(
        find_tasks([make_task(tmp_path / "parts")]),
        tmp_path / "out",
        ["stripe", "spot"],
        seeds=[5, 2],
        settings={**settings, "holdout": 0.4},
    )
    result = bench.run(conduct=lambda study: study.run(), report=lambda line: None)
    assert not result.failures
    assert [(cell.augmentation, cell.seed) for cell in result.cells] == [
        *(("stripe", 5), ("spot", 5), (POOLED, 5)),
        *(("stripe", 2), ("spot", 2), (POOLED, 2)),
    ]
    runs = {run.name: read_image_index(RunFolder(run).data) for run in (tmp_path / "out/parts").iterdir()}
    assert set(runs) == {"stripe-5", "spot-5", "stripe-2", "spot-2"}
    # Which images are held out depends on the seed, not on the augmentation.
    assert runs["stripe-5"].files["holdout"] == runs["spot-5"].files["holdout"]
    assert runs["stripe-5"].files["holdout"] != runs["stripe-2"].files["holdout"]
    assert len(written) == 2
    assert result.cells[0].pool != result.cells[3].pool


@pytest.mark.parametrize("links", [True, False])
def test_shared_starts_and_frozen_features_are_reused_within_a_task(tmp_path: Path, monkeypatch, links: bool) -> None:
    if not links:

        def refused(source: str, target: str) -> None:
            raise OSError("no links here")

        monkeypatch.setattr("dsv_plugins.bench.studies.os.link", refused)
    there, run = tmp_path / "parts/cutout-0", tmp_path / "parts/cutavg-0"
    finished = {"shared/start-1/detector/weights": "a", "frozen/part-1/train/early.npy": "b"}
    unfinished = {"shared/.start-2.x.partial/weights": "c", "frozen/part-1/.test.x.partial/early.npy": "d"}
    own = {"shared/start-3/detector/weights": "e"}
    other = {"shared/start-3/detector/weights": "not copied over it"}
    for folder, files in ((there, finished | unfinished | other), (run, own)):
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(content)
    reuse_work(Study(tmp_path, tmp_path, augmentation="cutavg", out=run))
    files = [file for file in run.rglob("*") if file.is_file()]
    assert {str(file.relative_to(run)): file.read_text() for file in files} == {**finished, **own}
    assert {(run / name).stat().st_nlink for name in finished} == {2 if links else 1}
