"""What `dsv plugins` shows, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import anomalib.models
import pytest

from dsv_anomalib.table import ENTRIES, find
from dsv_plugins import InputError, PluginError, select

LISTING = """
import sys
from dsv_plugins.cli import main
assert main(["plugins"]) == 0
heavy = {"torch", "anomalib", "lightning", "torchvision"} & set(sys.modules)
assert not heavy, heavy
"""


def test_listing_the_plugins_imports_neither_torch_nor_anomalib():
    listed = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, timeout=120)
    assert listed.returncode == 0, listed.stderr
    for entry in ENTRIES:
        assert f"anomalib-{entry.name}" in listed.stdout
    measured = {"draem", "glass", "supersimplenet"}  # the page has what selection is worth for them
    assert {entry.name for entry in ENTRIES if not entry.experimental} == measured
    assert listed.stdout.count("experimental") == len(ENTRIES) - len(measured)
    assert "failed" not in listed.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import dsv_anomalib; dsv_anomalib.select",
        "import dsv_plugins as d; d.build_registry().create(d.DetectorEncoderPlugin, 'anomalib-draem', {})",
    ],
    ids=["script", "worker"],
)
def test_importing_anomalib_is_silent(code):
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (imported.returncode, imported.stderr) == (0, "")


def test_the_import_makes_our_network_known_to_timm():
    code = """
import sys, dsv_anomalib
assert not {"timm", "torch"} & set(sys.modules)
import timm
assert timm.is_model("dsv_efficientnet_lite0")
"""
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert imported.returncode == 0, imported.stderr


def test_an_augmentation_that_a_model_cannot_learn_from_is_refused_before_any_training(tmp_path):
    for detector, wrong, advice in (
        (
            "anomalib-supersimplenet",
            "cutpaste",
            "changed features, and 'cutpaste' changes images; give .*-noise",
        ),
        ("patch-fusion", "anomalib-feature-noise", "changed images, and 'anomalib-feature-noise' changes features"),
        (
            "anomalib-dsr",
            "anomalib-feature-noise",
            "changed quantised features, .* give one of anomalib-latent-strength",
        ),
    ):
        with pytest.raises(InputError, match=f"{detector} learns from {advice}"):
            select(tmp_path, tmp_path, detector=detector, augmentation=wrong, out=tmp_path / "run")


def test_a_version_without_a_model_loses_that_entry_only():
    missing = replace(ENTRIES[0], model="anomalib.models.image.not_yet.NotYet")
    assert not missing.is_installed()
    assert "not available: the installed version of anomalib has no" in missing.record().summary
    with pytest.raises(PluginError, match="has no anomalib.models.image.not_yet.NotYet; install a newer one"):
        missing.record().factory(updates=3)
    assert all(entry.is_installed() for entry in ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entries_name_classes_that_exist(entry):
    assert issubclass(entry.model_class(), anomalib.models.components.AnomalibModule)
    assert find(entry.model_class()) is entry is find(entry.name) is find(f"anomalib-{entry.name}")


@pytest.mark.parametrize("name", ["Patchcore", "Padim", "Fastflow", "Cflow", "Stfpm"])
def test_models_without_augmentation_are_refused_with_the_reason(name):
    with pytest.raises(InputError, match=f"{name} has no augmentation to select: .* pseudo-anomalies") as refusal:
        find(getattr(anomalib.models, name))
    assert "\n" not in str(refusal.value)


def test_a_model_that_nobody_knows_can_be_given_an_entry():
    with pytest.raises(
        InputError,
        match="nothing is known of the model Widget; known are patch-fusion, .*, draem, .*dsv_anomalib.Entry",
    ):
        find("Widget")
