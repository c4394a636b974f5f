"""The pixel AUROC against counting pairs, the masks it is measured with, and a benchmark that shows it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import dsv_here, make_task, texture
from known_cells import chosen, known_cells
from PIL import Image
from sklearn.metrics import roc_auc_score

from dsv_plugins import Candidate
from dsv_plugins.bench.cells import POOLED, Cell
from dsv_plugins.bench.pixels import AUPRO, AUROC, PIMO, Masks, pixel_measures, read_masks
from dsv_plugins.bench.protocol import BenchResult
from dsv_plugins.bench.studies import measure_heatmaps
from dsv_plugins.bench.tables import tabulate
from dsv_plugins.run.artifacts import ImageIndex, write_image_index
from dsv_plugins.run.folder import RunFolder, finished_folder

SMALL = {"image_size": 64}


def masks_of(defective: np.ndarray, rows: list[int] | None = None) -> Masks:
    return Masks(list(range(len(defective))) if rows is None else rows, defective, [])


def prepared(folder: Path, files: list[str], side: int) -> Path:
    """A run folder of which only the test images are known."""
    with finished_folder(RunFolder(folder).data) as data:
        write_image_index(data, ImageIndex(fingerprint="0123", files={"test": files}))
        np.save(data / "test.npy", np.zeros((len(files), 3, side, side), dtype=np.uint8))
    return folder


def draw(file: Path, values: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(file)


def drawn_masks(task: Path) -> Path:
    """Masks of the bars that `make_task` draws."""
    for image in (task / "test/bar").iterdir():
        changed = texture(int(image.stem), defect=True) != texture(int(image.stem))
        draw(task / "ground_truth/bar" / f"{image.stem}_mask.png", 255 * changed)
    return task / "ground_truth"


# ---------------------------------------------------------------------------
# The number
# ---------------------------------------------------------------------------


def test_it_is_the_share_of_pairs_in_which_the_defective_pixel_is_hotter() -> None:
    generator = np.random.default_rng(0)
    heatmaps = generator.integers(0, 6, (3, 4, 5)).astype(np.float16)  # few values, so many ties
    defective = generator.random((3, 4, 5)) < 0.3
    pairs = [
        (hot > cold) + (hot == cold) / 2
        for hot in heatmaps[defective].tolist()
        for cold in heatmaps[~defective].tolist()
    ]
    assert pixel_measures(heatmaps, masks_of(defective))[AUROC] == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_heatmaps_are_resized_to_the_masks_and_images_without_one_are_left_out() -> None:
    generator = np.random.default_rng(1)
    heatmaps = generator.normal(size=(5, 6, 6)).astype(np.float16)
    defective = np.zeros((4, 24, 24), dtype=bool)
    defective[1, 3:9, 10:20] = defective[3, :, 5:7] = True
    rows = [0, 1, 3, 4]
    resized = [
        np.asarray(Image.fromarray(heatmaps[row].astype(np.float32)).resize((24, 24), Image.Resampling.BILINEAR))
        for row in rows
    ]
    expected = roc_auc_score(defective.ravel(), np.ravel(resized))
    assert pixel_measures(heatmaps, masks_of(defective, rows))[AUROC] == pytest.approx(expected, abs=1e-5)


def test_there_is_none_without_pixels_of_both_kinds_or_with_values_that_are_not_finite() -> None:
    heatmaps, defective = np.zeros((1, 2, 2), dtype=np.float16), np.zeros((1, 2, 2), dtype=bool)
    assert pixel_measures(heatmaps, masks_of(defective)) == {}
    assert pixel_measures(heatmaps, masks_of(~defective)) == {}
    defective[0, 0] = True
    assert pixel_measures(heatmaps, masks_of(defective))[AUROC] == 0.5
    heatmaps[0, 1, 1] = np.nan
    assert pixel_measures(heatmaps, masks_of(defective)) == {}


def swept(heat: np.ndarray, defective: np.ndarray, good: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The share of good pixels found, and the mean share of each part, at each threshold from the hottest pixel on."""
    curve = [(0.0, 0.0)]
    for threshold in np.unique(heat)[::-1]:
        found = heat >= threshold
        shares = [found[parts == part].mean() for part in np.unique(parts[defective])]
        curve.append((found[good].mean(), np.mean(shares)))
    return np.array(curve).T


def step_area(x: np.ndarray, y: np.ndarray, low: float, high: float) -> float:
    """The area under a curve of steps from low to high: each height holds until the next x."""
    edges = np.append(x, np.inf).clip(low, high)
    return float((np.diff(edges) * y).sum())


def test_aupro_is_the_area_under_the_curve_of_all_thresholds() -> None:
    generator = np.random.default_rng(3)
    heat = generator.permutation(3 * 12 * 12).reshape(3, 12, 12).astype(np.float32)  # no ties
    defective = np.zeros((3, 12, 12), dtype=bool)
    parts = np.zeros((3, 12, 12), dtype=int)
    for part, (image, rows, columns) in enumerate(
        [(0, slice(0, 2), slice(0, 9)), (0, slice(4, 8), slice(4, 5)), (1, slice(3, 11), slice(2, 12))], start=1
    ):
        defective[image, rows, columns], parts[image, rows, columns] = True, part
    defective[0, 8, 5], parts[0, 8, 5] = True, 2  # touches the second part at a corner, so it belongs to it
    heat += 200 * defective  # a detector that knows something
    x, y = swept(heat, defective, ~defective, parts)
    expected = step_area(x, y, 0, 0.3) / 0.3
    assert 0.2 < expected < 0.95
    assert pixel_measures(heat, masks_of(defective))[AUPRO] == pytest.approx(expected, abs=2e-3)


def test_pimo_is_the_area_over_the_logarithm_of_the_share_of_good_pixels() -> None:
    generator = np.random.default_rng(4)
    heat = generator.normal(size=(6, 160, 160)).astype(np.float32)
    defective = np.zeros(heat.shape, dtype=bool)
    defective[0, :9, :9] = defective[1, 20:26, 70:90] = True
    heat[0][defective[0]] += 2.5
    heat[1][defective[1]] += 4.0
    good = np.zeros(heat.shape, dtype=bool)
    good[2:] = True
    areas = []
    for image in (0, 1):
        hottest = np.sort(heat[image][defective[image]])
        x, y = [], []
        for threshold in np.sort(heat[good])[::-1][:40]:
            x.append((heat[good] >= threshold).mean())
            y.append((hottest > threshold).mean())
        areas.append(step_area(np.log(x), np.append(y[1:], y[-1]), np.log(1e-5), np.log(1e-4)) / np.log(10))
    found = pixel_measures(heat, masks_of(defective))[PIMO]
    assert found == pytest.approx(np.mean(areas), abs=0.05)
    assert 0.1 < found < 0.9


def test_pimo_needs_good_images() -> None:
    defective = np.zeros((1, 4, 4), dtype=bool)
    defective[0, 0] = True
    assert set(pixel_measures(np.zeros((1, 4, 4), dtype=np.float16), masks_of(defective))) == {AUROC, AUPRO}


# ---------------------------------------------------------------------------
# The masks
# ---------------------------------------------------------------------------


def test_masks_of_any_size_name_and_depth_are_read_and_small_defects_survive(tmp_path: Path) -> None:
    names = ["good/0", "scratch/0", "scratch/1", "dent/2", "dent/3"]
    run = prepared(tmp_path / "run", [f"/elsewhere/parts/test/{name}.jpg" for name in names], 16)
    truth = tmp_path / "ground_truth"
    speck = np.zeros((1000, 1000))
    speck[437, 811] = 1  # one pixel of a million, with the value 1
    draw(truth / "scratch/0_mask.png", speck)
    half = np.zeros((8, 8))
    half[:, :4] = 255  # smaller than the images
    draw(truth / "scratch/1.png", half)
    wide = np.zeros((32, 64))
    wide[:16] = 255  # of another shape
    draw(truth / "dent/2_mask.png", wide)
    coloured = np.zeros((16, 16, 3))
    coloured[5, 7] = (255, 0, 0)
    draw(truth / "dent/3_mask.png", coloured)
    masks = read_masks(run, truth, [False, True, True, True, True])
    assert (list(masks.rows), list(masks.notes)) == ([0, 1, 2, 3, 4], [])
    expected = np.zeros((5, 16, 16), dtype=bool)
    expected[1, 437 * 16 // 1000, 811 * 16 // 1000] = True
    expected[2, :, :8] = expected[3, :8] = expected[4, 5, 7] = True
    assert np.array_equal(masks.defective, expected)


def test_an_image_whose_mask_is_missing_or_damaged_is_left_out_and_named(tmp_path: Path) -> None:
    names = ["dent/0", "good/0", "dent/1", "dent/2"]
    run = prepared(tmp_path / "run", [f"/parts/test/{name}.png" for name in names], 4)
    truth = tmp_path / "ground_truth"
    draw(truth / "dent/2_mask.png", np.eye(4))
    (truth / "dent/1_mask.png").write_bytes((truth / "dent/2_mask.png").read_bytes()[:50])
    masks = read_masks(run, truth, [True, False, True, True])
    assert list(masks.rows) == [1, 3]
    assert np.array_equal(masks.defective, [np.zeros((4, 4)), np.eye(4)])
    missing, damaged = masks.notes
    assert missing == f"/parts/test/dent/0.png is left out of the pixel measures: {truth / 'dent'} has no 0_mask.png"
    assert damaged.startswith("/parts/test/dent/1.png is left out of the pixel measures: ")
    assert "1_mask.png cannot be read as an image" in damaged


def test_candidates_without_heatmaps_and_tasks_without_masks_have_no_number_and_no_note(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run", ["/parts/test/dent/0.png", "/parts/test/dent/1.png", "/parts/test/good/0.png"], 4)
    labels, truth = [True, True, False], tmp_path / "ground_truth"
    heat = np.zeros((3, 4, 4), dtype=np.float16)
    heat[0, 0, 0] = 1
    trained, failed = (Candidate("cutout", {"patch_size": size}) for size in (1, 2))
    entries = [
        SimpleNamespace(candidate=trained, status="finished"),
        SimpleNamespace(candidate=failed, status="failed"),
    ]
    heatmaps = {trained.id: heat}
    result = SimpleNamespace(
        path=run, candidates=entries, shares={trained.id: 1.0}, heatmaps=lambda candidate: heatmaps[candidate.id]
    )
    assert measure_heatmaps(result, truth, labels) == ({}, {}, [])
    draw(truth / "dent/0_mask.png", heat[0])
    aucs, model, notes = measure_heatmaps(result, truth, labels)
    assert aucs[trained.id][AUROC] == 1.0
    assert model == {}
    assert len(notes) == 1
    result.heatmaps = lambda candidate: None
    assert measure_heatmaps(result, truth, labels) == ({}, {}, [])


# ---------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------


def with_pixels(cell: Cell, pool: list[float | None]) -> Cell:
    measured = [{} if auc is None else {AUROC: auc} for auc in pool]
    candidates = [{**each, "pixels": pixels} for each, pixels in zip(cell.candidates, measured, strict=True)]
    complete = [auc for auc in pool if auc is not None]
    known = {"Average": sum(complete) / len(complete), "best": max(complete)}
    known |= {name: chosen(pool, losses) for name, losses in cell.losses.items()}
    return replace(cell, candidates=candidates, pixels={AUROC: known} if len(complete) == len(pool) else {})


def test_the_table_has_the_mean_the_choices_and_the_best_of_tasks_with_masks() -> None:
    cells = known_cells()
    assert all(cell.as_json()["pixels"] == {} for cell in cells)
    before = tabulate(BenchResult(cells))
    assert not any(table.name.startswith("pixels") for table in before)
    bolt = next(place for place, cell in enumerate(cells) if (cell.task, cell.augmentation) == ("bolt", "cutout"))
    cells[bolt] = with_pixels(cells[bolt], [0.9, 0.8, 0.4])
    pooled = next(place for place, cell in enumerate(cells) if cell.augmentation == POOLED)
    cells[pooled] = with_pixels(cells[pooled], [0.9, None, 0.4])  # not comparable
    expected = {"Average": 0.7, "base": 0.9, "mc": 0.4, "dsv": 0.8, "best": 0.9}
    expected |= {"discordance": 0.8, "separability": 0.4, "dsv-reference": 0.4}
    assert cells[bolt].as_json()["pixels"][AUROC] == pytest.approx(expected)
    after = {table.name: table for table in tabulate(BenchResult(cells))}
    table = after.pop("pixels-auroc")
    assert table.frame.loc["cutout"].to_dict() == pytest.approx(expected)
    assert list(table.frame.index) == ["cutout"]
    assert "1 of 2 tasks with masks" in table.note
    for unchanged in before:
        assert after[unchanged.name].frame.equals(unchanged.frame)


def oracle_aucs(run: Path, truth: Path, *, side: int) -> list[float]:
    """The pixel AUROC of each candidate in a run, in rising order, by Pillow and scikit-learn."""
    files = [Path(file) for file in json.loads((run / "data/images.json").read_text())["files"]["test"]]
    masks = [truth / file.parent.name / f"{file.stem}_mask.png" for file in files]
    known = [row for row, file in enumerate(files) if file.parent.name == "good" or masks[row].exists()]
    labels = [
        np.asarray(Image.open(masks[row]).resize((side, side), Image.Resampling.NEAREST)) > 0
        if masks[row].exists()
        else np.zeros((side, side), dtype=bool)
        for row in known
    ]
    aucs = []
    for heatmaps in map(np.load, run.glob("candidates/*/heatmaps.npy")):
        places = [Image.fromarray(heatmaps[row].astype(np.float32)) for row in known]
        pixels = [np.asarray(each.resize((side, side), Image.Resampling.BILINEAR)) for each in places]
        aucs.append(roc_auc_score(np.ravel(labels), np.ravel(pixels)))
    return sorted(aucs)


def test_a_benchmark_shows_it_beside_the_same_numbers(tmp_path: Path) -> None:
    task, out = make_task(tmp_path / "parts"), tmp_path / "out"
    options = [
        "--augmentations",
        "cutout,cutpaste",
        "--grid",
        "patch_size=0.02,0.3",
        "--detector-params",
        json.dumps(SMALL),
    ]
    arguments = ["bench", task, *options, "--executor", "serial", "--out", out]
    plain = dsv_here(*arguments)
    assert plain.returncode == 0, plain.stderr
    assert "pixel AUROC" not in plain.stdout
    without = json.loads((out / "bench.json").read_text())
    truth = drawn_masks(task)
    (truth / "bar/203_mask.png").unlink()
    completed = dsv_here(*arguments)
    assert completed.returncode == 0, completed.stderr
    content, page = json.loads((out / "bench.json").read_text()), (out / "tables.md").read_text()
    assert "Average pixel AUROC" in completed.stdout
    assert "## Average pixel AUROC" in page
    assert page.split("## Notes")[1].count("203.png is left out of the pixel measures") == 2, (
        "once for each augmentation"
    )
    rows = {row["augmentation"]: row for row in content["tables"].pop("pixels-auroc")}
    assert {content["tables"].pop(f"pixels-{name}") is not None for name in (AUPRO, PIMO)} == {True}
    assert list(rows) == ["cutout", "cutpaste", POOLED]
    for cell in content["cells"]:
        pool = [candidate["pixels"][AUROC] for candidate in cell["candidates"]]
        assert rows[cell["augmentation"]]["best"] == cell["pixels"][AUROC]["best"] == max(pool)
        assert rows[cell["augmentation"]]["Average"] == pytest.approx(np.mean(pool))
        assert cell["pixels"][AUROC]["dsv"] == pool[cell["choices"]["dsv"]]
    alone = next(cell for cell in content["cells"] if cell["augmentation"] == "cutout")
    measured = sorted(candidate["pixels"][AUROC] for candidate in alone["candidates"])
    assert measured == pytest.approx(oracle_aucs(out / "parts/cutout-0", truth, side=64), abs=1e-4)
    assert content["tables"] == without["tables"]
    shutil.rmtree(truth)
    assert dsv_here(*arguments).returncode == 0
    assert json.loads((out / "bench.json").read_text()) == without
