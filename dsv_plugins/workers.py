"""Workers that are up before there is work: what a training imports takes seconds, as does what comes before it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from dsv_plugins.interfaces import Executor
from dsv_plugins.records import DetectorEncoderPlugin
from dsv_plugins.registry import build_registry
from dsv_plugins.store import RunFolder

if TYPE_CHECKING:
    from dsv_plugins.study import Study

__all__ = ["prepare_worker", "warmed_up"]


def warmed_up(executor: Executor, study: Study) -> AbstractContextManager[None]:
    """Let an executor start its workers, if it does that early; a run that has a selection has nothing to train."""
    warm_up = getattr(executor, "warmed_up", None)
    if warm_up is None or RunFolder(study.folder()).selection.exists():
        return nullcontext()
    context: AbstractContextManager[None] = warm_up(
        functools.partial(prepare_worker, study.detector, dict(study.detector_params), study.plugins)
    )
    return context


def prepare_worker(detector: str, detector_params: Mapping[str, object], plugins: tuple[object, ...]) -> None:
    """Import what the trainings of a study need, before there is one."""
    made = build_registry(plugins).create(DetectorEncoderPlugin, detector, detector_params)
    getattr(made, "warm_up", lambda: None)()
