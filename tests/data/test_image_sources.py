"""Images from anywhere: folders, patterns, lists, files of paths, datasets and tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import dsv_here, make_task, texture, tiny_select
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from dsv_plugins import InputError
from dsv_plugins.data.dataset import open_dataset, prepare
from dsv_plugins.data.listing import image_files


@pytest.fixture
def parts(tmp_path) -> Path:
    return make_task(tmp_path / "parts")


def names(files) -> list[str]:
    return [file.name for file in files]


def test_every_way_finds_the_same_files(parts, monkeypatch):
    folder = parts / "train/good"
    files = sorted(folder.iterdir())
    (parts / "list.txt").write_text("# good images\n\n" + "\n".join(f"train/good/{file.name}" for file in files))
    rows = "\n".join(f"{number},{file}" for number, file in enumerate(files))
    (parts / "list.csv").write_text(f"\ufeffnumber,path\n{rows}\n", encoding="utf-8")
    monkeypatch.chdir(parts)
    expected = [file.name for file in files]
    assert len(expected) == 8
    for source in (
        *(folder, str(folder), "train/good/*.png", "train/**/*.png", str(folder / "0*")),
        *(parts / "list.txt", "list.csv", files, [str(file) for file in files], [folder], tuple(files) * 2),
    ):
        assert names(image_files(source)) == expected, source
    assert names(image_files("train/good/00[12].png")) == ["001.png", "002.png"]


def test_wrong_sources_are_one_line(parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("# nothing\n")
    Path("wrong.txt").write_text("gone.png\nlost.png\n")
    Path("wrong.csv").write_text("a,b\n1,2\n")
    Path("binary.csv").write_bytes(b"\xff\xfe\x00")
    Path("long.txt").write_text("o" * 5000)
    Path("long.csv").write_text("path\n" + "o" * 200_000)
    Path("zero.txt").write_text("a\0b")
    Path("notes.md").write_text("")
    one = next((parts / "train/good").iterdir())
    for source, reason in {
        "gone": "gone is not a folder",
        "gone/*.png": "no image matches gone/*.png",
        "*.md": "no image matches *.md; it matches 1 others, such as notes.md",
        "empty.txt": "empty.txt lists no images",
        "wrong.txt": "wrong.txt names gone.png and 1 more, which is not there",
        "wrong.csv": "wrong.csv has the columns a, b; name that of the paths 'path'",
        "binary.csv": "the list binary.csv cannot be read",
        "long.txt": "…, which is not there; check the paths",
        "long.csv": "the list long.csv cannot be read (field larger than field limit (131072))",
        "zero.txt": "which is not there; check the paths",
        "missing.csv": "the list missing.csv cannot be read",
        str(one): "is one file; give a folder, a pattern in quotes",
    }.items():
        with pytest.raises(InputError) as caught:
            image_files(source)
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
    for source in ([], [3], [None, "x.png"]):
        with pytest.raises(InputError, match="give paths"):
            image_files(source)


def test_the_command_takes_patterns_and_lists(parts, tmp_path, finished):
    listed = tmp_path / "test.csv"
    files = sorted((parts / "test").rglob("*.png"))
    listed.write_text("file\n" + "\n".join(map(str, files)) + "\n")
    _, _, *options = tiny_select(parts, tmp_path / "run")
    ended = dsv_here("select", "--train", f"{parts}/train/good/*.png", "--test", listed, *options)
    assert ended.returncode == 0, ended.stderr
    found, expected = (json.loads((run / "selection.json").read_text()) for run in (tmp_path / "run", finished[1]))
    losses = [[entry["losses"] for entry in selection["candidates"]] for selection in (found, expected)]
    assert losses[0] == losses[1]  # the same images, so the same trainings


class Samples(TorchDataset):
    """Textures in any form that datasets have."""

    def __init__(self, form, count=4, first=0):
        self.form, self.count, self.first = form, count, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        pixels = np.stack([texture(self.first + index, size=32)] * 3, axis=-1)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1)
        return {
            "pil": lambda: Image.fromarray(pixels),
            "array": lambda: (pixels, 1),
            "tuple": lambda: (tensor, 0),
            "float": lambda: (tensor.float() / 255, 0),
            "mapping": lambda: {"label": 0, "image": tensor},
            "grey": lambda: tensor[:1],
            "text": lambda: "x.png",
            "normalised": lambda: tensor.float() / 127 - 1,
            "wide": lambda: torch.zeros(5, 4, 4, dtype=torch.uint8),
        }[self.form]()


@pytest.mark.parametrize("form", ["pil", "array", "tuple", "float", "mapping", "grey"])
def test_datasets_hold_the_same_pixels_as_the_tensor(tmp_path, form):
    pixels = [np.stack([texture(seed, size=32)] * 3) for seed in range(8)]
    tensor = torch.from_numpy(np.stack(pixels))
    prepare(tensor[:4], tensor[4:], tmp_path / "tensor", size=32)
    prepare(Samples(form), Samples(form, first=4), tmp_path / "dataset", size=32)
    expected, found = open_dataset(tmp_path / "tensor"), open_dataset(tmp_path / "dataset")
    assert torch.equal(found.train, expected.train)
    assert torch.equal(found.test, expected.test)
    assert found.fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    ("form", "reason"), [("text", "it is a str"), ("normalised", "without normalisation"), ("wide", "its shape is")]
)
def test_datasets_without_images_are_one_line(tmp_path, form, reason):
    with pytest.raises(InputError, match=f"sample 0 of the train dataset has no image .*{reason}"):
        prepare(Samples(form), Samples("pil"), tmp_path / "data", size=32)


def test_images_in_both_sets_are_told_with_two_examples(parts, tmp_path):
    for number in range(3):
        (parts / f"test/good/copy{number}.png").write_bytes((parts / f"train/good/00{number}.png").read_bytes())
    with pytest.raises(InputError) as caught:
        prepare(parts / "train/good", parts / "test", tmp_path / "data", size=16)
    told = str(caught.value)
    assert told.count("is the same image as") == 2
    assert "and 1 more; remove them, or leave such files out with --skip-bad" in told
