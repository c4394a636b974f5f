"""`patch-memory` and `patch-fusion` as models of anomalib, trained by the Engine."""

from __future__ import annotations

import pytest
import torch
from anomalib.engine import Engine
from conftest import QUIET, augmentation, folder, images, make_task
from torchvision.io import read_image

from dsv_anomalib import PatchFusion, PatchMemory
from dsv_plugins import DetectorEncoderPlugin, build_registry
from dsv_plugins.calibration import Calibration

SIZE = 64


@pytest.fixture(scope="module")
def larger_task(tmp_path_factory):
    """Enough good images to hold some out, and already of the models' size."""
    return make_task(tmp_path_factory.mktemp("larger") / "parts", train=24, size=SIZE)


@pytest.fixture(scope="module", params=[PatchMemory, PatchFusion])
def trained(request, larger_task, tmp_path_factory):
    module = request.param(image_size=SIZE)
    engine = Engine(default_root_dir=tmp_path_factory.mktemp("patches"), limit_val_batches=0, **QUIET)
    engine.fit(module, datamodule=folder(larger_task))
    return module.eval(), engine


def pixels_of(files):
    return torch.stack([read_image(str(file)) for file in sorted(files)])


def test_it_is_the_detector_trained_on_what_is_not_held_out(trained, larger_task):
    module, _ = trained
    held_out = {path.rpartition("/")[2] for path in module._held_out}
    assert len(held_out) == 8  # a third of 24
    files = list((larger_task / "train/good").iterdir())
    detector = build_registry().create(DetectorEncoderPlugin, module.plugin, {"image_size": SIZE})
    good = pixels_of([file for file in files if file.name not in held_out])
    detector.fit(good, augmentation("cutpaste", patch_size=0.08), seed=0)
    new = images(6, seed=3, defect=True, size=SIZE)
    with torch.no_grad():
        found = module.model(new.float() / 255)
    torch.testing.assert_close(found.pred_score, detector.score(new), rtol=1e-4, atol=1e-3)
    assert found.anomaly_map.shape == (6, 1, SIZE, SIZE)
    # And the threshold is that of `dsv score`, by the images held out.
    calibration = Calibration(detector.score(pixels_of([file for file in files if file.name in held_out])).numpy())
    threshold = calibration.threshold(calibration.default_rate)
    assert float(module.post_processor.image_threshold) == pytest.approx(threshold, rel=1e-4)
