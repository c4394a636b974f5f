"""Label-free selection of augmentation hyperparameters for self-supervised anomaly detectors.

The names below are the public ones. Those that need torch are imported when first used: listing plugins stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dsv_plugins.errors import (
    ConformanceError,
    DSVError,
    EmbeddingError,
    InputError,
    PluginConflictError,
    PluginError,
    PluginSettingsError,
    ScoreError,
    TrainingError,
    UnknownPluginError,
)
from dsv_plugins.hookspecs import hookimpl
from dsv_plugins.interfaces import Augmentation, DetectorEncoder, Executor, Outcome, Progress, Selector
from dsv_plugins.records import AugmentationPlugin, DetectorEncoderPlugin, ExecutorPlugin, SelectorPlugin
from dsv_plugins.registry import Registry, build_registry
from dsv_plugins.spaces import Range
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores

if TYPE_CHECKING:
    from dsv_plugins.transforms import from_transform

__all__ = [
    "Augmentation",
    "AugmentationPlugin",
    "Candidate",
    "ConformanceError",
    "DSVError",
    "DetectorEncoder",
    "DetectorEncoderPlugin",
    "EmbeddingError",
    "Embeddings",
    "Evaluation",
    "Executor",
    "ExecutorPlugin",
    "Health",
    "InputError",
    "Outcome",
    "PluginConflictError",
    "PluginError",
    "PluginSettingsError",
    "Progress",
    "Range",
    "Registry",
    "ScoreError",
    "Scores",
    "Selector",
    "SelectorPlugin",
    "TrainingError",
    "UnknownPluginError",
    "build_registry",
    "from_transform",
    "hookimpl",
]

_NEED_TORCH = {"from_transform": "dsv_plugins.transforms"}


def __getattr__(name: str) -> object:
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(_NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
