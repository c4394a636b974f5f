"""Tiles cover every pixel, come apart and together again, and an image is as anomalous as its most anomalous tile."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import texture
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dsv_plugins import InputError, load, select
from dsv_plugins.calibration import Calibration, combined_scores
from dsv_plugins.data.images import write_pixels
from dsv_plugins.data.listing import ImageFile
from dsv_plugins.data.shift import photometric_shift
from dsv_plugins.pixels import decode
from dsv_plugins.run.export import export_model
from dsv_plugins.run.tiles import Loading, Tiles

SIDE = 64


@given(st.integers(64, 900), st.integers(64, 900), st.sampled_from([32, 48, 64]), st.floats(0, 0.9))
@settings(max_examples=60, deadline=None)
def test_tiles_cover_the_image_and_overlap_as_asked(height, width, side, overlap):
    tiles = Tiles.over(height, width, side, overlap)
    seen = np.zeros(tiles.canvas, dtype=int)
    for top, left in tiles.corners:
        assert seen[top : top + side, left : left + side].shape == (side, side)
        seen[top : top + side, left : left + side] += 1
    assert seen.min() >= 1
    assert len(tiles.corners) == tiles.count
    for length, canvas, count, step in zip((height, width), tiles.canvas, tiles.counts, tiles.steps, strict=True):
        assert step % 16 == 0
        if count > 1:  # a step is rounded to whole patches
            assert abs(canvas - length) <= 8 * (count - 1) or step == 16
            assert step <= side * (1 - overlap) + 16


def test_what_is_cut_comes_together_again():
    tiles = Tiles.over(150, 230, SIDE, 0.25)
    images = torch.randint(0, 256, (3, 3, *tiles.canvas), dtype=torch.uint8)
    parts = tiles.cut(images)
    assert len(parts) == 3 * tiles.count
    for image, (place, (top, left)) in itertools.product(range(3), enumerate(tiles.corners)):
        expected = images[image, :, top : top + SIDE, left : left + SIDE]
        assert torch.equal(parts[image * tiles.count + place], expected)
    assert torch.equal(tiles.joined(parts), images)


def test_where_maps_of_tiles_overlap_the_mean_counts_and_edges_least():
    """A loop over the pixels of maps with an eighth of the resolution says the same."""
    tiles = Tiles.over(130, 90, SIDE, 0.5)
    heat = torch.randn(2 * tiles.count, 8, 8)
    height, width = (length // 8 for length in tiles.canvas)
    values, weights = np.zeros((2, height, width)), np.zeros((2, height, width))
    for image, (place, (top, left)) in itertools.product(range(2), enumerate(tiles.corners)):
        for row, column in itertools.product(range(8), range(8)):
            at = image, top // 8 + row, left // 8 + column
            weight = min(row + 1, 8 - row) * min(column + 1, 8 - column)
            values[at] += weight * float(heat[image * tiles.count + place, row, column])
            weights[at] += weight
    assert np.allclose(tiles.joined(heat), values / weights, atol=1e-5)
    assert tiles.joined(torch.zeros(tiles.count, 7, 7)).shape[1:] == (height, width)  # of a size that does not divide


def test_files_become_rows_of_tiles(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (200, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    tiles = Tiles.over(200, 160, SIDE, 0.25)
    files = [ImageFile(tmp_path / "a.png", "0")] * 2
    write_pixels(files, Loading(tiles.canvas, (200, 160), tiles), tmp_path / "rows.npy")
    height, width = tiles.canvas
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    expected = [resized[top : top + SIDE, left : left + SIDE] for top, left in tiles.corners] * 2
    assert (np.load(tmp_path / "rows.npy").transpose(0, 2, 3, 1) == expected).all()


@pytest.mark.parametrize(
    ("loading", "text"),
    [
        (Loading(64, None), ""),
        (Loading(64, (64, 64)), ""),
        (Loading((64, 96), (96, 144)), "images of 144 × 96 are resized to 96 × 64: defects below about 4 px are lost"),
        (Loading((208, 320), (2000, 3000)), "of 3000 × 2000 are resized to 320 × 208: defects below about 29 px"),
        (Loading((208, 320), (2000, 3000)), "; --tile 512 keeps those of 6 px"),
        (Loading(256, (2000, 2000), Tiles(256, (6, 5), (160, 176))), "cut into 30 tiles of 256 × 256"),
    ],
)
def test_what_is_lost_is_said(loading, text):
    assert text in str(loading)
    assert bool(text) == bool(str(loading))


def test_the_promise_holds_for_images():
    """Tiles of one image are alike, so that p-values of tiles would say nothing of images; those of images do."""
    generator = np.random.default_rng(0)
    tiles, held_out, repeats, rate = 24, 39, 3000, 0.05
    alarms = of_tiles = 0
    for _ in range(repeats):
        common = generator.normal(size=(held_out + 1, 1)) * generator.uniform(0, 2)
        rows = (common + generator.standard_t(4, size=(held_out + 1, tiles))).ravel()
        scores = combined_scores([{"holdout": rows[:-tiles], "test": rows[-tiles:]}], tiles=tiles)
        assert len(scores["holdout"]) == held_out
        alarms += bool(Calibration(scores["holdout"]).alarms(scores["test"], rate)[0])
        of_tiles += bool(Calibration(rows[:-tiles]).alarms(rows[-tiles:], rate).any())
    deviation = (rate * (1 - rate) / repeats) ** 0.5
    assert abs(alarms / repeats - rate) < 4 * deviation
    assert of_tiles / repeats > 5 * rate  # what would be promised if each tile were judged by itself


def test_images_count_once_for_a_shift_of_colours():
    """Three of ten images are brighter: with every tile as an image of its own, chance would be taken for a shift."""
    means = torch.tensor([100.0] * 7 + [140.0] * 3).repeat_interleave(50)
    rows = lambda values: values[:, None, None, None].expand(-1, 3, 2, 2).to(torch.uint8)  # noqa: E731
    train, test = rows(torch.full((500,), 100.0)), rows(means)
    assert photometric_shift(train, test) > 0.1
    assert photometric_shift(train, test, tiles=50) == 0


# ----------------------------------------------------------------------------------------------------------------------
# a study of tiles
# ----------------------------------------------------------------------------------------------------------------------

HEIGHT, WIDTH = 320, 448
SPOT = 10
"""Pixels of its side: 2 on whole images, 5 on tiles."""


def part(seed: int) -> np.ndarray:
    """A large image of noise and stripes."""
    return np.tile(texture(seed, size=SIDE), (5, 7))[:HEIGHT, :WIDTH]


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    for kind, seeds in (("train/good", range(16)), ("test/good", range(50, 54)), ("test/spot", range(60, 64))):
        (folder / kind).mkdir(parents=True)
        for seed in seeds:
            pixels = part(seed)
            if kind == "test/spot":
                pixels[200 : 200 + SPOT, 300 : 300 + SPOT] = 255
            Image.fromarray(pixels).save(folder / kind / f"{seed}.png")
    return folder


@pytest.fixture(scope="module")
def run(parts, tmp_path_factory):
    return select(
        parts / "train/good",
        parts / "test",
        tile=128,
        detector="patch-memory",
        detector_params={"image_size": SIDE},
        holdout=0.4,
        executor="serial",
        out=tmp_path_factory.mktemp("runs") / "run",
    )


def test_scores_of_images_are_the_largest_of_their_tiles(run):
    """The detector alone, on tiles that Pillow cuts, says the same as the model and the stored scores."""
    model, tiles = run.model, Tiles.over(HEIGHT / 2, WIDTH / 2, SIDE, 0.25)
    assert model.record.tiles == tiles
    detector = run.load_detector(run.choice.candidate)
    height, width = tiles.canvas
    found = []
    for file in run.files["test"]:
        image = Image.open(file).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
        crops = [np.asarray(image.crop((left, top, left + SIDE, top + SIDE))) for top, left in tiles.corners]
        found.append(float(detector.score(torch.from_numpy(np.stack(crops).transpose(0, 3, 1, 2).copy())).max()))
    assert run.scores()["test"] == pytest.approx(found, abs=1e-4)
    pixels = torch.from_numpy(np.stack([decode(Path(file), model.record.image_size) for file in run.files["test"]]))
    prediction = model.predict(pixels)
    assert prediction.scores.tolist() == pytest.approx(found, abs=1e-4)
    assert len(model.calibration.held_out) == len(run.files["holdout"]) == 6
    assert run.findings.images == 8
    assert prediction.heatmaps.shape == run.heatmaps().shape == (8, height // 8, width // 8)
    assert prediction.heatmaps.numpy() == pytest.approx(run.heatmaps().astype(float), abs=2e-2)


def test_a_spot_that_is_lost_on_whole_images_is_found_on_tiles(run, parts, tmp_path):
    whole = select(
        parts / "train/good",
        parts / "test",
        detector="patch-memory",
        detector_params={"image_size": SIDE},
        holdout=0.4,
        executor="serial",
        out=tmp_path / "whole",
    )
    labels = np.array(["spot" in file for file in run.files["test"]])
    for study, is_told_apart in ((run, True), (whole, False)):
        of_spots = dict(zip(study.files["test"], study.scores()["test"], strict=True))
        good, spots = ([score for file, score in of_spots.items() if ("spot" in file) == kind] for kind in (0, 1))
        assert (min(spots) > max(good)) == is_told_apart
    hottest = [np.unravel_index(heat.argmax(), heat.shape) for heat in run.heatmaps()[labels]]
    cell = np.array([HEIGHT, WIDTH]) / run.heatmaps().shape[1:]
    for place in hottest:
        centre = (np.array(place) + 0.5) * cell
        assert np.abs(centre - (200 + SPOT / 2, 300 + SPOT / 2)).max() < 1.5 * cell.max()
    assert any(note.endswith("--tile 128 keeps those of 6 px") for note in whole.notes)


def test_the_exported_file_cuts_tiles_too(run, tmp_path):
    model = load(run.path)
    export_model(model, "onnx", tmp_path / "model.onnx")
    files = [Path(file) for file in run.files["test"]]
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {"images": pixels}), strict=True))
    prediction = model.predict(files)
    assert outputs["score"] == pytest.approx(prediction.scores.numpy(), abs=1e-3)
    assert (outputs["anomalous"] == prediction.anomalous.numpy()).all()
    for found, heat in zip(outputs["heatmap"], prediction.heatmaps.numpy(), strict=True):
        expected = Image.fromarray(heat).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
        assert found == pytest.approx(np.asarray(expected), abs=1e-2)


def test_the_report_shows_whole_images(run):
    from dsv_plugins import report

    page = report.build(run).read_text()
    assert f"good/50.png, tile 1 of {run.tiles.count}" in page or re.search(
        rf"spot/6\d.png, tile \d+ of {run.tiles.count}", page
    )
    whole = run.test_image(0)
    assert whole.shape[1:] == run.tiles.canvas
    assert (whole == decode(Path(run.files["test"][0]), run.tiles.canvas)).all()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tile": 321}, "the images are 448 × 320 pixels; give a --tile of at most 320"),
        ({"tile": 16}, "tile is 16; give a whole number of at least 32"),
        ({"tile": 64, "overlap": 0.95}, "overlap is 0.95; give a part of a tile's side from 0 to 0.9"),
    ],
)
def test_tiles_that_cannot_be_are_refused(parts, tmp_path, settings, reason):
    with pytest.raises(InputError, match=reason):
        select(parts / "train/good", parts / "test", executor="serial", out=tmp_path / "run", **settings)


def test_tiles_are_of_files(tmp_path):
    pixels = torch.zeros(4, 3, 64, 64, dtype=torch.uint8)
    with pytest.raises(InputError, match="tiles are cut from image files"):
        select(pixels, pixels + 1, tile=32, executor="serial", out=tmp_path / "run")
