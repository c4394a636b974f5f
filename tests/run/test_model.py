"""The model of a finished study takes pixels, and refuses what is none."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import dsv_here
from PIL import Image

from dsv_plugins import InputError, load

OUT_OF_RANGE = "the images have values from .* give pixels from 0 to 1 without normalisation, or uint8"
NOT_FINITE = "the images have values that are NaN or infinite"


@pytest.mark.parametrize(
    ("value", "message"),
    [(255.0, OUT_OF_RANGE), (1.1, OUT_OF_RANGE), (-2.0, OUT_OF_RANGE)]
    + [(value, NOT_FINITE) for value in (math.nan, math.inf, -math.inf)],
)
def test_images_that_are_no_pixels_are_refused_in_one_line(finished, value, message):
    model = load(finished[1])
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images[1, 2, 5, 7] = value
    with pytest.raises(InputError, match=message) as caught:
        model.predict(images)
    assert "\n" not in str(caught.value)


def test_pixels_of_every_kind_are_judged_alike(finished):
    model = load(finished[1])
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = model.predict(images).scores
    for same in (images.float() / 255, images.double() / 255, images.long()):
        torch.testing.assert_close(model.predict(same).scores, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of other sizes than the model's, as files; the last one is a photo that is shown turned."""
    folder, generator = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name, (height, width) in {"small.png": (20, 23), "wide.bmp": (50, 301), "large.jpg": (500, 400)}.items():
        pixels = generator.integers(0, 256, (height, width, 3)).astype(np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(folder / name, **({"exif": exif} if name.endswith("jpg") else {}))
    return sorted(folder.iterdir())


def upright(file: Path) -> np.ndarray:
    """The pixels that any other program would decode."""
    with Image.open(file) as image:
        pixels = np.asarray(image)
    return np.rot90(pixels, -1) if file.suffix == ".jpg" else pixels


WAYS = {
    "path": lambda file: file,
    "text": str,
    "PIL": Image.open,
    "array": upright,
    "tensor": lambda file: torch.from_numpy(upright(file).copy()).permute(2, 0, 1),
    "float": lambda file: torch.from_numpy(upright(file).copy()).permute(2, 0, 1) / 255,
}


@pytest.mark.parametrize("way", WAYS)
def test_an_image_has_the_score_of_its_file_however_it_is_given(finished, files, way):
    completed = dsv_here("score", finished[1], *files, "--json")
    assert completed.returncode == 0, completed.stderr
    wanted = [row["score"] for row in json.loads(completed.stdout)]
    model, given = load(finished[1]), [WAYS[way](file) for file in files]
    assert model.predict(given).scores.tolist() == wanted
    alone = [model.predict(each).scores.tolist() for each in given]
    assert [len(scores) for scores in alone] == [1, 1, 1]
    assert np.concatenate(alone) == pytest.approx(wanted, rel=1e-5)


def test_several_arrays_or_tensors_may_come_as_one(finished):
    model, batch = load(finished[1]), np.random.default_rng(0).integers(0, 256, (3, 45, 60, 3)).astype(np.uint8)
    wanted = model.predict(list(batch)).scores
    assert model.predict(batch).scores.tolist() == wanted.tolist()
    assert model.predict(torch.from_numpy(batch).permute(0, 3, 1, 2)).scores.tolist() == wanted.tolist()


GIVE = "give a path, a PIL image, a uint8 array"


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], f"there are no images; {GIVE}"),
        ("missing.png", "missing.png cannot be read as an image (No such file or directory)"),
        (np.zeros((9, 9, 3)), f"image 0 cannot be judged (a float64 array of shape (9, 9, 3)); {GIVE}"),
        (np.zeros((3, 9, 9), np.uint8), f"image 0 cannot be judged (a uint8 array of shape (3, 9, 9)); {GIVE}"),
        (torch.zeros(9, 9, 3), f"the images are a tensor of shape (1, 9, 9, 3); {GIVE}"),
        ([np.zeros((9, 9), np.uint8), None], f"image 1 cannot be judged (None); {GIVE}"),
        (Image.new("F", (9, 9)), "image 0 cannot be judged (it has floating-point pixels, whose scale is unknown"),
    ],
)
def test_what_is_no_image_is_one_line(finished, images, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        load(finished[1]).predict(images)
    assert "\n" not in str(caught.value)


def test_the_levels_of_sixteen_bits_are_those_of_the_study(finished, tmp_path):
    """The same picture in twelve bits of sixteen and in sixteen gives another score, unless levels say what it is."""
    model, picture = load(finished[1]), np.random.default_rng(0).integers(0, 256, (32, 32)).astype(np.uint16)
    wide, narrow = picture * 257, picture * 16
    wanted = model.predict(picture.astype(np.uint8)).scores.tolist()
    assert model.predict(wide).scores.tolist() == wanted
    assert model.predict(narrow).scores.tolist() != wanted
    told = replace(model, record=replace(model.record, levels=(0, 255 * 16)))
    Image.fromarray(narrow).save(tmp_path / "narrow.png")
    for same in (narrow, tmp_path / "narrow.png", Image.fromarray(narrow)):
        assert told.predict(same).scores.tolist() == wanted
