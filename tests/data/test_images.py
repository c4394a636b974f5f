from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_task, texture
from PIL import EpsImagePlugin, Image, ImageOps

from dsv_plugins import InputError, StoreError, pixels
from dsv_plugins.calibration import Calibration, images_to_keep_out
from dsv_plugins.data import images as reading
from dsv_plugins.data.dataset import open_dataset, prepare
from dsv_plugins.data.images import decode_all, find_images, levels_of, split_folder, survey, write_pixels
from dsv_plugins.pixels import decode
from dsv_plugins.run.artifacts import images_file, open_checked_images
from dsv_plugins.run.tiles import Loading

GREY = texture(0, size=24)
COLOUR = np.stack([GREY, GREY // 2, 255 - GREY], axis=2)
LOSSLESS = {"webp": {"lossless": True}}


def saved(folder: Path, name: str, image: Image.Image, **options: object) -> Path:
    image.save(folder / name, **options)
    return folder / name


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.png", {}), ("a.bmp", {}), ("a.tif", {}), ("a.TIFF", {}), ("a.webp", {"lossless": True})],
)
def test_lossless_formats_give_the_very_pixels(tmp_path, name, options):
    path = saved(tmp_path, name, Image.fromarray(COLOUR), **options)
    assert (decode(path, 24) == COLOUR.transpose(2, 0, 1)).all()


def test_jpeg_is_read(tmp_path):
    path = saved(tmp_path, "a.JPG", Image.fromarray(COLOUR), format="JPEG", quality=95, subsampling=0)
    assert np.abs(decode(path, 24).astype(int) - COLOUR.transpose(2, 0, 1)).mean() < 4


def photograph(width: int, height: int) -> np.ndarray:
    """Smooth colours with some noise, as cameras take them."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 255, (12, 12, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + generator.integers(-8, 9, smooth.shape)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        *(("RGB", "png"), ("RGBA", "png"), ("P", "png"), ("L", "bmp"), ("RGB", "tif"), ("RGB", "jp2")),
        *(("RGB", "jpg"), ("L", "jpg"), ("CMYK", "jpg"), ("L", "pgm"), ("RGB", "ppm")),
    ],
)
def test_images_are_resized_from_all_their_pixels(tmp_path, mode, suffix, orientation):
    """A JPEG, too, though Pillow could decode a smaller one faster: a camera's pixels must score as their file."""
    image = Image.fromarray(photograph(300, 200)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, f"a.{suffix}", image, **({"exif": exif} if suffix in ("png", "tif", "jpg") else {}))
    with Image.open(path) as opened:
        upright = ImageOps.exif_transpose(opened).convert("RGBA").convert("RGB")
    expected = np.asarray(upright.resize((64, 64), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert (decode(path, 64) == expected).all()


def test_grey_becomes_three_equal_channels(tmp_path):
    pixels = decode(saved(tmp_path, "a.png", Image.fromarray(GREY)), 24)
    assert (pixels == GREY[None]).all()


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, suffix):
    wide = np.arange(24 * 24, dtype=np.uint32).reshape(24, 24) * 65535 // (24 * 24 - 1)
    pixels = decode(saved(tmp_path, f"a.{suffix}", Image.fromarray(wide.astype(np.uint16))), 24)
    assert pixels[0].max() == 255
    assert pixels[0].min() == 0
    assert np.abs(pixels[0] - wide / 257).max() <= 1


def camera(seed: int, *, bits: int = 12) -> np.ndarray:
    """What a camera of twelve bits writes into a file of sixteen."""
    generator = np.random.default_rng(seed)
    return generator.integers(200, 2**bits - 200, (24, 24)).astype(np.uint16)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm", "jp2"])
def test_twelve_bits_in_sixteen_are_read_by_the_range_of_the_train_images(tmp_path, suffix):
    for kind, seeds in (("good", range(4)), ("new", range(4, 8))):
        for seed in seeds:
            (tmp_path / kind).mkdir(exist_ok=True)
            saved(tmp_path / kind, f"{seed}.{suffix}", Image.fromarray(camera(seed)))
    saved(tmp_path / "new", f"bright.{suffix}", Image.fromarray(np.full((24, 24), 65_535, np.uint16)))
    notes = []
    prepare(tmp_path / "good", tmp_path / "new", tmp_path / "data", size=24, note=notes.append)
    trained = np.stack([camera(seed) for seed in range(4)])
    more = round((int(trained.max()) - int(trained.min())) / 4)
    black, white = max(0, int(trained.min()) - more), int(trained.max()) + more
    assert notes == [f"images of 16 bits are read from {black:,} to {white:,}: the range of the train images, and more"]
    dataset = open_dataset(tmp_path / "data")
    assert tuple(dataset.levels) == (black, white) == levels_of(find_images(tmp_path / "good"))
    expected = sorted(float(((image.astype(float) - black) / (white - black)).mean()) for image in trained)
    found = sorted((dataset.train[:, 0].double().mean(dim=(1, 2)) / 255).tolist())
    assert found == pytest.approx(expected, abs=1 / 255)
    assert dataset.test.amax(dim=(1, 2, 3)).max() == 255  # what is brighter is as bright as can be
    assert dataset.train.min() < 20
    assert dataset.train.max() > 190


def test_images_of_eight_bits_have_no_levels(tmp_path):
    parts = make_task(tmp_path / "parts")
    assert levels_of(find_images(parts / "train")) is None
    saved(parts / "train", "flat.png", Image.fromarray(np.full((9, 9), 5, np.uint16)))
    saved(parts / "train", "torn.png", Image.fromarray(GREY)).write_bytes(b"torn")
    assert levels_of(find_images(parts / "train")) == (4, 6)


def test_colours_of_sixteen_bits_are_noted(tmp_path):
    """Pillow drops their lower half, which are the upper bits of a camera of twelve."""
    rows = b"".join(b"\0" + np.full((5, 3), 4095, ">u2").tobytes() for _ in range(4))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    notes = []
    assert (decode(tmp_path / "a.png", None, note=notes.append) == 4095 >> 8).all()
    assert notes == ["it has 16 bits for each colour, of which the upper 8 are read; save it with 8, or as grey"]


def test_files_of_other_kinds_are_counted_and_named(tmp_path):
    parts = make_task(tmp_path / "parts")
    notes = []
    prepare(parts / "train", parts / "test", tmp_path / "data", size=16, note=notes.append)
    assert not notes
    for name in ("a.raw", "b.raw", ".hidden"):
        (parts / "test" / name).touch()
    prepare(parts / "train", parts / "test", tmp_path / "data", size=16, note=notes.append)
    assert notes == [
        f"2 of the files in {parts / 'test'} are no images and left out, such as {parts / 'test' / 'a.raw'}"
    ]


def test_transparency_is_dropped(tmp_path):
    alpha = np.dstack([COLOUR, np.full_like(GREY, 7)])
    assert (decode(saved(tmp_path, "a.png", Image.fromarray(alpha)), 24) == COLOUR.transpose(2, 0, 1)).all()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n0 0 10 10 rectfill\n%%EOF\n"


@pytest.mark.parametrize("size", [16, None])
def test_a_file_of_another_format_starts_no_program_whatever_its_name_is(tmp_path, monkeypatch, size):
    """Pillow reads EPS with Ghostscript."""
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it is looked for again
    (tmp_path / "a.png").write_bytes(EPS)
    with pytest.raises(InputError, match=r"a\.png cannot be read .*it is no PNG, .* or PPM file"):
        decode(tmp_path / "a.png", size)
    assert reading.median_size([tmp_path / "a.png"]) is None
    assert not (tmp_path / "started").exists()
    with contextlib.suppress(OSError), Image.open(tmp_path / "a.png") as image:
        image.load()
    assert (tmp_path / "started").exists(), "what is tested would have started it"


@pytest.mark.parametrize("suffix", ["tif", "png", "webp"])
def test_only_the_first_page_is_read_and_that_is_said_once(tmp_path, suffix):
    first, second = Image.fromarray(COLOUR), Image.fromarray(255 - COLOUR)
    path = saved(tmp_path, f"a.{suffix}", first, save_all=True, append_images=[second], **LOSSLESS.get(suffix, {}))
    plain = saved(tmp_path, f"plain.{suffix}", first, **LOSSLESS.get(suffix, {}))
    notes = []
    decoded = [outcome for _, outcome in reading.decode_all([path, plain], 24, notes.append)]
    assert notes == [f"{path}: it has several pages or frames, and only the first is read"]
    for outcome in decoded:
        assert (outcome == COLOUR.transpose(2, 0, 1)).all()


def test_the_preview_in_a_photo_is_no_page(tmp_path):
    image = Image.fromarray(COLOUR)
    path = saved(tmp_path, "a.jpg", image, format="MPO", save_all=True, append_images=[image.resize((8, 8))])
    notes = []
    ((_, outcome),) = reading.decode_all([path], 24, notes.append)
    assert not notes
    assert outcome.shape == (3, 24, 24)


def test_palette_images_have_their_colours(tmp_path):
    image = Image.fromarray(COLOUR).quantize(16)
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert (decode(saved(tmp_path, "a.png", image), 24) == expected).all()


def test_orientation_of_the_camera_is_followed(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees clockwise to be upright
    path = saved(tmp_path, "a.png", Image.fromarray(COLOUR), exif=exif)
    assert (decode(path, 24) == np.rot90(COLOUR, -1).transpose(2, 0, 1)).all()


def test_any_size_is_resized(tmp_path):
    path = saved(tmp_path, "a.png", Image.fromarray(np.full((30, 70), 90, np.uint8)))
    assert (decode(path, 16) == 90).all()


def test_floating_point_pixels_are_refused_with_advice(tmp_path):
    path = saved(tmp_path, "a.tif", Image.fromarray(np.zeros((9, 9), np.float32)))
    with pytest.raises(InputError, match=r"a\.tif cannot be read .*floating-point.*8 or 16 bits"):
        decode(path, 16)


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "webp"])
def test_truncated_files_are_named(tmp_path, suffix, keep):
    whole = io.BytesIO()
    kind = {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper())
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(whole, kind)
    content = whole.getvalue()
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    if (suffix, keep) == ("png", -1):  # the last byte is not of the picture
        (tmp_path / "whole.png").write_bytes(content)
        assert (decode(path, 16) == decode(tmp_path / "whole.png", 16)).all()
        return
    with pytest.raises(InputError, match=rf"cut\.{suffix} cannot be read as an image"):
        decode(path, 16)


def test_images_are_found_at_any_depth_and_hidden_files_are_not(tmp_path):
    for name in ("b.png", "deep/er/a.JPEG", ".hidden.png", ".cache/c.png", ".cache/deep/d.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in find_images(tmp_path)] == ["b.png", "deep/er/a.JPEG"]


def test_links_are_followed_but_not_in_circles(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.png").touch()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(tmp_path / "set")
    assert [path.name for path in find_images(tmp_path / "set")] == ["a.png"]


def test_a_folder_without_images_says_what_is_in_it(tmp_path):
    with pytest.raises(InputError, match="holds no images; give a folder"):
        find_images(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"the 1 files in it, such as notes\.txt, are of other kinds"):
        find_images(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        find_images(tmp_path / "missing")


def test_layouts(tmp_path):
    parts = make_task(tmp_path / "parts")
    assert split_folder(parts) == (parts / "train" / "good", parts / "test")
    (tmp_path / "flat" / "train").mkdir(parents=True)
    (tmp_path / "flat" / "test").mkdir()
    assert split_folder(tmp_path / "flat")[0] == tmp_path / "flat" / "train"
    with pytest.raises(InputError, match="--train"):
        split_folder(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        split_folder(tmp_path / "missing")


def test_pixels_on_disk_are_those_of_the_files_and_bad_files_are_left_out(tmp_path):
    parts = make_task(tmp_path / "parts")
    (parts / "train" / "good" / "003.png").write_bytes(b"no image")
    files, _ = survey(find_images(parts / "train"))
    seen = []
    target = images_file(tmp_path, "train")
    good, bad = write_pixels(files, Loading(40), target, lambda done, planned: seen.append((done, planned)))
    pixels = open_checked_images(tmp_path, "train")
    assert [file.path.name for file in bad] == ["003.png"]
    assert len(good) == len(pixels) == 7
    for file, image in zip(good, pixels, strict=True):
        assert (image == texture(int(file.path.stem))[None]).all()
    assert seen[-1] == (8, 8)


def test_pixels_are_memory_mapped(tmp_path):
    parts = make_task(tmp_path / "parts")
    prepare(parts / "train", parts / "test", tmp_path / "data", size=32, holdout=0.25)
    dataset = open_dataset(tmp_path / "data")
    mapped = Path("/proc/self/maps").read_text()
    for name, images in (("train", dataset.train), ("test", dataset.test), ("holdout", dataset.holdout)):
        assert str(images_file(tmp_path / "data", name).resolve()) in mapped
        assert images.dtype == torch.uint8


def test_a_disk_that_is_too_small_is_known_before_any_image_is_decoded(tmp_path, monkeypatch):
    parts = make_task(tmp_path / "parts")
    files, _ = survey(find_images(parts / "train"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1))
    monkeypatch.setattr(reading, "decode", None)
    with pytest.raises(
        StoreError, match=r"^the train images need 0\.1 MB, and the disk of .* has 0\.0 MB left; free some"
    ):
        write_pixels(files, Loading(64), tmp_path / "data" / "train.npy")


READ_IMAGES = """
import sys
from pathlib import Path
from dsv_plugins import StoreError
from dsv_plugins.data.dataset import prepare

parts, disk = map(Path, sys.argv[1:])
try:
    prepare(parts / "train", parts / "test", disk / "run" / "data", size=256)
except StoreError as error:
    sys.exit(f"{error}; left: {list((disk / 'run').iterdir())}")
"""


def test_a_disk_too_small_for_the_images_is_one_line(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        outcome = subprocess.run(
            [sys.executable, "-c", READ_IMAGES, str(make_task(tmp_path / "parts")), str(disk)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert outcome.returncode == 1, outcome.returncode
    assert re.fullmatch(
        rf"the train images need 1\.6 MB, and the disk of {disk}/run has 1\.0 MB left; .*; left: \[\]\n", outcome.stderr
    )


# ---------------------------------------------------------------------------
# The images of a study
# ---------------------------------------------------------------------------


def test_names_and_folders_do_not_matter(tmp_path):
    parts, other = make_task(tmp_path / "parts"), tmp_path / "other"
    (other / "a").mkdir(parents=True)
    for index, file in enumerate(reversed(find_images(parts / "test"))):
        os.rename(file, other / "a" / f"{index}.png")
    make_task(tmp_path / "again")
    prepare(parts / "train", other, tmp_path / "one", size=16)
    prepare(tmp_path / "again" / "train", tmp_path / "again" / "test", tmp_path / "two", size=16)
    one, two = open_dataset(tmp_path / "one"), open_dataset(tmp_path / "two")
    assert (one.test == two.test).all()
    assert one.fingerprint == two.fingerprint


def test_content_and_size_change_the_fingerprint(tmp_path):
    parts = make_task(tmp_path / "parts")

    def fingerprint(size: int, **settings: float) -> str:
        prepare(parts / "train", parts / "test", tmp_path / "data", size=size, **settings)
        return open_dataset(tmp_path / "data").fingerprint

    first = fingerprint(16)
    assert fingerprint(24) != first
    assert fingerprint(16, holdout=0.3) != first
    assert fingerprint(16) == first
    Image.fromarray(texture(77)).save(parts / "test" / "new.png")
    assert fingerprint(16) != first


def test_the_same_images_are_not_decoded_again(tmp_path):
    parts = make_task(tmp_path / "parts")
    decoded = []
    for _ in range(2):
        prepare(
            parts / "train",
            parts / "test",
            tmp_path / "data",
            size=16,
            progress=lambda name, done, planned: decoded.append(name),
        )
    assert decoded == ["train"] * 8 + ["test"] * 8


def test_holdout_is_a_seeded_share_of_the_train_images(tmp_path):
    parts = make_task(tmp_path / "parts")

    def split(folder: str, seed: int) -> tuple[set[bytes], set[bytes]]:
        prepare(parts / "train", parts / "test", tmp_path / folder, size=16, holdout=0.25, seed=seed)
        data = open_dataset(tmp_path / folder)
        return {bytes(image.numpy()) for image in data.train}, {bytes(image.numpy()) for image in data.holdout}

    train, holdout = split("a", 0)
    assert len(holdout) == 2
    assert len(train) == 6
    assert not train & holdout
    assert split("b", 0) == (train, holdout)
    assert any(split(f"seed-{seed}", seed)[1] != holdout for seed in range(1, 4))


@pytest.mark.parametrize("as_tensors", [False, True])
def test_equal_images_are_never_on_both_sides_of_the_split(tmp_path, as_tensors):
    """A held-out image with a copy in training has a lower score than a new one, and the promise of alarms breaks."""
    parts = make_task(tmp_path / "parts")
    for file in find_images(parts / "train"):
        shutil.copy(file, file.with_name(f"copy-{file.name}"))
    train, notes = parts / "train", []
    if as_tensors:
        train = torch.from_numpy(np.stack([decode(file, 16) for file in find_images(train)]))
    for seed in range(5):
        folder = tmp_path / f"data-{seed}"
        prepare(train, parts / "test", folder, size=16, holdout=0.25, seed=seed, note=notes.append)
        data = open_dataset(folder)
        kept, held_out = ([bytes(image.numpy()) for image in images] for images in (data.train, data.holdout))
        assert not set(kept) & set(held_out)
        assert len(held_out) == len(set(held_out)) == 2, "of equal images one decides: they are no more evidence"
        assert len(kept) == 12
    assert all("8 of the 16 good images are copies of others, such as " in note for note in notes)
    assert len(notes) == 5


def test_false_alarms_are_as_rare_as_asked_for_if_every_good_image_is_there_twice(tmp_path):
    """With a detector that remembers: the score of an image is its distance to the nearest train image."""
    generator = torch.Generator().manual_seed(0)
    rates = []
    for seed in range(30):
        good = torch.randint(256, (250, 1, 4, 4), dtype=torch.uint8, generator=generator)
        prepare(good[:50].repeat(2, 1, 1, 1), good[50:60], tmp_path / f"{seed}", size=4, holdout=None, seed=seed)
        data = open_dataset(tmp_path / f"{seed}")
        scores = [
            torch.cdist(images.flatten(1).float(), data.train.flatten(1).float()).amin(dim=1).numpy()
            for images in (data.holdout, good[60:])
        ]
        calibration = Calibration(scores[0])
        rates.append(calibration.alarms(scores[1], calibration.default_rate).mean() - calibration.default_rate)
    assert np.mean(rates) < 2 * np.std(rates) / len(rates) ** 0.5


def test_overlap_of_train_and_test_is_named_and_can_be_skipped(tmp_path):
    parts = make_task(tmp_path / "parts")
    (parts / "test" / "copy.png").write_bytes((parts / "train" / "good" / "002.png").read_bytes())
    with pytest.raises(
        InputError, match=r"copy\.png is the same image as .*002\.png, a train image; remove it.*skip-bad"
    ):
        prepare(parts / "train", parts / "test", tmp_path / "data", size=16)
    bad = prepare(parts / "train", parts / "test", tmp_path / "data", size=16, skip_bad=True)
    assert [file.path.name for file in bad] == ["copy.png"]
    assert len(open_dataset(tmp_path / "data").test) == 8


def test_unreadable_files_stop_or_are_skipped_and_listed(tmp_path):
    parts = make_task(tmp_path / "parts")
    for name in ("000", "001"):
        (parts / "train" / "good" / f"{name}.png").write_bytes(b"no image " + name.encode())
    with pytest.raises(
        InputError, match=r"00[01]\.png cannot be read .*, .*00[01]\.png cannot be read .*; remove them.*--skip-bad"
    ):
        prepare(parts / "train", parts / "test", tmp_path / "data", size=16)
    for _ in range(2):  # the second time from what is stored
        bad = prepare(parts / "train", parts / "test", tmp_path / "data", size=16, skip_bad=True)
        assert sorted(file.path.name for file in bad) == ["000.png", "001.png"]
    assert len(open_dataset(tmp_path / "data").train) == 6


@pytest.mark.parametrize("left", [0, 1])
def test_too_few_images(tmp_path, left):
    parts = make_task(tmp_path / "parts")
    for file in find_images(parts / "train")[left:]:
        file.write_bytes(b"no image" + file.name.encode())
    with pytest.raises(InputError, match=f"train.* leaves {left} usable train images; selection needs 2"):
        prepare(parts / "train", parts / "test", tmp_path / "data", size=16, skip_bad=True)


def test_tensors_are_taken_as_they_are(tmp_path):
    images = torch.randint(256, (9, 3, 20, 20), dtype=torch.uint8)
    prepare(images[:5], images[5:], tmp_path / "data", size=16)
    data = open_dataset(tmp_path / "data")
    assert {bytes(image.numpy()) for image in data.train} == {bytes(image.numpy()) for image in images[:5]}
    with pytest.raises(InputError, match="uint8"):
        prepare(images[:5].float(), images[5:], tmp_path / "data", size=16)


def test_images_are_decoded_ahead_but_only_some(tmp_path, monkeypatch):
    """However many images there are, no more wait decoded than the threads may be ahead."""
    started, taken, ahead = 0, 0, []

    def counted(path, size, **_):
        nonlocal started
        started += 1
        ahead.append(started - taken)
        return np.zeros((3, size, size), np.uint8)

    monkeypatch.setattr(reading, "decode", counted)
    paths = [tmp_path / f"{index:04d}.png" for index in range(1000)]
    for expected, (path, _) in zip(paths, reading.decode_all(paths, 8), strict=True):
        assert path == expected
        taken += 1
    assert started == 1000
    limit = reading.AHEAD * (os.cpu_count() or 1)
    assert 1 < max(ahead) <= limit + 1


def test_who_stops_does_not_wait_for_the_images_that_are_ahead(tmp_path, monkeypatch):
    started, going = [], threading.Event()

    def waiting(path, size, **_):
        started.append(path)
        if len(started) > 1:
            going.wait(30)
        return np.zeros((3, size, size), np.uint8)

    monkeypatch.setattr(reading, "decode", waiting)
    decoded = reading.decode_all([tmp_path / f"{index}.png" for index in range(1000)], 8)
    next(decoded)
    threading.Timer(0.1, going.set).start()
    decoded.close()
    assert len(started) <= 1 + 2 * (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("good", "kept_out"), [(2, 0), (14, 0), (15, 5), (30, 10), (57, 19), (60, 19), (95, 19), (200, 40), (5000, 100)]
)
def test_how_many_good_images_are_kept_out(good: int, kept_out: int):
    assert images_to_keep_out(good) == kept_out


# ---------------------------------------------------------------------------
# Files that are none, and files that can be read with doubts
# ---------------------------------------------------------------------------


NO_FILES = {
    "pipe": (os.mkfifo, "it is a folder, a pipe, a socket or a device"),
    "socket": (lambda path: os.mknod(path, stat.S_IFSOCK), "it is a folder, a pipe, a socket or a device"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "it is a folder, a pipe, a socket or a device"),
    "broken link": (lambda path: path.symlink_to("nowhere.png"), "it is a link to nowhere.png, which is not there"),
    "looping link": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_named_or_skipped_and_never_waited_for(tmp_path, kind):
    make, reason = NO_FILES[kind]
    parts = make_task(tmp_path / "parts")
    odd = parts / "test" / "odd.png"
    make(odd)
    with pytest.raises(InputError, match=re.escape(f"{odd} cannot be read ({reason}); remove it, or leave")):
        prepare(parts / "train", parts / "test", tmp_path / "data", size=16)
    for _ in range(2):  # the second time from what is stored
        bad = prepare(parts / "train", parts / "test", tmp_path / "data", size=16, skip_bad=True)
        assert [str(file) for file in bad] == [f"{odd}: cannot be read ({reason})"]
    assert len(open_dataset(tmp_path / "data").test) == 8
    ((_, outcome),) = reading.decode_all([odd], 16)
    assert str(outcome) == f"{odd} cannot be read as an image ({reason})"


def test_no_readable_image_at_all_is_said(tmp_path):
    parts = make_task(tmp_path / "parts")
    shutil.rmtree(parts / "train")
    (parts / "train").mkdir()
    (parts / "train" / "odd.png").symlink_to("nowhere.png")
    with pytest.raises(InputError, match="leaves 0 usable train images"):
        prepare(parts / "train", parts / "test", tmp_path / "data", size=16, skip_bad=True)


def test_what_pillow_warns_of_is_a_note_that_names_the_file(tmp_path, monkeypatch, recwarn):
    parts = make_task(tmp_path / "parts")
    large = saved(parts / "train", "large.png", Image.fromarray(texture(300, size=50)))
    monkeypatch.setattr(pixels, "LARGE", 2000)
    torn = saved(parts / "test", "torn.png", Image.fromarray(texture(301)), exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1700)  # the other images have 1600
    notes = []
    prepare(parts / "train", parts / "test", tmp_path / "data", size=16, note=notes.append)
    assert [note.partition(": ")[0] for note in notes] == [str(large), str(torn)]
    assert "it has 2,500 pixels, and takes up to 0.0 GB of memory while it is read" in notes[0]
    assert "Corrupt EXIF data" in notes[1]
    assert not recwarn.list


def test_warnings_of_others_are_left_alone(tmp_path):
    path = saved(tmp_path, "a.png", Image.fromarray(COLOUR))
    decoded = reading.decode_all([path, path], 16)
    next(decoded)
    with pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine", stacklevel=1)


def test_a_shorter_array_has_the_bytes_of_one_that_was_never_longer(tmp_path):
    parts = make_task(tmp_path / "parts")
    files, _ = survey(find_images(parts / "train"))
    write_pixels(files[:7], Loading(16), tmp_path / "short.npy")
    files[7].path.write_bytes(b"no image")
    write_pixels(files, Loading(16), tmp_path / "long.npy")
    assert (tmp_path / "long.npy").read_bytes() == (tmp_path / "short.npy").read_bytes()


def test_of_large_images_one_is_in_memory_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "LARGE", 100)
    inside, most = [], []
    made = pixels._pixels

    def watched(*arguments):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return made(*arguments)

    monkeypatch.setattr(pixels, "_pixels", watched)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    files = [saved(tmp_path, f"{number}.png", Image.fromarray(texture(number))) for number in range(8)]
    assert len(list(decode_all(files, 16))) == 8
    assert max(most) == 1


def test_too_large_an_image_says_the_limit_and_what_to_do(tmp_path, monkeypatch):
    file = saved(tmp_path, "huge.png", Image.fromarray(texture(0, size=50)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(InputError, match=r"it has more than 2,000 pixels; cut it into parts, or scale it down"):
        decode(file, 16)


def test_memory_of_large_images_goes_back_to_the_system(tmp_path):
    """Grey ones take a byte for each pixel, and sixteen bits little more than what is in the file."""
    side = 6000
    for name, made in (("grey", np.zeros((side, side), np.uint8)), ("deep", np.zeros((side, side), np.uint16))):
        Image.fromarray(made).save(tmp_path / f"{name}.png", compress_level=1)
    code = (
        "import resource, sys; from pathlib import Path; from dsv_plugins.pixels import decode; import numpy as np\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = peak(); decode(Path(sys.argv[1]), 16); print(peak() - before)"
    )
    for name, most in (("grey", 2), ("deep", 6)):
        found = subprocess.run([sys.executable, "-c", code, tmp_path / f"{name}.png"], capture_output=True, check=True)
        assert int(found.stdout) < most * side * side
