"""Does each newer model of anomalib fit, score, save, load and export? Tried once, with random weights and tiny images.

    python adapters/dsv-anomalib/benchmarks/try_models.py [NAMES...]

Prints a row for each model: which steps work, and the first line of what was said at the first that does not. Weights
are never fetched: with pretrained ones each of these models needs a download.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import anomalib.models
import numpy as np
import timm
import torch
from anomalib.data import Folder
from anomalib.engine import Engine
from PIL import Image

SMALL = "vit_small_patch14_dinov2"
MODELS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "MHPatchcore": (224, {"backbone": "resnet18"}),
    "SuperADD": (224, {"backbone": "vit_small_plus_patch16_dinov3", "patch_size": 224}),
    "Rad": (224, {}),
    "InpFormer": (448, {"encoder_name": "vit_small_patch14_reg4_dinov2"}),
    "AnomalyDINO": (112, {"encoder_name": SMALL}),
    "Dinomaly": (448, {"encoder_name": "vit_small_patch14_reg4_dinov2"}),
    "FoundAD": (112, {"encoder_name": "dinov2_vit_small_14"}),
    "GeneralAD": (112, {"backbone": "vit_small_patch14_dinov2", "layers": [2], "hidden_dim": 64, "epochs": 1}),
    "L2BT": (224, {}),
    "AnomalyVFM": (224, {}),
}
"""The size of their images, and arguments that make them small."""


def main() -> None:
    """Try them, and print a table as Markdown."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    print("| model | works | stops at |\n|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        size, arguments = MODELS[name]
        with tempfile.TemporaryDirectory() as folder, _random_weights():
            works, fault = tried(getattr(anomalib.models, name), size, arguments, Path(folder))
        print(f"| {name} | {', '.join(works)} | {fault} |", flush=True)


def tried(kind: Any, size: int, arguments: Mapping[str, Any], folder: Path) -> tuple[list[str], str]:
    """The steps that work, and what the first that does not says."""
    engine = Engine(
        default_root_dir=folder, max_epochs=3 if kind.__name__ == "MHPatchcore" else 1, limit_val_batches=0, **QUIET
    )
    data = write_task(folder / "task", size)
    made: dict[str, Any] = {}
    pixels = torch.rand(2, 3, size, size)

    def build() -> None:
        parts = {"pre_processor": kind.configure_pre_processor(image_size=(size, size)), "visualizer": False}
        made["model"] = kind(**arguments, **parts, evaluator=False, post_processor=False)

    def score() -> None:
        with torch.no_grad():
            made["scores"] = made["model"].eval()(pixels).pred_score
        assert made["scores"].isfinite().all(), "scores are not finite"

    def load() -> None:
        engine.trainer.save_checkpoint(folder / "model.ckpt")
        loaded = kind.load_from_checkpoint(folder / "model.ckpt", **arguments).eval()
        with torch.no_grad():
            found = loaded.model(loaded.pre_processor(pixels)).pred_score
        torch.testing.assert_close(found, made["scores"], rtol=1e-3, atol=1e-3)

    steps: Mapping[str, Callable[[], object]] = {
        "builds": build,
        "fits": lambda: engine.fit(made["model"], datamodule=data),
        "scores": score,
        "saves and loads": load,
        "exports (torch)": lambda: made["model"].to_torch(folder),
        "exports (ONNX)": lambda: made["model"].to_onnx(
            folder, input_size=(size, size), opset_version=18, verbose=False
        ),
    }
    works = []
    for step, work in steps.items():
        try:
            work()
        except (Exception, SystemExit) as error:
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            return works, f"{step}: {type(error).__name__}: {first:.160}"
        works.append(step)
    return works, ""


QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}


def write_task(folder: Path, size: int) -> Folder:
    """Four good images of noise."""
    (folder / "good").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(4):
        pixels = generator.integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "good" / f"{number}.png")
    none = {"test_split_mode": "none", "val_split_mode": "none", "num_workers": 0}
    return Folder(name="noise", root=folder, normal_dir="good", train_batch_size=2, **none)


def _random_weights() -> Any:
    """Have timm make networks without weights, and keep everything off the network."""
    create = timm.create_model
    return mock.patch("timm.create_model", lambda name, *rest, **kw: create(name, *rest, **{**kw, "pretrained": False}))


if __name__ == "__main__":
    main()
