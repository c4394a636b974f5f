"""The hooks by which dsv-plugins finds this package. Nothing here imports torch or anomalib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsv_anomalib.entries import FEATURES, PREFIX, QUANTISED
from dsv_anomalib.table import ENTRIES, FEATURE_NOISE, LATENT_STRENGTH, RIVALS
from dsv_plugins import Augmentation, AugmentationPlugin, DetectorEncoderPlugin, hookimpl

if TYPE_CHECKING:
    from dsv_anomalib.augmentations import FeatureSynthesis


@hookimpl
def detector_encoder() -> list[DetectorEncoderPlugin]:
    """The models of anomalib that learn from pseudo-anomalies, and rivals that learn without."""
    return [entry.record() for entry in (*ENTRIES, *RIVALS)]


@hookimpl
def augmentation() -> list[AugmentationPlugin]:
    """The ways in which those models make pseudo-anomalies by themselves."""
    return [
        AugmentationPlugin(
            f"{PREFIX}perlin",
            perlin,
            "Patches of Perlin noise, or of textures, blended in: the synthesis of Draem, Glass and DSR",
            {"blend_factor": [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]},
        ),
        AugmentationPlugin(
            f"{PREFIX}foundad-cutpaste",
            foundad_cutpaste,
            "Patches and rotated scars pasted elsewhere: the synthesis of FoundAD",
            {"area_ratio": [0.02, 0.05, 0.1, 0.25]},
        ),
        AugmentationPlugin(
            FEATURE_NOISE,
            feature_noise,
            "Noise on features: the synthesis of Glass, SuperSimpleNet and GeneralAD; images stay as they are",
            {"noise_std": [0.015, 0.05, 0.25, 0.5, 2.0, 8.0]},
            changes=FEATURES,
        ),
        AugmentationPlugin(
            LATENT_STRENGTH,
            latent_strength,
            "Anomalies in quantised features: the synthesis of DSR; images stay as they are",
            {"strength": [0.1, 0.2, 0.4, 0.8]},
            changes=QUANTISED,
        ),
    ]


def perlin(
    blend_factor: float | Sequence[float] = (0.1, 1.0),
    rotation: float = 90.0,
    textures: str | None = None,
    scale: int | None = None,
) -> Augmentation:
    """Make the synthesis of Draem.

    Args:
        blend_factor: How much of the noise shows, or the two ends of a range from which each image draws.
        rotation: The largest rotation of the noise, in degrees to either side.
        textures: Folder of images to blend in, such as DTD, in place of the noise itself.
        scale: Cells of the noise along each side of an image: 1, 2, 4, 8, 16 or 32, and more cells are smaller
            anomalies. If None, each image draws one of these for its height and one for its width, as in Draem.
    """
    from dsv_anomalib import augmentations

    return augmentations.perlin(blend_factor, rotation, textures, scale)


def foundad_cutpaste(area_ratio: float | Sequence[float] = (0.02, 0.25), color_jitter: float = 0.5) -> Augmentation:
    """Make the synthesis of FoundAD.

    Args:
        area_ratio: Area of the patch as a share of the image, or the two ends of a range.
        color_jitter: Strength of the colour jitter on the patch.
    """
    from dsv_anomalib import augmentations

    return augmentations.foundad_cutpaste(area_ratio, color_jitter)


def feature_noise(
    noise_std: float, radius_quantile: float | None = None, perlin_threshold: float | None = None
) -> FeatureSynthesis:
    """Make the synthesis of Glass, SuperSimpleNet and GeneralAD.

    Args:
        noise_std: Spread of the noise.
        radius_quantile: Glass only: the quantile of distances behind which its anomalies lie.
        perlin_threshold: SuperSimpleNet only: what the noise of its masks must exceed.
    """
    return _features({"noise_std": noise_std, "radius_quantile": radius_quantile, "perlin_threshold": perlin_threshold})


def latent_strength(strength: float) -> FeatureSynthesis:
    """Make the synthesis of DSR, whose anomalies are at least so strong."""
    return _features({"strength": strength})


def _features(settings: Mapping[str, float | None]) -> FeatureSynthesis:
    from dsv_anomalib.augmentations import FeatureSynthesis

    return FeatureSynthesis({name: value for name, value in settings.items() if value is not None})
