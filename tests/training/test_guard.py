"""No plugin can spoil what another sees, and what a plugin returns is checked and blamed on it."""

from __future__ import annotations

import math
import re

import pytest
import torch
from brightness import SETTINGS, Brighten, Brightness, BrightnessPlugins, grey_images

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    PluginError,
    SelectorPlugin,
    TrainingError,
    hookimpl,
    select,
)
from dsv_plugins.training.guard import GuardedAugmentation


def study(out, plugins, **settings):
    return select(grey_images(12, 0), grey_images(6, 1), **{**SETTINGS, "out": out, "plugins": plugins, **settings})


class Vandal:
    """A selector that overwrites everything it is given."""

    def losses(self, evaluations):
        for evaluation in evaluations:
            for sets in (evaluation.embeddings, evaluation.scores):
                for name in ("train", "augmented", "test"):
                    getattr(sets, name).zero_()
            evaluation.candidate.params.clear()
        return [0.0 for _ in evaluations]


class WithVandal(BrightnessPlugins):
    @hookimpl
    def selector(self):
        return SelectorPlugin("vandal", Vandal, judges_alone=True)


def test_a_selector_cannot_change_what_others_see(tmp_path):
    alone = study(tmp_path / "alone", (BrightnessPlugins(),), selector="dsv")
    after = study(tmp_path / "after", (WithVandal(),), selector=["vandal", "dsv"])
    assert [(str(entry.candidate), entry.losses["dsv"]) for entry in after.candidates] == [
        (str(entry.candidate), entry.losses["dsv"]) for entry in alone.candidates
    ]
    assert [*after.confidence["dsv"].values()] == [*alone.confidence["dsv"].values()]


class InPlace(Brighten):
    def __call__(self, images, *, generator):
        return images.add_(self.strength).clamp_(0, 1)


def test_an_augmentation_that_works_in_place_changes_nothing_else():
    images = torch.rand(3, 3, 4, 4)
    before = images.clone()
    guarded = GuardedAugmentation(InPlace(0.5), "augmentation 'in-place'")
    copies = guarded(images, generator=torch.Generator())
    assert torch.equal(images, before)
    assert torch.equal(copies, Brighten(0.5)(before, generator=torch.Generator()))


def test_a_detector_can_still_ask_what_an_augmentation_is():
    guarded = GuardedAugmentation(InPlace(0.5), "augmentation 'in-place'")
    assert isinstance(guarded, InPlace)
    assert guarded.strength == 0.5


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda images: None, "returned a NoneType; return a tensor"),
        (lambda images: images.numpy(), "returned a ndarray; return a tensor"),
        (lambda images: images[1:], "returned images of shape (2, 3, 4, 4) for images of shape (3, 3, 4, 4)"),
        (lambda images: images.double(), "returned images of dtype float64 for images of dtype float32"),
        (lambda images: images * 255, "returned values from 0 to 255; they must be in [0, 1]"),
        (lambda images: images - 1, "returned values from -1 to 0; they must be in [0, 1]"),
        (lambda images: images * math.nan, "returned values from nan to nan; they must be in [0, 1]"),
        (lambda images: images + math.inf, "returned values from inf to inf; they must be in [0, 1]"),
        (lambda images: 1 / 0, "failed: ZeroDivisionError: division by zero"),
        (lambda images: exit(3), "called sys.exit(3)"),
    ],
)
def test_what_an_augmentation_returns_is_checked(spoil, told):
    images = torch.linspace(0, 1, 3 * 3 * 4 * 4).reshape(3, 3, 4, 4)
    guarded = GuardedAugmentation(lambda images, *, generator: spoil(images), "augmentation 'bad' (package 1.0)")
    with pytest.raises(PluginError) as caught:
        guarded(images, generator=torch.Generator())
    assert str(caught.value) == f"augmentation 'bad' (package 1.0) {told}"


def test_rounding_is_no_fault():
    guarded = GuardedAugmentation(lambda images, *, generator: images + 1e-5, "augmentation 'rounds'")
    assert guarded(torch.ones(1, 3, 4, 4), generator=torch.Generator()).max() > 1


@pytest.mark.parametrize(
    ("method", "returned", "told"),
    [
        ("encode", lambda rows: rows[1:], r"embeddings of shape \(\d+, 1\); return \(\d+, width\)"),
        ("encode", lambda rows: rows[:, 0], r"embeddings of shape \(\d+,\); return \(\d+, width\)"),
        ("encode", lambda rows: rows[:, :0], r"embeddings of shape \(\d+, 0\); return \(\d+, width\)"),
        ("encode", lambda rows: (rows * 255).long(), "embeddings of dtype int64; return floating point"),
        ("encode", lambda rows: rows * math.nan, "embeddings that are not finite; a smaller learning rate may help"),
        ("encode", lambda rows: rows.numpy(), "embeddings of type ndarray; return a tensor"),
        ("score", lambda scores: scores * math.nan, "scores that are not finite; a smaller learning rate may help"),
        ("score", lambda scores: scores[:, None], r"scores of shape \(\d+, 1\); return \(\d+,\)"),
        ("score", lambda scores: scores.sum(), r"scores of shape \(\); return \(\d+,\)"),
        ("score", lambda scores: None, "scores of type NoneType; return a tensor"),
        ("heatmap", lambda _: torch.zeros(1, 4, 4), r"heatmaps of shape \(1, 4, 4\); return \(\d+, height, width\)"),
    ],
)
def test_what_a_detector_returns_is_checked(tmp_path, method, returned, told):
    class Bad(Brightness):
        def fit(self, images, augmentation, **settings):
            self.mean = super().encode(images).mean()

        def encode(self, images):
            rows = super().encode(images)
            return returned(rows) if method == "encode" else rows

        def score(self, images):
            scores = (super().encode(images)[:, 0] - self.mean).abs()
            return returned(scores) if method == "score" else scores

        def heatmap(self, images):
            return returned(None) if method == "heatmap" else None

    class Plugins(BrightnessPlugins):
        @hookimpl
        def detector_encoder(self):
            return DetectorEncoderPlugin("bad", Bad)

    with pytest.raises(TrainingError) as caught:
        study(tmp_path / "run", (Plugins(),), detector="bad")
    start = f"every candidate failed; the first: detector_encoder 'bad' ({Plugins.__qualname__}) returned "
    assert str(caught.value).startswith(start)
    assert re.search(told, str(caught.value)), caught.value


def test_a_candidate_that_exits_fails_like_any_other(tmp_path):
    class Exits(Brighten):
        def __call__(self, images, *, generator):
            if self.strength == 0.2:
                raise SystemExit("enough")
            return super().__call__(images, generator=generator)

    class Plugins(BrightnessPlugins):
        @hookimpl
        def augmentation(self):
            return AugmentationPlugin("exits", Exits, space={"strength": [0.1, 0.2, 0.4]})

    result = study(tmp_path / "run", (Plugins(),), augmentation="exits")
    assert [entry.status for entry in result.candidates] == ["finished", "failed", "finished"]
    assert result.candidates[1].reason == f"augmentation 'exits' ({Plugins.__qualname__}) called sys.exit('enough')"


def test_an_augmentation_that_changes_nothing_is_named(tmp_path):
    class Same(Brighten):
        def __call__(self, images, *, generator):
            return images if self.strength == 0.2 else super().__call__(images, generator=generator)

    class Plugins(BrightnessPlugins):
        @hookimpl
        def augmentation(self):
            return AugmentationPlugin("same", Same, space={"strength": [0.1, 0.2, 0.4]})

    result = study(tmp_path / "run", (Plugins(),), augmentation="same")
    assert [entry.status for entry in result.candidates] == ["finished", "failed", "finished"]
    assert result.candidates[1].reason == (
        f"augmentation 'same' ({Plugins.__qualname__}) returns each image unchanged, so that there is nothing to learn "
        "from"
    )


def test_an_augmentation_may_leave_images_if_the_detector_makes_anomalies_among_features():
    guarded = GuardedAugmentation(lambda images, *, generator: images, "augmentation 'features'")
    images = torch.rand(2, 3, 4, 4)
    guarded(images, generator=torch.Generator())
    guarded.check_effect(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(PluginError, match="'features' returns each image unchanged"):
        guarded.check_effect(torch.ones(2, 3), torch.ones(2, 3))
