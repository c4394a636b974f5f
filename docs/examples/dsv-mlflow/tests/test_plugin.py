"""The kit, and what is in a file store after studies that end well and studies that fail."""

import os

import pytest
import torch
from dsv_mlflow import MLflow, observer

from dsv_plugins import AugmentationPlugin, SelectorPlugin, TrainingError, select
from dsv_plugins.testing import run_checks

mlflow = pytest.importorskip("mlflow")


os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # recent versions write to a folder only then


def test_conformance(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path))
    assert {result.status for result in run_checks(observer())} == {"passed"}


class Shade:
    def __init__(self, strength):
        if strength > 1:
            raise RuntimeError("too dark")
        self.strength = strength

    def __call__(self, images, *, generator):
        return images * (1 - self.strength * torch.rand(len(images), 1, 1, 1, generator=generator))


class Impossible:
    def losses(self, evaluations):
        raise ValueError("nothing can be told of these")


def study(folder, **settings):
    """A small study that logs to a file store; the runs that it left there."""
    images = torch.randint(0, 256, (16, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    settings = {
        "augmentation": AugmentationPlugin("shade", Shade, space={"strength": [0.2, 0.6]}),
        "detector": "cutpaste-resnet18",
        "detector_params": {"image_size": 16, "width": 2, "updates": 4, "shared_updates": 2, "batch_size": 4},
        "executor": "serial",
        "out": folder / "run",
        "observers": observer(),
        "observer_params": {"mlflow": {"experiment": "parts", "store": str(folder / "mlruns")}},
        **settings,
    }
    return select(images[:10], images[10:], **settings)


def runs(folder):
    client = mlflow.MlflowClient(tracking_uri=str(folder / "mlruns"))
    found = client.search_runs([client.get_experiment_by_name("parts").experiment_id])
    (whole,) = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    return whole, {run.info.run_name: run for run in found if run is not whole}


def test_a_study_and_its_candidates_are_runs_with_all_losses(tmp_path):
    result = study(tmp_path, selector=["dsv", "energy"])
    whole, parts = runs(tmp_path)
    assert set(parts) == {"shared start", *(str(entry.candidate) for entry in result.candidates)}
    assert {run.info.status for run in [whole, *parts.values()]} == {"FINISHED"}
    for entry in result.candidates:
        run = parts[str(entry.candidate)]
        assert run.data.params == {"strength": str(entry.candidate.params["strength"])}
        losses = {name: run.data.metrics[name] for name in ("dsv", "energy")}
        assert losses == pytest.approx(dict(entry.losses))
        expected = float(result.evaluation(entry.candidate).scores.test.mean())
        assert run.data.metrics["mean test score"] == pytest.approx(expected)
    assert whole.data.tags["chosen by dsv"] == str(result.choice.candidate)
    assert whole.data.tags["planned candidates"] == "2"


@pytest.mark.parametrize("wrong", ["selector", "training"])
def test_no_run_stays_open_after_a_study_that_fails(tmp_path, wrong):
    if wrong == "selector":
        with pytest.raises(Exception, match="nothing can be told of these"):
            study(tmp_path, selector=SelectorPlugin("impossible", Impossible))
    else:
        with pytest.raises(TrainingError):
            study(tmp_path, timeout=0.0001)
    whole, parts = runs(tmp_path)
    assert whole.info.status == "FAILED"
    assert whole.data.tags["reason"]
    assert "RUNNING" not in {run.info.status for run in parts.values()}


def test_the_store_is_mlflows_own_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "default"))
    logger = MLflow()
    logger.started(tmp_path, [])
    logger.study_failed(KeyboardInterrupt())
    assert (tmp_path / "default").is_dir()
