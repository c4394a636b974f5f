"""Label-free selection of augmentation hyperparameters inside anomalib workflows.

The names below are the public ones. Those that need torch are imported when first used: listing plugins stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dsv_anomalib.entries import Entry, FeatureSpace, ImageSpace
from dsv_anomalib.importing import import_anomalib

if TYPE_CHECKING:
    from dsv_anomalib.callback import DSVCallback
    from dsv_anomalib.native import CutPaste
    from dsv_anomalib.post_processing import LabelFreePostProcessor
    from dsv_anomalib.selection import Selected, select
    from dsv_anomalib.trained import load

__all__ = [
    "CutPaste",
    "DSVCallback",
    "Entry",
    "FeatureSpace",
    "ImageSpace",
    "LabelFreePostProcessor",
    "Selected",
    "load",
    "select",
]

_NEED_TORCH = {
    "CutPaste": "dsv_anomalib.native",
    "DSVCallback": "dsv_anomalib.callback",
    "LabelFreePostProcessor": "dsv_anomalib.post_processing",
    "Selected": "dsv_anomalib.selection",
    "load": "dsv_anomalib.trained",
    "select": "dsv_anomalib.selection",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in _NEED_TORCH:
        import_anomalib()
        return getattr(importlib.import_module(_NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
