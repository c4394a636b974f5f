"""Trained detectors, loaded from a run folder."""

from __future__ import annotations

from pathlib import Path

from dsv_plugins.hooks.interfaces import DetectorEncoder
from dsv_plugins.hooks.records import DetectorEncoderPlugin
from dsv_plugins.hooks.registry import Registry
from dsv_plugins.store.artifacts import ModelRecord, load_model_record
from dsv_plugins.store.folder import RunFolder

__all__ = ["load_model"]


def load_model(run: Path, registry: Registry) -> tuple[DetectorEncoder, ModelRecord]:
    """The chosen detector of a finished run, and what is known of it.

    Raises:
        StoreError: There is no model, or it is damaged.
    """
    folder = RunFolder(run)
    record = load_model_record(folder)
    detector = registry.create(DetectorEncoderPlugin, record.detector, record.detector_params)
    detector.load(folder.model)
    return detector, record
