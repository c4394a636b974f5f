"""The study: from two sets of images to a selected, trained detector."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.study.check import check_detectors, check_names, make_executor
from dsv_plugins.study.finished import finished_result
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.study.warm_up import preparation

if TYPE_CHECKING:  # torch comes with these
    from dsv_plugins.data.sources import Source
    from dsv_plugins.run.run import Run

__all__ = ["Study", "select"]


@dataclass(frozen=True)
class Study(StudySettings):
    """Which augmentation hyperparameters suit these images? The settings are those of `StudySettings`."""

    def run(self, observer: Observer | None = None, *, command: str = "") -> Run:
        """Train what is not trained yet, and select.

        Args:
            observer: Notified of what happens, beside the observer plugins that the study names.
            command: The command line that asked for it, which the report shows.

        Raises:
            InputError: A setting or a file is wrong.
            StoreError: The run folder cannot be used; what was finished is kept.
            TrainingError: Every candidate failed.
        """
        registry = build_registry(self.plugins)
        check_names(self, registry)
        check_detectors(self, registry)
        executor = make_executor(self, registry)
        observer = observer or Observer()
        finished = finished_result(self, registry, observer, command=command)
        if finished is not None:
            return finished
        is_finished = RunFolder(self.folder()).selection.exists()
        with nullcontext() if is_finished else executor.warmed_up(preparation(self, registry)):
            # Imported here because torch takes seconds, which the workers should not wait for.
            from dsv_plugins.study.plan import plan_study
            from dsv_plugins.study.workflow import run_study

            return run_study(plan_study(self, registry), executor, observer, command=command)


def select(train: Source, test: Source | None = None, *, observer: Observer | None = None, **settings: Any) -> Run:
    """Run a study in one call; the settings are those of `StudySettings`."""
    return Study(train, test, **settings).run(observer)
