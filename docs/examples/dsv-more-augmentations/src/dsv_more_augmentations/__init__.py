"""Six augmentations. Every `dsv` command reads this file, so it imports nothing heavy."""

from dsv_plugins import AugmentationPlugin, hookimpl

dsv_api = 1

PATCH_SIZES = [0.01, 0.04, 0.16]
"""Shares of the image's area."""


def cutpaste_scar(length, thickness=0.03):
    from dsv_more_augmentations.pasting import Scar

    return Scar(length, thickness)


def cutpaste_3way(patch_size, length=0.2, thickness=0.03):
    from dsv_more_augmentations.pasting import Either, Patch, Scar

    return Either(Patch(patch_size), Scar(length, thickness))


def perlin_blend(cells, opacity, coverage=0.1):
    from dsv_more_augmentations.perlin import PerlinBlend

    return PerlinBlend(cells, opacity, coverage)


def noise_patch(patch_size, strength):
    from dsv_more_augmentations.patches import NoisePatch

    return NoisePatch(patch_size, strength)


def blur_patch(patch_size, sigma):
    from dsv_more_augmentations.patches import BlurPatch

    return BlurPatch(patch_size, sigma)


def elastic(strength, smoothness=4.0):
    from torchvision.transforms import v2

    from dsv_plugins import from_transform

    return from_transform(v2.ElasticTransform(alpha=float(strength), sigma=smoothness))


@hookimpl
def augmentation():
    return [
        AugmentationPlugin(
            "cutpaste-scar",
            cutpaste_scar,
            "A thin strip of the image, turned and pasted elsewhere (CutPaste-Scar)",
            {"length": [0.1, 0.2, 0.4], "thickness": [0.02, 0.05]},
        ),
        AugmentationPlugin(
            "cutpaste-3way",
            cutpaste_3way,
            "A patch or a scar, one as often as the other (the two kinds of the 3-way CutPaste)",
            {"patch_size": PATCH_SIZES, "length": [0.1, 0.3]},
        ),
        AugmentationPlugin(
            "perlin-blend",
            perlin_blend,
            "Another part of the image shines through clouds of Perlin noise (after DRAEM)",
            {"cells": [2, 4, 8], "opacity": [0.4, 0.9]},
        ),
        AugmentationPlugin(
            "noise-patch",
            noise_patch,
            "Gaussian noise in a patch",
            {"patch_size": PATCH_SIZES, "strength": [0.1, 0.4]},
        ),
        AugmentationPlugin(
            "blur-patch", blur_patch, "A blurred patch", {"patch_size": PATCH_SIZES, "sigma": [1.0, 4.0]}
        ),
        AugmentationPlugin(
            "elastic",
            elastic,
            "The whole image bent, by torchvision's ElasticTransform",
            {"strength": [15.0, 40.0, 100.0]},
        ),
    ]
