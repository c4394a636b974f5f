"""Heatmaps from the command line and in the report, and presets that bring their detector."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import DETECTOR, TINY, dsv_here, make_task, texture
from PIL import Image

from dsv_plugins import Result, report, select
from dsv_plugins.data.overlay import heat_scale, overlay

SMALL = {"image_size": 64}
DEFECT = slice(40, 56), slice(8, 24)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task whose defects all lie in one corner."""
    folder = tmp_path_factory.mktemp("task")
    for part, count in (("train/good", 16), ("test/unknown", 8)):
        (folder / part).mkdir(parents=True)
        for index in range(count):
            image = texture(index + 100 * (part != "train/good"), size=64)
            if part != "train/good" and index % 2:
                image[DEFECT] = 255
            Image.fromarray(image).save(folder / part / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def result(spoiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return select(
        spoiled / "train/good",
        spoiled / "test",
        grid={"patch_size": [0.05]},
        detector_params=SMALL,
        executor="serial",
        out=tmp_path_factory.mktemp("run") / "run",
    )


def redness(picture: Image.Image) -> np.ndarray:
    pixels = np.asarray(picture.convert("RGB")).astype(float)
    return pixels[..., 0] - pixels[..., 1]


def test_score_writes_an_overlay_for_each_image(spoiled: Path, result: Result, tmp_path: Path):
    scored = dsv_here("score", result.path, spoiled / "test", "--heatmaps", tmp_path / "heat", "--json")
    assert scored.returncode == 0, scored.stderr
    assert len(json.loads(scored.stdout)) == 8
    written = sorted((tmp_path / "heat").glob("*.png"))
    assert [file.name for file in written] == [f"unknown-{index}.png" for index in range(8)]
    for index in (1, 3, 5, 7):
        red = redness(Image.open(written[index]))
        assert red[DEFECT].mean() > 3 * red[:32, 32:].mean()


def test_pictures_have_the_size_of_the_image(tmp_path: Path):
    """And masks are white at the defect, if there is one."""
    for part, seeds in (("train/good", range(60)), ("test/unknown", range(100, 108))):
        (tmp_path / part).mkdir(parents=True)
        for seed in seeds:
            image = texture(seed, size=128)[:96]
            if part != "train/good" and seed % 2:
                image[60:84, 12:36] = 255
            Image.fromarray(image).save(tmp_path / part / f"{seed}.png")
    settings = {"grid": {"patch_size": [0.05]}, "detector_params": SMALL, "executor": "serial"}
    made = select(tmp_path / "train/good", tmp_path / "test", out=tmp_path / "run", **settings)
    asked = [(f"--{name}", tmp_path / name) for name in ("heatmaps", "masks", "maps", "boxes")]
    scored = dsv_here("score", made.path, tmp_path / "test", *(part for pair in asked for part in pair))
    assert scored.returncode == 0, scored.stderr
    for folder in ("heatmaps", "masks"):
        written = sorted((tmp_path / folder).glob("*.png"))
        assert len(written) == 8
        assert {Image.open(file).size for file in written} == {(128, 96)}
    masks = [np.asarray(Image.open(tmp_path / f"masks/unknown-{seed}.png")) for seed in range(100, 108)]
    assert {value for mask in masks for value in np.unique(mask).tolist()} == {0, 255}
    good, spoiled = (np.mean([mask[66:78, 18:30] == 255 for mask in masks[first::2]]) for first in (0, 1))
    assert spoiled > 0.9
    assert good < 0.3
    # The heat of each pixel, and boxes around what is unusual, both compared with the masks.
    assert_maps_and_boxes(tmp_path, dict(zip(range(100, 108), masks, strict=True)))


def assert_maps_and_boxes(folder: Path, masks: dict[int, np.ndarray]) -> None:
    content = json.loads((folder / "boxes").read_text())
    assert {category["name"] for category in content["categories"]} == {"anomaly"}
    covered = {seed: np.zeros_like(mask) for seed, mask in masks.items()}
    names = {image["id"]: int(Path(image["file_name"]).stem) for image in content["images"]}
    assert sorted(names.values()) == sorted(masks)
    assert all((image["height"], image["width"]) == (96, 128) for image in content["images"])
    for box in content["annotations"]:
        seed, (left, top, width, height) = names[box["image_id"]], box["bbox"]
        region = slice(top, top + height), slice(left, left + width)
        heat = np.load(folder / f"maps/unknown-{seed}.npy")
        assert heat.shape == (96, 128)
        assert box["score"] <= heat[region].max()
        assert 0 < box["area"] <= (masks[seed][region] == 255).sum()
        covered[seed][region] = 255
    for seed, mask in masks.items():
        assert not ((mask == 255) & (covered[seed] == 0)).any(), "a pixel of the mask is in no box"
        assert (
            sum(box["area"] for box in content["annotations"] if names[box["image_id"]] == seed) == (mask == 255).sum()
        )


def test_masks_need_good_images_that_were_kept_out(spoiled: Path, tmp_path: Path):
    settings = {"grid": {"patch_size": [0.05]}, "detector_params": SMALL, "executor": "serial", "holdout": 0}
    made = select(spoiled / "train/good", spoiled / "test", out=tmp_path / "run", **settings)
    scored = dsv_here("score", made.path, spoiled / "test", "--masks", tmp_path / "masks")
    assert scored.returncode == 2
    assert "there are no masks without a threshold for heat, and the study held no good images out" in scored.stderr


def test_equal_names_do_not_overwrite_each_other(spoiled: Path, result: Result, tmp_path: Path):
    twins = []
    for parent in ("one", "two"):
        folder = tmp_path / parent / "same"
        folder.mkdir(parents=True)
        (folder / "0.png").write_bytes((spoiled / "test/unknown/0.png").read_bytes())
        twins.append(folder)
    assert dsv_here("score", result.path, *twins, "--heatmaps", tmp_path / "heat").returncode == 0
    assert sorted(file.name for file in (tmp_path / "heat").iterdir()) == ["same-0-2.png", "same-0.png"]


def test_the_report_shows_where(result: Result):
    page = report.build(result).read_text()
    data = json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])
    (candidate,) = data["candidates"]
    assert {int(index) for index in candidate["heated"]} == {index for index, _ in candidate["highest"]}
    for index, address in candidate["heated"].items():
        heated = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
        plain = Image.open(io.BytesIO(base64.b64decode(data["thumbnails"][index].partition(",")[2])))
        assert redness(heated).max() > redness(plain).max() + 20


def test_a_detector_without_heatmaps_is_no_error(tmp_path: Path):
    task = make_task(tmp_path / "task")
    made = select(
        task / "train/good",
        task / "test",
        grid={"patch_size": [0.1]},
        detector=DETECTOR,
        detector_params=TINY,
        executor="serial",
        out=tmp_path / "run",
    )
    scored = dsv_here("score", made.path, task / "test", "--heatmaps", tmp_path / "heat")
    assert scored.returncode == 0
    assert f"note: the detector {DETECTOR!r} has no heatmaps, so none are written\n" in scored.stderr
    assert len(scored.stdout.splitlines()) == 9
    assert not (tmp_path / "heat").exists()


def test_an_overlay_is_red_where_it_is_hot_and_unchanged_where_it_is_not():
    pixels = np.full((3, 32, 32), 90, np.uint8)
    heat = np.zeros((4, 4))
    heat[0, 0] = 5.0
    drawn = np.asarray(overlay(pixels, heat, (1.0, 5.0))).astype(int)
    assert drawn[1, 1].tolist() == pytest.approx([181, 51, 51], abs=2)  # 65 % of (230, 30, 30) over 90
    assert (drawn[16:, 16:] == 90).all()


def test_the_scale_ends_near_the_hottest_place():
    heat = np.linspace(0, 100, 10_001).reshape(1, 73, 137)
    assert heat_scale(heat) == (pytest.approx(50), pytest.approx(99.9))
    assert heat_scale(np.zeros((2, 3, 3)))[1] > 0  # or colours would be divided by zero


@pytest.mark.parametrize(
    ("flags", "detector", "selector", "sizes"),
    [
        ([], "patch-fusion", "cosine", 5),
        (["--preset", "paper"], "cutpaste-resnet18", "dsv", 17),
        (["--preset", "paper", "--selector", "mc"], "cutpaste-resnet18", "mc", 17),
        (["--preset", "paper", "--grid", "patch_size=0.1,0.2"], "cutpaste-resnet18", "dsv", 2),
        (["--preset", "quick", "--detector", "cutpaste-resnet18"], "cutpaste-resnet18", "cosine", 5),
    ],
)
def test_a_preset_brings_its_detector_and_what_goes_with_it(flags, detector, selector, sizes, spoiled: Path):
    from jsonargparse import ArgumentParser

    from dsv_plugins import Study, build_registry
    from dsv_plugins.cli.flags import add_study_flags, study_settings
    from dsv_plugins.study.plan import plan_study

    parser = ArgumentParser()
    add_study_flags(parser)
    study = Study(spoiled / "train", spoiled / "test", **study_settings(parser.parse_args(flags)))
    assert (study.detector, study.selectors) == (detector, (selector,))
    assert study.holdout == (0.0 if selector == "dsv" or sizes == 17 else None)
    plan = plan_study(study, build_registry())
    assert len(plan.candidates()) == sizes
