"""The images of a datamodule, and nothing else of it, as a module takes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from anomalib.data import AnomalibDataModule
from anomalib.data.utils import ValSplitMode, read_image
from anomalib.models.components import AnomalibModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchvision.transforms.v2 import functional

from dsv_plugins import InputError

__all__ = ["images_of", "preprocessed", "set_up", "test_paths", "train_paths"]

SPLIT_SEED = 0


def set_up(datamodule: AnomalibDataModule) -> None:
    """Split the data, once: after a set-up by a plain string, a trainer would split it anew, and mix train and test.

    A split that nobody gave a seed gets one: otherwise the same call would be another study each time.
    """
    if datamodule.seed is None:
        datamodule.seed = SPLIT_SEED
    datamodule.prepare_data()
    datamodule.setup(TrainerFn.FITTING)


def images_of(datamodule: AnomalibDataModule, size: int, at_most: int | None = None) -> tuple[Tensor, Tensor]:
    """The train and the test images of a datamodule that is set up, as uint8 of shape (images, 3, size, size).

    Only the paths of images are taken from it: masks are not opened, and labels are not looked at.

    Args:
        datamodule: Its test images, and the validation images that were split off from them, serve as one set.
        size: Height and width to resize to.
        at_most: How many of each, evenly spaced; None for all.

    Raises:
        InputError: It has no train images, or no test images.
    """
    train, test = train_paths(datamodule), test_paths(datamodule)
    if not test:
        raise InputError(
            f"the datamodule {datamodule.name} has no test images; give it some, or give select unlabelled=FOLDER"
        )
    return _read(_some(train, at_most), size), _read(_some(test, at_most), size)


def train_paths(datamodule: AnomalibDataModule) -> list[str]:
    """The files of the train images of a datamodule that is set up.

    Raises:
        InputError: It has none.
    """
    paths = _paths(datamodule, "train_data")
    if not paths:
        raise InputError(f"the datamodule {datamodule.name} has no train images; selection needs some")
    return paths


def test_paths(datamodule: AnomalibDataModule) -> list[str]:
    """The files of the test images of a datamodule that is set up.

    By default anomalib makes half of them validation images, by which nobody decides here: they are unlabelled, too.
    """
    test, validation = _paths(datamodule, "test_data"), _paths(datamodule, "val_data")
    of_test = getattr(datamodule, "val_split_mode", None) == ValSplitMode.FROM_TEST
    return [*test, *validation] if of_test else test or validation


def preprocessed(module: AnomalibModule, images: Tensor) -> Tensor:
    """Images in [0, 1] as the module's network takes them, on its device."""
    images = images.to(module.device)
    transform: Callable[[Tensor], Tensor] | None = getattr(module.pre_processor, "transform", None)
    return transform(images) if transform is not None else images


def _paths(datamodule: AnomalibDataModule, name: str) -> list[str]:
    dataset = getattr(datamodule, name, None)
    return [] if dataset is None else list(dataset.samples["image_path"])


def _some(paths: list[str], at_most: int | None) -> list[str]:
    if at_most is None or at_most >= len(paths):
        return paths
    return [paths[place * len(paths) // at_most] for place in range(at_most)]


def _read(paths: list[str], size: int) -> Tensor:
    return torch.stack([_resized(path, size) for path in paths])


def _resized(path: str, size: int) -> Tensor:
    image: Tensor = functional.resize(read_image(path, as_tensor=True), [size, size], antialias=True)
    return (image.as_subclass(Tensor).clamp(0, 1) * 255).round().to(torch.uint8)
