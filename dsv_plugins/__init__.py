"""Label-free selection of augmentation hyperparameters for self-supervised anomaly detectors.

The names below are the public ones. Those that take long to import are imported when first used.
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
    StoreError,
    TrainingError,
    UnknownPluginError,
    WorkerError,
)
from dsv_plugins.plugins.interfaces import Augmentation, DetectorEncoder, Executor, Outcome, Progress, Selector
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.records import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    ObserverPlugin,
    SearchPlugin,
    SelectorPlugin,
)
from dsv_plugins.plugins.registry import Registry, build_registry
from dsv_plugins.plugins.search import Rungs, Search, SearchProblem, rank
from dsv_plugins.plugins.spaces import Range, Space, Values, When, space_to_json
from dsv_plugins.plugins.specs import hookimpl
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores

if TYPE_CHECKING:
    from dsv_plugins.run.model import Model, Prediction, load
    from dsv_plugins.run.run import Result, Run
    from dsv_plugins.study.display import Display
    from dsv_plugins.study.study import Study, select
    from dsv_plugins.toolkit.lightning_detector import LightningDetector
    from dsv_plugins.transforms import from_transform

__all__ = [
    "Augmentation",
    "AugmentationPlugin",
    "Candidate",
    "ConformanceError",
    "DSVError",
    "DetectorEncoder",
    "DetectorEncoderPlugin",
    "Display",
    "EmbeddingError",
    "Embeddings",
    "Evaluation",
    "Executor",
    "ExecutorPlugin",
    "Health",
    "InputError",
    "LightningDetector",
    "Model",
    "Observer",
    "ObserverPlugin",
    "Outcome",
    "PluginConflictError",
    "PluginError",
    "PluginSettingsError",
    "Prediction",
    "Progress",
    "Range",
    "Registry",
    "Result",
    "Run",
    "Rungs",
    "ScoreError",
    "Scores",
    "Search",
    "SearchPlugin",
    "SearchProblem",
    "Selector",
    "SelectorPlugin",
    "Space",
    "StoreError",
    "Study",
    "TrainingError",
    "UnknownPluginError",
    "Values",
    "When",
    "WorkerError",
    "build_registry",
    "from_transform",
    "hookimpl",
    "load",
    "rank",
    "select",
    "space_to_json",
]

_LATE = {
    "Display": "dsv_plugins.study.display",
    "LightningDetector": "dsv_plugins.toolkit.lightning_detector",
    "Model": "dsv_plugins.run.model",
    "Prediction": "dsv_plugins.run.model",
    "Result": "dsv_plugins.run.run",
    "Run": "dsv_plugins.run.run",
    "Study": "dsv_plugins.study.study",
    "from_transform": "dsv_plugins.transforms",
    "load": "dsv_plugins.run.model",
    "select": "dsv_plugins.study.study",
}


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
