"""Rivals: detectors that learn without augmentations, on the same images."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import DETECTOR, TINY, make_task
from known_cells import cell, oracle_signed_rank_p
from known_evaluations import evaluation

from dsv_plugins import DetectorEncoder, DetectorEncoderPlugin, hookimpl
from dsv_plugins.bench.cells import FULL, measure
from dsv_plugins.bench.methods import BEST_THREE, DEFAULT, ENSEMBLE, WEIGHTED
from dsv_plugins.bench.output import describe
from dsv_plugins.bench.protocol import Bench, BenchResult
from dsv_plugins.bench.studies import Trained
from dsv_plugins.bench.tables import tabulate
from dsv_plugins.bench.tasks import find_tasks
from dsv_plugins.plugins.registry import build_registry


class Brightness(DetectorEncoder):
    """Calls images anomalous by their brightness, whatever the augmentation."""

    learns_from_augmentation = False
    fitted: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self, image_size: int = 8) -> None:
        self.image_size = image_size

    def fit(self, images, augmentation, *, updates=None, seed=0, progress=None):
        self.fitted.append(tuple(images.shape))
        self.mean = self.encode(images).mean(dim=0)

    def encode(self, images):
        return images.float().mean(dim=(2, 3))

    def score(self, images):
        return (self.encode(images) - self.mean).norm(dim=1)

    def save(self, folder):
        (folder / "mean.json").write_text(json.dumps(self.mean.tolist()))

    def load(self, folder):
        self.mean = torch.tensor(json.loads((folder / "mean.json").read_text()))


class Plugins:
    @hookimpl
    def detector_encoder(self):
        return DetectorEncoderPlugin("brightness", Brightness)


def bench(folder: Path, *rivals: str) -> Bench:
    settings = {
        "plugins": (Plugins(),),
        "detector": DETECTOR,
        "detector_params": TINY,
        "executor": "serial",
        "grid": {"patch_size": [0.02, 0.3]},
    }
    task = folder / "parts"
    tasks = find_tasks([task if task.exists() else make_task(task)])
    return Bench(tasks, folder / "out", ["cutout"], settings=settings, rivals=rivals)


def pairs_won(scores, labels) -> float:
    """The AUC by counting pairs."""
    bad, good = ([s for s, label in zip(scores, labels, strict=True) if label is kind] for kind in (True, False))
    return float(np.mean([(b > g) + (b == g) / 2 for b, g in itertools.product(bad, good)]))


def test_a_rival_is_trained_once_on_the_same_images_and_resumes(tmp_path) -> None:
    Brightness.fitted.clear()
    said: list[str] = []
    result = bench(tmp_path, "brightness").run(conduct=lambda study: study.run(), report=said.append)
    assert not result.failures
    (found,) = result.rivals
    assert said[-1].startswith("parts, brightness")
    assert Brightness.fitted == [(8, 3, TINY["image_size"], TINY["image_size"])]  # one candidate, at our size
    assert found["seconds"] > 0
    study = tmp_path / "out/parts/brightness-0"
    (folder,) = (study / "candidates").iterdir()
    assert (folder / "detector/mean.json").exists()

    (again,) = bench(tmp_path, "brightness").run(conduct=lambda study: study.run(), report=said.append).rivals
    assert Brightness.fitted == [(8, 3, TINY["image_size"], TINY["image_size"])]
    assert again == found

    tables = tabulate(result)
    described = json.loads(json.dumps(describe(result, tables, {}), allow_nan=False))
    assert described["rivals"] == [
        {"task": "parts", "detector": "brightness", "auc": found["auc"], "seconds": found["seconds"], "pixels": {}}
    ]


def test_a_detector_that_learns_from_augmentations_is_no_rival(tmp_path) -> None:
    from dsv_plugins import InputError

    with pytest.raises(InputError, match=f"{DETECTOR} learns from augmentations"):
        bench(tmp_path, DETECTOR).run(conduct=lambda study: study.run(), report=lambda line: None)


def rival(task, detector, auc, seconds, pixels=None):
    return {"task": task, "detector": detector, "auc": auc, "seconds": seconds, "pixels": pixels or {}}


def rivals_frame(result):
    return next(table for table in tabulate(result) if table.name == "rivals").frame.loc["cutout"]


def test_the_table_against_plain_loops() -> None:
    dice = np.random.default_rng(0)
    tasks = [f"task{number}" for number in range(6)]
    cells, rivals, aupros = [], [], {}
    for task in tasks:
        for seed in range(2):
            aucs = dice.uniform(0.5, 1, 3).tolist()
            cells.append(cell(task, "cutout", aucs, {DEFAULT: dice.uniform(size=3).tolist()}, seed=seed))
        if task not in ("task0", "task5"):  # the others have no masks, or are not compared
            aupros[task] = float(dice.uniform(0.5, 1))
        pixels = {"aupro": aupros[task]} if task in aupros else {}
        rivals.append(rival(task, "frozen", float(dice.uniform(0.5, 1)), 4.0, pixels))
        if task != "task5":  # it failed there, so that nobody is compared there
            rivals.append(rival(task, "memory", float(dice.uniform(0.5, 1)), None))
    frame = rivals_frame(BenchResult(cells, rivals=rivals))
    compared = tasks[:5]

    def over_seeds(task: str, pick) -> float:
        return sum(pick(each) for each in cells if each.task == task) / 2

    def chosen(each) -> float:
        return min(zip(each.losses[DEFAULT], each.pool, strict=True))[1]

    ours = [over_seeds(task, chosen) for task in compared]
    for name in ("frozen", "memory"):
        theirs = [
            each["auc"] for task in compared for each in rivals if (each["task"], each["detector"]) == (task, name)
        ]
        gains = [our - their for our, their in zip(ours, theirs, strict=True)]
        assert frame.loc[name, "AUC"] == pytest.approx(sum(theirs) / 5)
        assert (frame.loc[name, "better"], frame.loc[name, "worse"]) == (
            sum(gain > 0 for gain in gains),
            sum(gain < 0 for gain in gains),
        )
        assert frame.loc[name, "p"] == pytest.approx(oracle_signed_rank_p(gains))
    assert frame.loc[f"choice of {DEFAULT}", "AUC"] == pytest.approx(sum(ours) / 5)
    assert frame.loc["best", "AUC"] == pytest.approx(
        sum(over_seeds(task, lambda c: max(c.pool)) for task in compared) / 5
    )
    assert frame.loc["frozen", "seconds"] == 4.0
    assert frame.loc["frozen", "AUPRO"] == pytest.approx(sum(aupros.values()) / 4)
    assert frame.index[0] == f"choice of {DEFAULT}"
    assert math.isnan(frame.loc["memory", "seconds"])


def test_ensembles_against_counted_pairs() -> None:
    labels = [False] * 5 + [True] * 3
    pool = [evaluation(0.01 * (1 + seed), seed) for seed in range(5)]
    measured = measure(("bolt", "cutout", 0), Trained(pool, labels), [DEFAULT, "dsv"], build_registry())

    def combined(members, shares=(1,) * 5) -> float:
        """The weighted sum over the members of how far each image is above good images."""
        total = [0.0] * len(labels)
        for member, share in zip(members, shares, strict=False):
            good = member.scores.train.tolist()
            scale = statistics.pstdev(good)
            for place, score in enumerate(member.scores.test.tolist()):
                total[place] += share * (score - statistics.fmean(good)) / scale
        return pairs_won(total, labels)

    by_loss = [member for _, member in sorted(zip(measured.losses[DEFAULT], pool, strict=True), key=lambda row: row[0])]
    assert measured.aucs[FULL][ENSEMBLE] == pytest.approx(combined(pool))
    assert measured.aucs[FULL][BEST_THREE] == pytest.approx(combined(by_loss[:3]))
    for selector in (DEFAULT, "dsv"):
        losses = measured.losses[selector]
        shares = [math.exp(-(loss - min(losses)) / statistics.pstdev(losses)) for loss in losses]
        assert measured.aucs[FULL][f"{WEIGHTED}{selector}"] == pytest.approx(combined(pool, shares))
    tables = {table.name: table.frame for table in tabulate(BenchResult([measured]))}
    assert ENSEMBLE in tables["choices"].loc["cutout"].index
    assert ENSEMBLE not in tables["rank"]  # it chooses nothing


def test_an_ensemble_that_is_delivered_comes_first_and_is_compared() -> None:
    labels = [False] * 5 + [True] * 3
    cells = [
        measure(
            (f"bolt{task}", "cutout", 0),
            Trained([evaluation(0.01 * (1 + seed), seed + 5 * task) for seed in range(5)], labels),
            [DEFAULT],
            build_registry(),
        )
        for task in range(4)
    ]
    rivals = [rival(cell.task, "frozen", 0.5, 1.0) for cell in cells]
    frame = rivals_frame(BenchResult(cells, rivals=rivals, merges=True))
    weighted = f"{WEIGHTED}{DEFAULT}"
    assert frame.index[0] == weighted
    assert math.isnan(frame.loc[weighted, "p"])
    gains = [cell.aucs[FULL][weighted] - 0.5 for cell in cells]
    assert frame.loc["frozen", "better"] == sum(gain > 0 for gain in gains)
