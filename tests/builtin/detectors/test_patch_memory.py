"""The detectors of patches: distances and scores against plain loops, what is learned, files and studies."""

from __future__ import annotations

import itertools
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from conftest import texture
from PIL import Image
from safetensors.torch import save_file
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from textures import images

from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, InputError, build_registry, load, select
from dsv_plugins.builtin.detectors.patch_memory import detector as detector_module
from dsv_plugins.builtin.detectors.patch_memory.backbone import PATCHES, POOLED, SOURCE, Backbone
from dsv_plugins.builtin.detectors.patch_memory.components import Components
from dsv_plugins.builtin.detectors.patch_memory.fusion import PENALTY, fit_weights
from dsv_plugins.builtin.detectors.patch_memory.memory import PatchMemory
from dsv_plugins.run.folder import RunFolder

SMALL = {"image_size": 64}
BOTH = ["patch-memory", "patch-fusion"]

pytestmark = pytest.mark.usefixtures("one_thread")


def detector(name: str = "patch-fusion", **settings: object):
    return build_registry().create(DetectorEncoderPlugin, name, {**SMALL, **settings})


def augmentation(size: float = 0.05):
    return build_registry().create(AugmentationPlugin, "cutpaste", {"patch_size": size})


@pytest.fixture(scope="module", params=BOTH)
def fitted(request: pytest.FixtureRequest):
    made = detector(request.param)
    made.fit(images(24), augmentation(), seed=3)
    return made


# ---------------------------------------------------------------------------
# Distances
# ---------------------------------------------------------------------------


def features(count: int, seed: int, height: int = 4, width: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn((count, height, width, 6), generator=generator)
    return {PATCHES: patches, POOLED: torch.randn((count, 3), generator=generator)}


def looped(queries: np.ndarray, bank: np.ndarray, window: int) -> np.ndarray:
    """The distance to the nearest patch of any image at most so many steps away, patch by patch."""
    count, height, width, _ = queries.shape
    found = np.full((count, height, width), np.inf)
    for image, row, column in np.ndindex(count, height, width):
        for other_row, other_column in np.ndindex(height, width):
            if abs(row - other_row) + abs(column - other_column) <= window:
                distances = np.linalg.norm(bank[:, other_row, other_column] - queries[image, row, column], axis=-1)
                found[image, row, column] = min(found[image, row, column], distances.min())
    return found


def whitened(memory: PatchMemory, patches: torch.Tensor) -> np.ndarray:
    return ((patches.float() - memory.centre) @ memory.whitening).double().numpy()


@pytest.mark.parametrize("window", [0, 1, 2, 3])
def test_distances_are_those_of_a_plain_loop(window: int):
    train, test = features(7, 0), features(3, 1)
    memory, _ = PatchMemory.fit(train, window=window, images=100, seed=0)
    expected = looped(whitened(memory, test[PATCHES]), whitened(memory, train[PATCHES]), window)
    np.testing.assert_allclose(memory(test).numpy(), expected, rtol=5e-3)  # the memory has half precision


def test_an_image_in_the_memory_is_compared_with_the_others():
    train = features(7, 0)
    memory, left_out = PatchMemory.fit(train, window=1, images=100, seed=0)
    rows = whitened(memory, train[PATCHES])
    for image in range(7):
        expected = looped(rows[[image]], np.delete(rows, image, axis=0), 1)
        np.testing.assert_allclose(left_out[[image]].numpy(), expected, rtol=5e-3)
    torch.testing.assert_close(memory(train), left_out)


def test_a_copy_is_not_compared_with_the_image_that_it_is_a_copy_of():
    train = features(7, 0)
    memory, _ = PatchMemory.fit(train, window=1, images=100, seed=0)
    copies = {PATCHES: train[PATCHES][2:4] + 0.1, POOLED: train[POOLED][2:4] + 1, SOURCE: train[POOLED][2:4]}
    rows = whitened(memory, train[PATCHES])
    for place, image in enumerate((2, 3)):
        expected = looped(whitened(memory, copies[PATCHES])[[place]], np.delete(rows, image, axis=0), 1)
        np.testing.assert_allclose(memory(copies)[[place]].numpy(), expected, rtol=5e-3)


def test_exact_copies_among_the_train_images_are_one_image():
    """Otherwise each would be at distance 0 from the other, and good images would look far too close together."""
    once = features(6, 0)
    twice = {name: values.repeat_interleave(2, dim=0) for name, values in once.items()}
    _, single = PatchMemory.fit(once, window=1, images=100, seed=0)
    _, double = PatchMemory.fit(twice, window=1, images=100, seed=0)
    assert double.min() > 0.5 * single.min() > 0


def test_patches_are_white_about_the_mean_of_their_position():
    train = features(40, 0)
    train[PATCHES] = train[PATCHES] @ torch.randn((6, 6), generator=torch.Generator().manual_seed(5)) + 3
    memory, _ = PatchMemory.fit(train, window=0, images=100, seed=0)
    rows = train[PATCHES].double().numpy()
    deviations = (rows - rows.mean(axis=0)).reshape(-1, 6)
    precision = np.linalg.inv(ledoit_wolf(deviations, assume_centered=True)[0])
    whitening = memory.whitening.double().numpy()
    np.testing.assert_allclose(whitening @ whitening.T, precision, rtol=1e-4, atol=1e-6)


def test_distances_are_standardised_by_those_of_the_train_images():
    train, test = features(9, 0), features(2, 1)
    memory, left_out = PatchMemory.fit(train, window=1, images=100, seed=0)
    known = left_out.double().numpy()
    expected = (memory(test).numpy() - known.mean(axis=0)) / (known.std(axis=0) + 0.5 * known.std())
    np.testing.assert_allclose(memory.standardised(memory(test)).numpy(), expected, rtol=1e-4)


def test_a_large_train_set_is_thinned():
    memory, distances = PatchMemory.fit(features(30, 0), window=1, images=8, seed=0)
    assert memory.bank.shape[1] == 8
    assert distances.shape == (30, 4, 5)


# ---------------------------------------------------------------------------
# Components and scores
# ---------------------------------------------------------------------------


def test_the_components_are_means_of_the_largest_distances():
    train, test = features(12, 0), features(4, 1)
    components = Components.fit(train, window=1, images=100, largest=(1, 3), seed=0)
    rows, distances = components.of(test)
    assert components.names == [
        "whole",
        "raw-1",
        "raw-3",
        "raw-all",
        "standardised-1",
        "standardised-3",
        "standardised-all",
    ]
    known = components.of(train)[1].flatten(1).numpy()
    ranked, of_test = (np.sort(values, axis=1)[:, ::-1] for values in (known, distances.flatten(1).numpy()))
    for place, count in ((1, 1), (2, 3), (3, 20)):
        of_train = ranked[:, :count].mean(axis=1)
        expected = (of_test[:, :count].mean(axis=1) - of_train.mean()) / of_train.std()
        np.testing.assert_allclose(rows[:, place].numpy(), expected, rtol=1e-3, atol=1e-3)


def test_the_whole_of_a_copy_is_that_of_a_fit_without_its_image():
    """With a fixed shrinkage, against covariances fitted anew."""
    train = features(12, 0)
    components = Components.fit(train, window=0, images=100, largest=(1,), seed=0)
    rows = train[POOLED].double().numpy()
    copies = {PATCHES: train[PATCHES], POOLED: train[POOLED] + 0.7, SOURCE: train[POOLED]}
    found = components.measured(copies, components.memory(copies))[:, 0].double().exp().numpy()
    _, shrinkage = ledoit_wolf(rows)
    target = np.trace(np.cov(rows.T, bias=True)) / 3 * np.eye(3)
    for image in range(12):
        others = np.delete(rows, image, axis=0)
        covariance = (1 - shrinkage) * np.cov(others.T, bias=True) * 11 / 12 + shrinkage * target
        centred = rows[image] + 0.7 - others.mean(axis=0)
        assert found[image] == pytest.approx(np.sqrt(centred @ np.linalg.solve(covariance, centred)), rel=1e-4)


@pytest.mark.parametrize("score", ["raw", "standardised", "both", "whole"])
def test_the_memory_scores_by_what_it_is_asked_to(score: str):
    made = detector("patch-memory", score=score)
    made.fit(images(12), augmentation())
    test = torch.cat([images(3, first=50), images(3, first=60, defect=True)])
    rows = np.sinh(made.encode(test).double().numpy())
    columns = {"whole": [0], "raw": [1], "standardised": [3], "both": [1, 3]}[score]
    np.testing.assert_allclose(made.score(test).numpy(), rows[:, columns].sum(axis=1), rtol=1e-3, atol=1e-3)


def test_the_weights_are_those_of_a_logistic_regression():
    """Of scikit-learn, where no weight wants to be negative."""
    generator = np.random.default_rng(0)
    normal, pseudo = generator.normal(size=(60, 3)), generator.normal([1.0, 1.5, 2.0], size=(20, 3))
    weights, bias = fit_weights(normal, pseudo)
    shares = np.repeat([0.5 / 60, 0.5 / 20], [60, 20])
    other = LogisticRegression(C=1 / PENALTY, tol=1e-8).fit(
        np.concatenate([normal, pseudo]), np.repeat([0, 1], [60, 20]), sample_weight=shares
    )
    np.testing.assert_allclose(weights, other.coef_[0], atol=1e-3)
    assert bias == pytest.approx(other.intercept_[0], abs=1e-3)


def test_a_component_that_pseudo_anomalies_lower_counts_for_nothing():
    generator = np.random.default_rng(0)
    normal, pseudo = generator.normal(size=(60, 2)), generator.normal([2.0, -2.0], size=(60, 2))
    weights, _ = fit_weights(normal, pseudo)
    assert weights[0] > 0.1
    assert weights[1] == 0


def test_what_pseudo_anomalies_change_counts(monkeypatch: pytest.MonkeyPatch):
    """A small patch shows in the largest distance, a brighter image in the mean of all."""

    class Brighter:
        def __call__(self, batch: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
            return (batch * 1.4).clamp(0, 1)

    def weights(used) -> dict[str, float]:
        made = detector()
        made.fit(images(16), used, seed=0)
        return dict(zip(made._components.names, made._head.weights.tolist(), strict=True))

    small, bright = weights(augmentation(0.01)), weights(Brighter())
    assert small["standardised-1"] > small["standardised-all"]
    assert bright["raw-all"] + bright["standardised-all"] > small["raw-all"] + small["standardised-all"]


def test_an_augmentation_that_changes_nothing_is_survived():
    class Nothing:
        def __call__(self, batch: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
            return batch.clone()

    made = detector()
    made.fit(images(8), Nothing(), seed=0)
    assert made.score(images(3)).isfinite().all()


def test_defects_score_higher(fitted):
    scores = torch.cat([fitted.score(images(12, first=200)), fitted.score(images(12, first=300, defect=True))])
    assert roc_auc_score([0] * 12 + [1] * 12, scores.numpy()) > 0.95


def test_the_heatmap_points_at_the_defect(fitted):
    spoiled = images(8, first=400)
    spoiled[:, :, 40:56, 8:24] = 255
    heat = fitted.heatmap(spoiled)
    rows, columns = np.unravel_index(heat.flatten(1).argmax(dim=1).numpy(), heat.shape[1:])
    assert all(4 <= row <= 7 and 0 <= column <= 3 for row, column in zip(rows, columns, strict=True))


def test_train_images_are_scored_as_if_left_out(fitted):
    """So each component has the mean 0 and the deviation 1 that it was standardised to."""
    rows = np.sinh(fitted.encode(images(24)).double().numpy())
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(rows.std(axis=0), 1, atol=0.02)


# ---------------------------------------------------------------------------
# Any images, any network
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("shape", "grid"), [((6, 1, 40, 40), (8, 8)), ((6, 3, 130, 70), (10, 6)), ((6, 3, 64, 256), (4, 16))]
)
def test_grey_images_and_any_size(name: str, shape: tuple[int, ...], grid: tuple[int, int]):
    """Images that are not square keep their aspect, and have about as many patches as square ones."""
    made = detector(name)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    made.fit(pixels, augmentation(), seed=0)
    assert made.score(pixels).shape == (6,)
    assert made.heatmap(pixels).shape == (6, *grid)
    assert made.heatmap(images(2)).shape == (2, *grid)  # new images get the shape of the train images


def test_equal_images_are_survived():
    made = detector("patch-memory")
    made.fit(torch.full((5, 3, 64, 64), 90, dtype=torch.uint8), augmentation())
    assert made.score(images(3)).isfinite().all()
    assert made.score(torch.full((2, 3, 64, 64), 90, dtype=torch.uint8)).isfinite().all()


def test_images_that_hardly_differ_are_survived():
    """A burst of one part: deviations are tiny beside the differences between its patches."""
    train = features(8, 0)
    burst = train[PATCHES][:1] * 50 + train[PATCHES] * 1e-4
    memory, distances = PatchMemory.fit({PATCHES: burst, POOLED: train[POOLED]}, window=1, images=100, seed=0)
    assert distances.isfinite().all()
    other = {PATCHES: burst[:2] + 1, POOLED: train[POOLED][:2] + 1}
    assert memory(other).isfinite().all()
    assert memory(other).mean() > 10 * distances.mean()


@pytest.mark.parametrize("count", [2, 3])
def test_very_few_images_are_survived(count: int):
    made = detector()
    made.fit(images(count), augmentation())
    assert made.score(images(3, first=9)).isfinite().all()


def test_a_transformer_is_a_backbone(tmp_path: Path):
    torch.manual_seed(0)
    name = "vit_tiny_patch16_224"
    save_file(timm.create_model(name, pretrained=False).state_dict(), tmp_path / "own.safetensors")
    made = detector(backbone=name, weights=str(tmp_path / "own.safetensors"), image_size=96, layers=[2, 4])
    made.fit(images(8), augmentation(), seed=0)
    assert made.heatmap(images(3)).shape == (3, 6, 6)
    (tmp_path / "saved").mkdir()
    made.save(tmp_path / "saved")
    again = detector(backbone=name, weights=str(tmp_path / "own.safetensors"), image_size=96, layers=[2, 4])
    again.load(tmp_path / "saved")
    torch.testing.assert_close(again.score(images(3)), made.score(images(3)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 16}, "image_size is 16; give a whole number of at least 32"),
        ({"window": -1}, "window is -1; give a whole number of at least 0"),
        ({"layers": "2"}, r"layers is '2'; give a list of whole numbers such as \[2, 3\]"),
        ({"memory_images": 1}, "memory_images is 1; give a whole number of at least 2"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(Exception, match=message):
        detector(**settings)
    with pytest.raises(Exception, match="score is 'best'; give one of both, raw, standardised, whole"):
        detector("patch-memory", score="best")


def test_a_window_larger_than_the_image_is_one_line():
    with pytest.raises(InputError, match="window is 8, and these images have 8 patches on a side; give a smaller"):
        detector(window=8).fit(images(4), augmentation())
    with pytest.raises(InputError, match="window is 8"):  # in a study, before the network sees an image
        detector(window=8).frozen_features(images(4))


def test_the_images_that_differ_most_are_remembered():
    """Every image that is left out is nearer to one that is remembered than these are to each other."""
    generator = torch.Generator().manual_seed(0)
    pooled = torch.rand(30, 4, generator=generator)
    pooled[:10] = pooled[0]  # a burst of one part
    train = {PATCHES: torch.rand(30, 3, 3, 5, generator=generator).half(), POOLED: pooled}
    memory, _ = PatchMemory.fit(train, window=0, images=12, seed=3)
    kept = memory.pooled.tolist()
    left_out = [row for row in pooled.tolist() if row not in kept]
    farthest = max(min(math.dist(row, other) for other in kept) for row in left_out)
    assert len({tuple(row) for row in kept}) == 12  # of the burst at most one
    assert farthest <= min(math.dist(*pair) for pair in itertools.combinations(kept, 2))


def test_a_memory_that_cannot_be_held_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch):
    needed = 4 * 8 * 8 * 152 * (2 + 4)  # images, patches, features, and two copies of each number
    monkeypatch.setattr(detector_module, "available_memory", lambda: needed)
    detector().fit(images(4), augmentation())
    monkeypatch.setattr(detector_module, "available_memory", lambda: needed - 1)
    with pytest.raises(InputError, match=r"a memory of 4 images needs 0\.0 GB, .*; give a smaller memory_images"):
        detector().fit(images(4), augmentation())
    detector(memory_images=3).fit(images(4), augmentation())


def test_the_available_memory_is_that_of_the_machine():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < detector_module.available_memory() <= total


# ---------------------------------------------------------------------------
# Files and studies
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
def test_the_seed_decides(name: str):
    first, again, other = (detector(name, memory_images=2) for _ in range(3))
    for made, seed in ((first, 1), (again, 1), (other, 2)):
        made.fit(images(12), augmentation(), seed=seed)
    new = images(4, first=90)
    assert torch.equal(first.score(new), again.score(new))
    assert not torch.equal(first.score(new), other.score(new))


def test_candidates_share_the_file_of_their_memory(tmp_path: Path):
    folders = [tmp_path / name for name in ("start", "one", "two")]
    for folder in folders:
        folder.mkdir()
    start = detector()
    start.fit_shared_start(images(12), seed=0)
    start.save(folders[0])
    for folder, size in zip(folders[1:], (0.01, 0.3), strict=True):
        made = detector()
        made.load(folders[0])
        made.fit(images(12), augmentation(size), seed=0)
        made.save(folder)
        alone = detector()
        alone.fit(images(12), augmentation(size), seed=0)
        new = images(4, first=90, defect=True)
        assert torch.equal(made.score(new), alone.score(new))
    files = [folder / "memory.safetensors" for folder in folders]
    assert all(one.samefile(other) for one, other in itertools.combinations(files, 2))


def test_a_study_runs_the_frozen_part_once_on_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    original = Backbone.features

    def counted(self: Backbone, batch: torch.Tensor, shape: tuple[int, int]):
        if not batch.is_floating_point():  # augmented copies are floats, the images of the study are not
            seen.append(len(batch))
        return original(self, batch, shape)

    monkeypatch.setattr(Backbone, "features", counted)
    settings = {"grid": {"patch_size": [0.02, 0.1, 0.4]}, "detector_params": SMALL, "executor": "serial"}
    train, test = images(12), images(6, first=50)
    result = select(train, test, out=tmp_path / "run", **settings)
    assert sorted(seen) == [6, 12]
    frozen = RunFolder(result.path).frozen
    assert sorted(folder.name for folder in frozen.glob("*/*")) == ["test", "train"]
    select(train, test, out=tmp_path / "run", selector="energy", **settings)
    assert sorted(seen) == [6, 12]  # everything is stored
    before = (result.path / "selection.json").read_bytes()
    damaged = next(frozen.glob("*/test/*.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    shutil.rmtree(next(iter(sorted((result.path / "candidates").iterdir()))))
    again = select(train, test, out=tmp_path / "run", selector="energy", **settings)
    assert sorted(seen) == [6, 6, 12]
    assert any(f"{damaged} is damaged" in note for note in again.notes)
    assert (result.path / "selection.json").read_bytes() == before


def test_features_from_the_disk_are_the_features(tmp_path: Path):
    """Workers with mapped features give the scores that one process without any gives."""
    train, test = images(12), images(8, defect=True, first=70)
    settings = {"grid": {"patch_size": [0.02, 0.2]}, "detector_params": SMALL}
    result = select(train, test, out=tmp_path / "run", workers=2, **settings)
    data = RunFolder(result.path).data  # a study orders images by their content
    train, test = (torch.from_numpy(np.load(data / f"{name}.npy")) for name in ("train", "test"))
    for entry in result.candidates:
        alone = detector()
        alone.fit(train, augmentation(entry.candidate.params["patch_size"]), seed=0)
        torch.testing.assert_close(
            result.evaluation(entry.candidate).scores.test, alone.score(test), rtol=1e-4, atol=1e-4
        )


def test_a_study_of_the_memory_has_one_candidate(tmp_path: Path):
    settings = {"detector": "patch-memory", "detector_params": SMALL, "executor": "serial", "out": tmp_path / "run"}
    result = select(images(6), images(4, first=50), **settings)
    assert len(result.candidates) == 1
    other = detector("patch-memory")
    other.fit(images(6), augmentation(0.64))
    torch.testing.assert_close(
        result.load_detector(result.choice.candidate).score(images(3)), other.score(images(3)), rtol=1e-3, atol=1e-3
    )


def test_a_study_of_wide_images_keeps_their_aspect(tmp_path: Path):
    """Until the model, which takes them at the same size from a file, in Python and when it is exported."""
    folders = {"train": tmp_path / "train", "test": tmp_path / "test"}
    for name, seeds in (("train", range(20)), ("test", range(50, 56))):
        folders[name].mkdir()
        for seed in seeds:
            Image.fromarray(texture(seed, size=128)[:48]).save(folders[name] / f"{seed}.png")  # 48 high, 128 wide
    settings = {"grid": {"patch_size": [0.05]}, "detector_params": SMALL, "executor": "serial"}
    result = select(**folders, out=tmp_path / "run", **settings)
    stored = np.load(RunFolder(result.path).data / "test.npy")
    assert stored.shape == (6, 3, 32, 112)
    model = load(result.path)
    assert tuple(model.record.image_size) == (32, 112)
    prediction = model.predict(torch.from_numpy(stored))
    assert prediction.heatmaps.shape == (6, 4, 14)
    module = model.detector.as_module()
    torch.testing.assert_close(
        module(torch.from_numpy(stored).float() / 255)[0], prediction.scores, rtol=1e-3, atol=1e-3
    )
    assert select(**folders, out=tmp_path / "run", **settings).path == result.path  # taken as stored
