"""Defective images among the good ones: they are named, and left out if that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import dsv_here, texture
from PIL import Image

from dsv_plugins import InputError, Study, select
from dsv_plugins.training.suspects import suspects, suspects_notes, unlikeness

DEFECTIVE = {"0200.png", "0201.png", "0202.png"}
SETTINGS = {"detector": "patch-memory", "detector_params": {"image_size": 64}, "executor": "serial"}


@pytest.fixture(scope="module")
def contaminated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 36 good images and three with a white bar."""
    folder = tmp_path_factory.mktemp("contaminated") / "good"
    folder.mkdir()
    for seed in [*range(36), 200, 201, 202]:
        Image.fromarray(texture(seed, defect=seed >= 200, size=64)).save(folder / f"{seed:04d}.png")
    return folder


def names(files: list[str]) -> set[str]:
    return {Path(file).name for file in files}


@pytest.fixture(scope="module")
def cleaned(contaminated: Path):
    """A study without test images, which leaves suspects out."""
    return select(contaminated, drop_suspects=0.1, out=contaminated.parent / "cleaned", **SETTINGS)


def test_suspects_are_left_out_and_named_and_the_same_study_again_knows_them(cleaned, contaminated: Path):
    assert not DEFECTIVE & names([*cleaned.files["train"], *cleaned.files["holdout"]])
    assert names([file for file, _ in cleaned.images.bad]) >= DEFECTIVE
    assert sum("may be defective" in note for note in cleaned.notes) >= 3
    trained = cleaned.journal.path.read_text().count("finished")
    again = select(contaminated, drop_suspects=0.1, out=cleaned.path, **SETTINGS)
    assert again.images.bad == cleaned.images.bad
    assert again.journal.path.read_text().count("finished") == trained
    with pytest.raises(InputError, match="drop_suspects is 0.1, not None"):
        select(contaminated, out=cleaned.path, **SETTINGS)


def test_without_test_images_held_out_ones_stand_in_and_nothing_is_found_among_them(cleaned, contaminated: Path):
    assert cleaned.files["test"] == cleaned.files["holdout"]
    assert cleaned.findings is None
    assert any("no test images" in note for note in cleaned.notes)
    assert len(cleaned.model.calibration.held_out) == len(cleaned.files["holdout"])
    with pytest.raises(InputError, match="nothing can be chosen among several candidates; give test images, a single"):
        Study(contaminated, augmentation="cutpaste").run()
    with pytest.raises(InputError, match="remove --holdout 0"):
        Study(contaminated, holdout=0, **SETTINGS).run()


def test_who_does_not_leave_them_out_is_told_which_they_are(contaminated: Path):
    result = select(contaminated, out=contaminated.parent / "dirty", **SETTINGS)
    (line,) = (note for note in result.notes if "look unlike the others" in note)
    assert any(name in line for name in DEFECTIVE)
    assert "--drop-suspects" in line


def test_the_audit_names_suspects_copies_sizes_and_images_in_both_sets(contaminated: Path, tmp_path: Path):
    test = tmp_path / "new"
    test.mkdir()
    content = (contaminated / "0003.png").read_bytes()
    (test / "same.png").write_bytes(content)
    for seed in range(50, 53):
        Image.fromarray(texture(seed, size=80)).save(test / f"{seed}.png")
    completed = dsv_here("audit", "--train", contaminated, "--test", test, "--json")
    assert completed.returncode == 0, completed.stderr
    found = json.loads(completed.stdout)
    assert found["images"] == {"good": 39, "test": 3}
    assert found["sizes"] == {"64 × 64": 39, "80 × 80": 3}
    (left_out,) = found["left_out"]
    assert "same.png" in left_out
    assert "0003.png" in left_out
    assert names([each["file"] for each in found["unlike"] if each["is_suspect"]]) >= DEFECTIVE
    text = dsv_here("audit", contaminated).stdout
    assert "39 good images; pixels: 64 × 64 (39)" in text
    assert dsv_here("audit").returncode == 2


def test_unlikeness_is_in_deviations_of_the_lower_half():
    generator = np.random.default_rng(0)
    scores = generator.normal(7, 3, 20_000)
    assert np.allclose(unlikeness(scores), (scores - 7) / 3, atol=0.1)
    worse = np.concatenate([scores, np.full(1_000, 100.0)])
    assert np.allclose(unlikeness(worse)[:20_000], (scores - 7) / 3, atol=0.3)


def test_no_more_are_suspects_than_may_be_and_of_few_images_none():
    found = np.array([0.0] * 30 + [9.0, 5.0, 12.0])
    assert suspects(found, 1.0) == [32, 30, 31]
    assert suspects(found, 2 / 33) == [32, 30]
    assert suspects(found[-19:], 1.0) == []
    assert suspects_notes({"train": np.arange(30.0), "test": np.arange(9.0)}, {"train": ["a"] * 30}) == []


@pytest.mark.parametrize("share", [0, -0.1, 0.6])
def test_a_share_that_is_none_is_refused(contaminated: Path, share: float):
    with pytest.raises(InputError, match="drop_suspects is"):
        Study(contaminated, drop_suspects=share)
