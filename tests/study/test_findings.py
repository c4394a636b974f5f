"""What a study says about its test images: how many are flagged, and whether that is more than chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import texture

from dsv_plugins import select

SMALL = {"image_size": 64}


def images(seeds: range, *, defect: bool = False) -> torch.Tensor:
    pixels = np.stack([texture(seed, defect=defect, size=64) for seed in seeds])
    return torch.from_numpy(pixels)[:, None].expand(-1, 3, -1, -1).contiguous()


@pytest.mark.parametrize("anomalies", [0, 15])
def test_a_test_set_of_good_images_is_told_from_one_with_anomalies(tmp_path: Path, anomalies: int):
    test = images(range(100, 125))
    if anomalies:
        test = torch.cat([test, images(range(200, 200 + anomalies), defect=True)])
    result = select(
        images(range(60)),
        test,
        grid={"patch_size": [0.02, 0.1]},
        detector_params=SMALL,
        executor="serial",
        out=tmp_path / "run",
    )
    scores = result.evaluation(result.choice.candidate).scores
    threshold = scores.holdout.sort().values[-1]  # of 19 scores, for one false alarm in twenty
    assert result.findings.flagged == int((scores.test > threshold).sum())
    warned = any("may hold no anomalies" in warning for warning in result.warnings)
    assert warned == (anomalies == 0)
    assert result.findings.by_chance == warned
    if anomalies:
        assert result.findings.lowest_share <= anomalies / len(test) <= result.findings.highest_share
    else:
        assert result.findings.lowest_share == 0
