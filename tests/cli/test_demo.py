from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import dsv, dsv_here
from PIL import Image
from sklearn.metrics import roc_auc_score

from dsv_plugins import InputError
from dsv_plugins.bench.demo_task import DEFECTS, TEXTURES, write_demo_task


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.png")}


@pytest.mark.parametrize("texture", TEXTURES)
def test_a_task_has_the_layout_of_mvtec_and_depends_on_its_seed_only(tmp_path, texture):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        write_demo_task(tmp_path / name, texture, seed)
    files = contents(tmp_path / "one")
    assert {str(Path(name).parent) for name in files} == {
        "train/good",
        "test/good",
        *(f"test/{defect}" for defect in DEFECTS),
    }
    assert files == contents(tmp_path / "same")
    assert files != contents(tmp_path / "other")


def test_no_test_image_shares_a_pixel_with_a_train_image(tmp_path):
    from skimage import data

    write_demo_task(tmp_path / "task")
    upper, lower = data.gravel()[:256], data.gravel()[256:]
    for part, half in (("train", upper), ("test", lower)):
        windows = np.lib.stride_tricks.sliding_window_view(half, (64, 64))
        for file in sorted((tmp_path / "task" / part / "good").iterdir())[:3]:
            image = np.asarray(Image.open(file))
            corners = np.argwhere(windows[:, :, 0, 0] == image[0, 0])
            assert any((windows[row, column] == image).all() for row, column in corners)


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_changes_a_part_of_the_image_visibly(tmp_path, defect):
    generator = np.random.default_rng(0)
    for _ in range(20):
        ground = np.full((64, 64), 120.0)
        changed = np.abs(DEFECTS[defect](ground, generator) - ground) > 25
        assert 8 < changed.sum() < 64 * 64 / 4


def test_what_the_demo_needs_is_named_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="give one of gravel, brick, grass"):
        write_demo_task(tmp_path / "task", "sand")
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(InputError, match=re.escape("pip install 'dsv-plugins[demo]'")):
        write_demo_task(tmp_path / "task")


def test_the_demo_shows_the_auc_of_each_choice_and_resumes(tmp_path):
    arguments = ["demo", "--out", tmp_path]
    first = dsv(*arguments)
    assert first.returncode == 0, first.stderr
    assert re.search(r"best candidate 0\.\d+, mean 0\.\d+, worst 0\.\d+", first.stdout)
    assert re.search(r"the model that is kept: 0\.\d+", first.stdout)
    again = dsv_here(*arguments, "--json")
    assert "every candidate is trained already" in again.stderr
    result = json.loads(again.stdout)
    assert len(result["auc"]["chosen"]) == len(result["selected"]) >= 9

    # The AUCs by another way: labels from the names of the files, scores from `dsv score`.
    (run,) = tmp_path.glob("gravel-0/run")
    scores = json.loads(dsv_here("score", run, tmp_path / "gravel-0/task/test", "--json").stdout)
    labels = ["/test/good/" not in entry["file"] for entry in scores]
    auc = roc_auc_score(labels, [entry["score"] for entry in scores])
    assert len(result["kept"]) == 5
    assert sum(result["kept"].values()) == pytest.approx(1)
    assert result["auc"]["model"] == pytest.approx(auc, abs=1e-6)
