"""A tiny inspection task, and trainings that several tests look at and none changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from anomalib.data import Folder
from anomalib.engine import Engine
from PIL import Image

import dsv_anomalib
from dsv_plugins import AugmentationPlugin, DetectorEncoderPlugin, build_registry

SIDE = 32
NARROW = {"reconstructive_width": 8, "discriminative_width": 8}
TINY_CUTPASTE = {"preset": "quick", "image_size": SIDE, "width": 4, "updates": 6}
QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def texture(seed: int, *, defect: bool = False, size: int = 40) -> np.ndarray:
    """A smooth grey texture with a little noise; a defective one has a white bar."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size] / size
    phase = generator.uniform(0, 6.28, 2)
    image = 120 + 40 * np.sin(9 * rows + phase[0]) * np.cos(7 * columns + phase[1])
    image += generator.normal(0, 4, (size, size))
    if defect:
        row = int(generator.integers(4, size - 8))
        image[row : row + 4, 6:-6] = 255
    return image.clip(0, 255).astype(np.uint8)


def make_task(folder: Path, train: int = 8, size: int = 40) -> Path:
    """A task in MVTec layout: a few train images, 4 good and 4 defective test images."""
    for part, seeds in (("train/good", range(train)), ("test/good", range(100, 104)), ("test/bar", range(200, 204))):
        (folder / part).mkdir(parents=True)
        for seed in seeds:
            image = Image.fromarray(texture(seed, defect=part == "test/bar", size=size)).convert("RGB")
            image.save(folder / part / f"{seed:03d}.png")
    return folder


@pytest.fixture(scope="session")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task") / "parts")


def folder(task: Path, cls: type[Folder] = Folder, **settings: Any) -> Folder:
    """A datamodule of the task; without validation images unless asked for."""
    places = {"normal_dir": "train/good", "normal_test_dir": "test/good", "abnormal_dir": "test/bar"}
    batches = {"train_batch_size": 4, "eval_batch_size": 4, "num_workers": 0}
    return cls(name="parts", root=task, **{"val_split_mode": "none", **places, **batches, **settings})


def images(count: int = 8, *, seed: int = 0, defect: bool = False, size: int = SIDE) -> torch.Tensor:
    """Textures as uint8."""
    pixels = np.stack([texture(seed * 1000 + index, defect=defect, size=size) for index in range(count)])
    return torch.from_numpy(pixels)[:, None].expand(-1, 3, -1, -1).contiguous()


def detector(name: str, **params: Any) -> Any:
    """A detector of the table with the small settings of its conformance check."""
    registry = build_registry()
    record = registry.get(DetectorEncoderPlugin, f"anomalib-{name}")
    return registry.create(DetectorEncoderPlugin, record.name, {**record.check_params, **params})


def augmentation(name: str, **params: Any) -> Any:
    return build_registry().create(AugmentationPlugin, name, params)


@pytest.fixture(scope="session")
def native(task, tmp_path_factory) -> tuple[dsv_anomalib.CutPaste, Engine]:
    """CutPaste after a training by the Engine."""
    root = tmp_path_factory.mktemp("native")
    module = dsv_anomalib.CutPaste(**TINY_CUTPASTE)
    engine = Engine(default_root_dir=root, limit_val_batches=0, **QUIET)
    engine.fit(module, datamodule=folder(task))
    return module.eval(), engine


@pytest.fixture(scope="session")
def draem() -> Any:
    """Draem after a training on CutPaste."""
    found = detector("draem")
    found.fit(images(), augmentation("cutpaste", patch_size=0.2), updates=3, seed=1)
    return found
