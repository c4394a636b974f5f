"""What happens at the import of anomalib, which takes seconds and is not silent, and of timm."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["add_backbones_to_timm", "import_anomalib"]

BACKBONES = "dsv_plugins.toolkit.backbones"
"""Registers our networks with timm."""


def import_anomalib() -> None:
    """Import the models of anomalib, without its warnings that it uses what is deprecated.

    A user can do nothing about them, and would see them again from every worker.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        importlib.import_module("anomalib.models")


def add_backbones_to_timm() -> None:
    """Make our networks known to timm: now, or as soon as somebody imports it, which takes seconds."""
    if "timm" in sys.modules:
        importlib.import_module(BACKBONES)
    else:
        sys.meta_path.insert(0, _AfterTimm())


class _AfterTimm(importlib.abc.MetaPathFinder):
    """Lets the import of timm end with that of our networks."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "timm":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_add(module: ModuleType) -> None:
                execute(module)
                importlib.import_module(BACKBONES)

            loader.exec_module = execute_and_add
        return spec
