"""What a user may give as the model to select for, and the detector plugin that stands for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anomalib.models.components import AnomalibModule

from dsv_anomalib.entries import PREFIX, Entry
from dsv_anomalib.native import DETECTOR, CutPaste
from dsv_anomalib.patches import PatchFusion, PatchMemory
from dsv_anomalib.table import ENTRIES, NATIVE, RIVALS, find, plain_detectors
from dsv_plugins import DetectorEncoderPlugin, InputError, hookimpl

__all__ = ["Model", "detector_of", "plain_detector"]

Model = str | type[AnomalibModule] | Entry | Callable[[], AnomalibModule]
"""A name, a class, an entry, or a function that makes a module."""


OWN: Mapping[object, str] = {
    NATIVE: DETECTOR,
    **{
        name: kind.plugin
        for kind in (CutPaste, PatchFusion, PatchMemory)
        for name in (kind, f"{__package__}.{kind.__name__}")
    },
}
"""The detectors that our modules are, by their classes and the paths of these."""


def plain_detector(model: Model) -> str | None:
    """The detector of dsv-plugins, or of another package, that a model is; None for models of anomalib."""
    own = OWN.get(model) if isinstance(model, (str, type)) else None
    return own or (model if isinstance(model, str) and model in plain_detectors() else None)


def detector_of(model: Model) -> tuple[str, str, tuple[object, ...]]:
    """The names of the detector plugin and of its own augmentation, and the plugin itself if no package provides it."""
    if isinstance(model, AnomalibModule):
        kind = type(model).__name__
        raise InputError(
            f"the model is a {kind} that is made already; give the class {kind}, or a function that makes one"
        )
    plain = plain_detector(model)
    if plain is not None:
        return plain, NATIVE, ()
    if isinstance(model, (str, type, Entry)):
        entry = find(model, trained_on_pseudo_anomalies=False)
    else:
        entry = _entry_of(model)
    return (
        f"{PREFIX}{entry.name}",
        entry.default_augmentation,
        () if entry in (*ENTRIES, *RIVALS) else (_Plugin(entry),),
    )


def _entry_of(make: Callable[[], AnomalibModule]) -> Entry:
    """The entry of what a function makes, under a name of its own.

    The name says what is made: a function that was changed since must not be given the run of what it made before.
    """
    made = make()
    if not isinstance(made, AnomalibModule):
        raise InputError(f"{make!r} made a {type(made).__name__}; give a function that makes a module of anomalib")
    known, size = find(type(made)), made.input_size
    shapes = [(name, tuple(parameter.shape)) for name, parameter in made.named_parameters()]
    digest = hashlib.sha256(repr((dict(made.hparams), size, shapes)).encode()).hexdigest()[:8]
    return replace(
        known,
        name=f"{known.name}-{digest}",
        build=_Making(make),
        image_size=size[0] if size else known.image_size,
        backbone=None,  # its weights are here already
        preflight=None,
        weights_off={},
    )


@dataclass(frozen=True)
class _Making:
    """A user's function in the place of a class: its modules are complete, and take no further arguments."""

    make: Callable[[], AnomalibModule]

    def __call__(self, **arguments: Any) -> AnomalibModule:
        return self.make()


@dataclass(frozen=True)
class _Plugin:
    """An entry that no package brings."""

    entry: Entry

    @hookimpl
    def detector_encoder(self) -> DetectorEncoderPlugin:
        return self.entry.record()
