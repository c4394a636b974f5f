"""The images of a datamodule, and nothing else of it, as a module takes them."""

from __future__ import annotations

from collections.abc import Callable

from anomalib.data import AnomalibDataModule
from anomalib.data.utils import ValSplitMode
from anomalib.models.components import AnomalibModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from dsv_plugins import InputError

__all__ = ["preprocessed", "set_up", "test_paths", "train_paths"]

SPLIT_SEED = 0


def set_up(datamodule: AnomalibDataModule) -> None:
    """Split the data, once: after a set-up by a plain string, a trainer would split it anew, and mix train and test.

    A split that nobody gave a seed gets one: otherwise the same call would be another study each time.
    """
    if datamodule.seed is None:
        datamodule.seed = SPLIT_SEED
    datamodule.prepare_data()
    datamodule.setup(TrainerFn.FITTING)


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

    Raises:
        InputError: It has none.
    """
    test, validation = _paths(datamodule, "test_data"), _paths(datamodule, "val_data")
    of_test = getattr(datamodule, "val_split_mode", None) == ValSplitMode.FROM_TEST
    paths = [*test, *validation] if of_test else test or validation
    if not paths:
        raise InputError(
            f"the datamodule {datamodule.name} has no test images; give it some, or give select unlabelled=FOLDER"
        )
    return paths


def preprocessed(module: AnomalibModule, images: Tensor) -> Tensor:
    """Images in [0, 1] as the module's network takes them, on its device."""
    images = images.to(module.device)
    transform: Callable[[Tensor], Tensor] | None = getattr(module.pre_processor, "transform", None)
    return transform(images) if transform is not None else images


def _paths(datamodule: AnomalibDataModule, name: str) -> list[str]:
    dataset = getattr(datamodule, name, None)
    return [] if dataset is None else list(dataset.samples["image_path"])
