"""Models of anomalib as detector encoders."""

from __future__ import annotations

import inspect
import socket

import pytest
import timm
import torch
from anomalib.data import Folder
from anomalib.engine import Engine
from anomalib.models import Padim, Patchcore
from anomalib.models.image.dsr import Dsr
from anomalib.models.image.mh_patchcore import MHPatchcore
from anomalib.pre_processing import PreProcessor
from anomalib.utils import path as paths
from conftest import QUIET, augmentation, detector, images
from PIL import Image
from torch.nn import functional
from torchvision.transforms.v2 import Compose, Normalize, Resize

from dsv_anomalib import hooks
from dsv_anomalib.detector import COMPONENTS_OFF, pooled
from dsv_anomalib.table import ENTRIES
from dsv_anomalib.weights import OUR_BACKBONE
from dsv_plugins import InputError, PluginSettingsError, select
from dsv_plugins.testing import run_checks

RECORDS = {record.name: record for record in hooks.detector_encoder()}
CUTPASTE = augmentation("cutpaste", patch_size=0.2)
NOISE = augmentation("anomalib-feature-noise", noise_std=0.2)
STRENGTH = augmentation("anomalib-latent-strength", strength=0.3)
TINY = {"batch_size": 4, "updates": 2}


def fitted(name, synthesis, *, count=8, **params):
    found = detector(name, **params)
    calls = []
    found.fit(images(count), synthesis, updates=2, seed=3, progress=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(1, 2), (2, 2)]
    return found


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def _no_weights(monkeypatch):
    """Networks of timm with random weights."""
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, **k: create(name, **{**k, "pretrained": False}))


@pytest.mark.parametrize(
    ("name", "may_fail"),
    [
        ("draem", {"scores_anomalies_higher"}),  # at its learning rate, twenty updates teach it next to nothing
        ("glass", set()),
        ("patchcore", {"exports_the_same_scores"}),  # it searches in chunks if there are many patches
        ("padim", set()),
    ],
)
def test_conformance(name, may_fail):
    failed = {outcome.check for outcome in run_checks(RECORDS[f"anomalib-{name}"]) if outcome.failed}
    assert failed <= may_fail


@pytest.mark.parametrize(
    ("name", "model", "size", "settings"),  # settings with which nothing is drawn
    [
        ("patchcore", Patchcore, 64, {"coreset_sampling_ratio": 1.0}),
        ("padim", Padim, 64, {"n_features": 152}),
        ("mh-patchcore", MHPatchcore, 224, {"memory_bank_size": 10_000, "local_coreset_size": 10_000}),
    ],
)
def test_a_rival_is_the_model_that_anomalib_itself_trains(name, model, size, settings, tmp_path, capfd):
    """Scored by anomalib's Engine from files, and by us from tensors."""
    settings = {"layers": ["blocks.2", "blocks.4"], **settings}
    ours = detector(name, image_size=size, model_params=settings)
    ours.fit(images(8, size=size), augmentation("cutout", patch_size=0.1))
    assert not ours.learns_from_augmentation
    assert "Coreset" not in "".join(capfd.readouterr())  # its progress bar

    for folder_name, defect in (("good", False), ("bad", True)):
        (tmp_path / folder_name).mkdir()
        for index, pixels in enumerate(images(8, defect=defect, size=size)):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / folder_name / f"{index}.png")
    pre_processor = PreProcessor(Compose([Resize((size, size)), Normalize([0.5] * 3, [0.5] * 3)]))
    theirs = model(backbone="dsv_efficientnet_lite0", pre_processor=pre_processor, **COMPONENTS_OFF, **settings)
    data = Folder("parts", root=tmp_path, normal_dir="good", normal_test_dir="good", abnormal_dir="bad", num_workers=0)
    engine = Engine(default_root_dir=tmp_path / "engine", limit_val_batches=0, **QUIET)
    engine.fit(theirs, datamodule=data)
    batches = engine.predict(theirs, data_path=tmp_path / "bad")
    expected = torch.cat([batch.pred_score.flatten() for batch in batches])
    scores = ours.score(images(8, defect=True, size=size))
    assert torch.allclose(scores, expected, rtol=1e-3)
    assert scores.min() > ours.score(images(8, size=size)).max()


def test_draem_is_embedded_by_its_discriminative_encoder(draem):
    network, pixels = draem.module.model, images(4, seed=1) / 255
    with torch.no_grad():
        both = torch.cat([pixels, network.reconstructive_subnetwork(pixels)], dim=1)
        expected = network.discriminative_subnetwork.encoder_segment(both)[-1].mean(dim=(2, 3))
        prediction = network.discriminative_subnetwork(both)
    torch.testing.assert_close(draem.encode(pixels), expected, rtol=1e-4, atol=1e-6)
    scores = functional.softmax(prediction, dim=1)[:, 1].amax(dim=(1, 2))
    torch.testing.assert_close(draem.score(pixels), scores, rtol=1e-4, atol=1e-6)


def test_one_image_too_many_for_a_batch_is_no_batch_of_its_own():
    """At this size Draem has one place at its end, and batch norm refuses to learn from one value."""
    fitted("draem", CUTPASTE, count=5, batch_size=4)


def test_every_copy_is_augmented_though_draem_trains_on_half(draem):
    pixels = images(6, seed=1) / 255
    expected = draem.encode(CUTPASTE(pixels, generator=generator()))
    torch.testing.assert_close(
        draem.encode_augmented(pixels, CUTPASTE, generator=generator()), expected, rtol=1e-4, atol=1e-7
    )


def test_glass_trains_on_images_and_on_features_for_as_many_batches_as_asked():
    on_images, on_features = fitted("glass", CUTPASTE), fitted("glass", NOISE)
    assert on_features.module.model.gaussian_noise_std == 0.2
    assert on_images.module.model.gaussian_noise_std == 0.015
    pixels = images(4, seed=1)
    plain = on_features.encode(pixels)
    doubled = augmentation("anomalib-feature-noise", noise_std=0.4)
    once, twice = (on_features.encode_augmented(pixels, s, generator=generator()) - plain for s in (NOISE, doubled))
    assert once.abs().max() > 1e-3
    torch.testing.assert_close(twice, 2 * once, rtol=1e-3, atol=1e-5)


def test_generalad_learns_from_its_noise(tmp_path):
    params = RECORDS["anomalib-generalad"].check_params
    few, many = (fitted("generalad", augmentation("anomalib-feature-noise", noise_std=std)) for std in (0.01, 2.0))
    again = fitted("generalad", NOISE), fitted("generalad", NOISE)
    pixels = images(4, seed=1)
    torch.testing.assert_close(again[0].encode(pixels), again[1].encode(pixels), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(few.encode(pixels), many.encode(pixels), atol=1e-4)
    copies = [again[0].encode_augmented(pixels, NOISE, generator=generator(seed)) for seed in (0, 0, 1)]
    assert torch.equal(copies[0], copies[1])
    assert not torch.allclose(copies[0], copies[2], atol=1e-4)
    few.save(tmp_path)
    loaded = detector("generalad", **params)
    loaded.load(tmp_path)
    torch.testing.assert_close(loaded.score(pixels), few.score(pixels), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_no_weights")
def test_foundad_takes_any_augmentation_in_place_of_its_own():
    seen = []

    def watch(pixels, *, generator):
        seen.append(pixels)
        return CUTPASTE(pixels, generator=generator)

    params = {"encoder_name": "dinov2_vit_small_14", "pred_depth": 1, "image_size": 28}
    found = fitted("foundad", watch, image_size=28, model_params=params, **TINY)
    assert all(pixels.min() >= 0 and pixels.max() <= 1 for pixels in seen)
    assert seen[0].std() > 0.05  # pixels of images, and not what is left of normalised ones
    embeddings = found.encode(images(3, seed=1))
    assert embeddings.shape == (3, 384)
    assert not torch.allclose(embeddings, found.encode_augmented(images(3, seed=1), CUTPASTE, generator=generator()))
    assert found.score(images(3)).shape == (3,)


@pytest.mark.usefixtures("_no_weights")
def test_supersimplenet_learns_from_noise_in_part_of_each_image():
    params = {"backbone": "resnet18", "layers": ["layer2"]}
    found = fitted("supersimplenet", NOISE, count=2, image_size=128, model_params=params, **TINY)
    assert found.module.model.anomaly_generator.noise_std == 0.2
    pixels = images(3, seed=1, size=128)
    assert found.score(pixels).shape == (3,)
    change = found.encode_augmented(pixels, NOISE, generator=generator()) - found.encode(pixels)
    assert (change.abs().amax(dim=1) > 1e-5).all()  # the model itself leaves half of the images as they are


def test_dsr_learns_from_anomalies_in_its_quantised_features(monkeypatch, tmp_path):
    weights = tmp_path / "weights.pckl"
    torch.save(Dsr().model.discrete_latent_model.state_dict(), weights)
    monkeypatch.setattr(Dsr, "prepare_pretrained_model", staticmethod(lambda: weights))
    found = fitted("dsr", STRENGTH, image_size=64, **TINY)
    assert found.module.model.latent_anomaly_strength == 0.3
    embeddings = found.encode(images(2))
    augmented = found.encode_augmented(images(2), STRENGTH, generator=generator())
    assert embeddings.shape == augmented.shape
    assert not torch.allclose(embeddings, augmented)
    assert found.score(images(2)).shape == (2,)


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("foundad", {}, r"the weights of vit_base_patch14_dinov2.lvd142m .*HF_HOME"),
        ("supersimplenet", {}, r"the weights of wide_resnet50_2.tv_in1k .*, or give .*dsv_efficientnet_lite0"),
        ("supersimplenet", {"backbone": "resnet18"}, r"the weights of resnet18 .*dsv_efficientnet_lite0"),
        ("glass", {}, r"give detector_params=\{'model_params': \{'backbone': 'dsv_efficientnet_lite0'\}\}"),
        (
            "generalad",
            {},
            r"the weights of vit_large_patch14_dinov2.lvd142m .*HF_HOME\) from a machine that is online$",
        ),
        ("dsr", {}, r"the weights of dsr are not in .*vq_model_pretrained_128_4096.pckl, and github.com"),
        ("supersimplenet", {"backbone": "resnet1000"}, "timm has no model named 'resnet1000'"),
    ],
)
def test_missing_weights_are_found_before_anything_is_trained(name, params, reason, monkeypatch, tmp_path):
    attempts = []

    def refused(address, *others, **more):
        attempts.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(paths, "get_pretrained_weights_dir", lambda: tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=reason) as error:
        select(
            tmp_path / "train",
            tmp_path / "test",
            detector=f"anomalib-{name}",
            detector_params={"model_params": params},
            augmentation={"foundad": "cutpaste", "dsr": "anomalib-latent-strength"}.get(name, "anomalib-feature-noise"),
            out=tmp_path / "run",
        )
    assert len(attempts) <= 1
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_weights_that_nobody_needs_are_not_looked_for(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", None)
    for name, params in (
        ("glass", {"pre_trained": False}),
        ("supersimplenet", {"backbone": OUR_BACKBONE}),
        ("draem", {}),
    ):
        RECORDS[f"anomalib-{name}"].preflight(image_size=64, model_params=params)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.backbone], ids=lambda entry: entry.name)
def test_the_table_knows_the_backbone_that_a_model_takes_by_itself(entry):
    assert inspect.signature(entry.model_class()).parameters[entry.backbone.argument].default == entry.backbone.default


@pytest.mark.parametrize("name", ["supersimplenet", "glass"])
def test_a_model_can_be_built_on_our_backbone_without_a_network(name, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", None)
    # Perlin noise of anomalib fails at random on maps of fewer than 32 places a side.
    found = fitted(name, NOISE, image_size=128, batch_size=4, model_params={"backbone": OUR_BACKBONE})
    (normalise,) = (step for step in found.module.pre_processor.transform.transforms if isinstance(step, Normalize))
    assert (list(normalise.mean), list(normalise.std)) == ([0.5] * 3, [0.5] * 3)
    exported = found.module.pre_processor.export_transform(images(2, size=128) / 255)
    torch.testing.assert_close(exported, images(2, size=128) / 255 * 2 - 1)
    assert found.score(images(2)).isfinite().all()
    own = dict(timm.create_model(OUR_BACKBONE, pretrained=True).named_parameters())["conv_stem.weight"]
    assert any(torch.equal(value.cpu(), own) for value in found.module.model.state_dict().values())


@pytest.mark.parametrize(
    ("name", "synthesis", "advice"),
    [
        (
            "generalad",
            CUTPASTE,
            "makes pseudo-anomalies out of features.*choose the augmentation anomalib-feature-noise",
        ),
        ("draem", NOISE, "draem has no noise_std; it makes pseudo-anomalies out of images"),
        (
            "generalad",
            augmentation("anomalib-latent-strength", strength=0.2),
            "generalad has no strength; .* noise_std",
        ),
    ],
)
def test_synthesis_in_the_wrong_space_is_refused(name, synthesis, advice):
    with pytest.raises(InputError, match=advice):
        detector(name).fit(images(), synthesis)


def test_wrong_settings_show_before_a_training():
    with pytest.raises(PluginSettingsError, match="draem takes no depth in model_params; it takes dtd_dir, "):
        detector("draem", model_params={"depth": 3})
    with pytest.raises(PluginSettingsError, match="pooling is 'median'; give one of mean, max, topk"):
        detector("draem", pooling="median")
    with pytest.raises(PluginSettingsError, match="image_size is 64; supersimplenet needs 128 at least"):
        detector("supersimplenet", image_size=64, model_params={"backbone": OUR_BACKBONE})


def test_pooling_of_patches():
    patches = torch.arange(40.0).reshape(1, 20, 2)
    as_map = patches.transpose(1, 2).reshape(1, 2, 4, 5)
    for features in (patches, as_map):
        assert pooled(features, "mean").tolist() == [[19, 20]]
        assert pooled(features, "max").tolist() == [[38, 39]]
        assert pooled(features, "topk").tolist() == [[37, 38]]  # the largest two of twenty
    assert pooled([patches, as_map], "max").tolist() == [[38, 39, 38, 39]]
    one_vector_each = patches[0]
    for pooling in ("mean", "max", "topk"):
        assert torch.equal(pooled(one_vector_each, pooling), one_vector_each), "there are no patches to pool"
