"""Label-free selection of augmentation hyperparameters inside anomalib workflows.

The names below are the public ones. Those that need torch are imported when first used: listing plugins stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dsv_anomalib.entries import Entry, FeatureSpace, ImageSpace
from dsv_anomalib.importing import add_backbones_to_timm, import_anomalib

if TYPE_CHECKING:
    from dsv_anomalib.native import CutPaste
    from dsv_anomalib.patches import PatchFusion, PatchMemory
    from dsv_anomalib.post_processing import LabelFreePostProcessor
    from dsv_anomalib.selection import Selected, select
    from dsv_anomalib.trained import load

__all__ = [
    "CutPaste",
    "Entry",
    "FeatureSpace",
    "ImageSpace",
    "LabelFreePostProcessor",
    "PatchFusion",
    "PatchMemory",
    "Selected",
    "load",
    "select",
]

_NEED_TORCH = {
    "CutPaste": "dsv_anomalib.native",
    "LabelFreePostProcessor": "dsv_anomalib.post_processing",
    "PatchFusion": "dsv_anomalib.patches",
    "PatchMemory": "dsv_anomalib.patches",
    "Selected": "dsv_anomalib.selection",
    "load": "dsv_anomalib.trained",
    "select": "dsv_anomalib.selection",
}


add_backbones_to_timm()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in _NEED_TORCH:
        import_anomalib()
        return getattr(importlib.import_module(_NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
