"""Near-copies, against copies that are made here, and the promise if each photo is there three times."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import cdist

from dsv_plugins.calibration import Calibration
from dsv_plugins.data.dataset import open_dataset, prepare
from dsv_plugins.data.listing import split
from dsv_plugins.data.near_copies import near_copies
from dsv_plugins.pixels import decode

SIDE = 48


def photo(generator: np.random.Generator) -> np.ndarray:
    """A random texture in colour."""
    noise = gaussian_filter(generator.normal(size=(SIDE, SIDE, 3)), (2.5, 2.5, 0))
    return (128 + 40 * noise / noise.std()).clip(0, 255).astype(np.uint8)


def rigid_part(generator: np.random.Generator) -> np.ndarray:
    """A part in a fixture: the same on each photo, but for a faint texture of its own."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    ring = np.hypot(rows - SIDE / 2, columns - SIDE / 2) < SIDE / 3
    grain = gaussian_filter(generator.normal(size=(SIDE, SIDE)), 1.5)
    return np.repeat((60 + 120 * ring + 4 * grain / grain.std())[..., None], 3, axis=2).clip(0, 255).astype(np.uint8)


def encoded(image: np.ndarray, quality: int) -> np.ndarray:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "JPEG", quality=quality)
    return np.asarray(Image.open(content))


def burst(image: np.ndarray, generator: np.random.Generator, noise: float = 3.0) -> np.ndarray:
    """The next frame: a little noise, a little less light, half a pixel further."""
    moved = (image.astype(float) + np.roll(image, 1, axis=1)) / 2
    return (0.98 * moved + generator.normal(0, noise, image.shape)).clip(0, 255).astype(np.uint8)


def copies(image: np.ndarray, kind: str, generator: np.random.Generator) -> list[np.ndarray]:
    """Three of one photo."""
    if kind == "exact":
        return [image] * 3
    if kind == "encoded":
        return [image, encoded(image, 90), encoded(image, 75)]
    return [image, burst(image, generator), burst(image, generator)]


def grouped(images: list[np.ndarray]) -> list[set[int]]:
    """The groups of more than one image."""
    numbers = near_copies(np.stack(images).transpose(0, 3, 1, 2))
    groups = [set(np.flatnonzero(numbers == number).tolist()) for number in set(numbers.tolist())]
    return sorted((group for group in groups if len(group) > 1), key=min)


@pytest.mark.parametrize("made", [photo, rigid_part])
@pytest.mark.parametrize("count", [2, 5, 12, 20, 60, 300])
def test_distinct_photos_are_no_copies(made, count):
    generator = np.random.default_rng(count)
    assert grouped([made(generator) for _ in range(count)]) == []


@pytest.mark.parametrize("made", [photo, rigid_part])
@pytest.mark.parametrize("kind", ["exact", "encoded", "burst"])
@pytest.mark.parametrize("count", [20, 100])
def test_a_few_copies_among_distinct_photos_are_found(made, kind, count):
    generator = np.random.default_rng(count)
    images = [made(generator) for _ in range(count)]
    noise = 3.0 if made is photo else 1.0
    more = [burst(images[place], generator, noise) if kind == "burst" else copies(images[place], kind, generator)[1]
            for place in (3, 7)]  # fmt: skip
    assert grouped([*images, *more]) == [{3, count}, {7, count + 1}]


@pytest.mark.parametrize("kind", ["exact", "encoded", "burst"])
@pytest.mark.parametrize("count", [9, 33, 90])
def test_every_photo_three_times(kind, count):
    generator = np.random.default_rng(count)
    images = list(itertools.chain.from_iterable(copies(photo(generator), kind, generator) for _ in range(count)))
    assert grouped(images) == [{first, first + 1, first + 2} for first in range(0, 3 * count, 3)]


def test_a_burst_of_thirty_frames_of_each_part():
    generator = np.random.default_rng(0)
    images = [burst(part, generator) for part in [photo(generator) for _ in range(8)] for _ in range(30)]
    assert grouped(images) == [set(range(first, first + 30)) for first in range(0, 240, 30)]


@pytest.mark.parametrize("value", [0, 255])
def test_images_without_content_are_equal_and_nothing_else(value):
    flat = [np.full((SIDE, SIDE, 3), value, np.uint8)] * 3
    generator = np.random.default_rng(0)
    assert grouped([*flat, *(photo(generator) for _ in range(30))]) == [{0, 1, 2}]


@pytest.mark.parametrize("kind", ["exact", "encoded", "burst"])
def test_false_alarms_are_as_rare_as_asked_for_if_every_photo_is_there_three_times(tmp_path: Path, kind: str):
    """With a detector that remembers: the score of an image is its distance to the nearest train image."""
    generator = np.random.default_rng(0)
    rates = []
    for seed in range(12):
        folder = tmp_path / str(seed)
        good = folder / "good"
        good.mkdir(parents=True)
        for number in range(33):
            for copy, image in enumerate(copies(photo(generator), kind, generator)):
                Image.fromarray(image).save(good / f"{number:02d}-{copy}.png")
        new = np.stack([copies(photo(generator), kind, generator)[2] for _ in range(120)]).transpose(0, 3, 1, 2)
        (folder / "test").mkdir()
        for number in range(2):
            Image.fromarray(photo(generator)).save(folder / "test" / f"{number}.png")
        prepare(good, folder / "test", folder / "data", size=SIDE, holdout=None, seed=seed)
        data = open_dataset(folder / "data")
        assert len(data.holdout) == 11
        held_out, scores = (
            cdist(images.reshape(len(images), -1), data.train.flatten(1).numpy()).min(axis=1)
            for images in (data.holdout.numpy(), new)
        )
        calibration = Calibration(held_out)
        rates.append(calibration.alarms(scores, calibration.default_rate).mean() - calibration.default_rate)
    assert np.mean(rates) < 2 * np.std(rates) / len(rates) ** 0.5


def test_copies_and_near_copies_are_told_with_two_examples_each(tmp_path: Path):
    generator = np.random.default_rng(0)
    good, notes = tmp_path / "good", []
    good.mkdir()
    for number in range(24):
        Image.fromarray(image := photo(generator)).save(good / f"{number:02d}.png")
        if number < 3:
            shutil.copy(good / f"{number:02d}.png", good / f"{number:02d}-copy.png")
        elif number < 6:
            Image.fromarray(image).save(good / f"{number:02d}-again.jpg", quality=90)
    test = [tmp_path / f"{number}.png" for number in range(2)]
    for file in test:
        Image.fromarray(photo(generator)).save(file)
    prepare(good, test, tmp_path / "data", size=SIDE, holdout=None, note=notes.append)
    (note,) = notes
    assert "3 of the 30 good images are copies of others, such as " in note
    assert "3 of the 30 good images are nearly the same photo as others, such as " in note
    assert "held out together" in note
    pairs = re.findall(r"/(\d\d)[-\w.]* of \S*/(\d\d)", note)
    assert len(pairs) == 4
    assert all(first == second for first, second in pairs)


def test_large_images_in_tiles_have_the_groups_of_the_whole_ones(tmp_path: Path):
    generator = np.random.default_rng(0)
    (tmp_path / "good").mkdir()
    for number in range(24):
        large = Image.fromarray(photo(generator)).resize((96, 80))
        for copy in range(2 if number < 4 else 1):
            large.save(tmp_path / "good" / f"{number:02d}-{copy}.jpg", quality=95 - 15 * copy)
    test = [tmp_path / f"{number}.png" for number in range(2)]
    for file in test:
        Image.fromarray(photo(generator)).resize((96, 80)).save(file)
    held_out = []
    for tile, folder in ((None, "whole"), (32, "tiles")):
        notes = []
        settings = {"size": 32, "tile": tile, "overlap": 0.25, "holdout": 0.3}
        prepare(tmp_path / "good", test, tmp_path / folder, **settings, note=notes.append)
        assert any("4 of the 28 good images are nearly the same photo" in note for note in notes)
        held_out.append(json.loads((tmp_path / folder / "images.json").read_text())["files"]["holdout"])
    assert held_out[0] == held_out[1]
    data, index = open_dataset(tmp_path / "tiles"), json.loads((tmp_path / "tiles" / "images.json").read_text())
    sizes = {name: len(files) for name, files in index["files"].items()}
    assert len(data.train) == sizes["train"] * data.tiles.count
    for name in ("train", "holdout"):
        own = [
            image for file in index["files"][name] for image in data.tiles.parts(decode(Path(file), data.tiles.canvas))
        ]
        assert (getattr(data, name).numpy() == np.stack(own)).all()


def test_a_folder_of_one_photo_is_trained_on_and_not_held_out():
    kept, held_out = split([[0, 1, 2, 3]], holdout=0.4, seed=0)
    assert (kept, held_out) == ([0, 1, 2, 3], [])
