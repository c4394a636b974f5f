"""The import of anomalib, which takes seconds and is not silent."""

from __future__ import annotations

import importlib
import warnings

__all__ = ["import_anomalib"]


def import_anomalib() -> None:
    """Import the models of anomalib, without its warnings that it uses what is deprecated.

    A user can do nothing about them, and would see them again from every worker.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        importlib.import_module("anomalib.models")
