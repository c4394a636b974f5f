"""What the driver of a study hears from workers that it cannot see. Free of torch, so that it opens quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["heard_at", "open_desk"]

ANSWER_SECONDS = 10

Begun = Mapping[int, Sequence[str]]
"""Where each job was begun, once for each attempt."""

Progress = Mapping[int, tuple[str, str]]
"""The name and the content of each job's file of progress, where there is news."""


class Desk:
    """Where workers tell that a job begins, and how far it is."""

    def __init__(self) -> None:
        self._begun: dict[int, list[str]] = {}
        self._progress: dict[int, tuple[str, str]] = {}

    def begin(self, job: int, place: str) -> None:
        """Note that an attempt at a job begins at a place."""
        self._begun.setdefault(job, []).append(place)

    def tell(self, job: int, name: str, content: str) -> None:
        """Note how far a job is."""
        self._progress[job] = (name, content)

    def heard(self) -> tuple[Begun, Progress]:
        """Every attempt so far, and the progress since this was asked before."""
        progress, self._progress = self._progress, {}
        return self._begun, progress


def open_desk() -> Any:
    """A desk on the driver's own node, where the death of another does not reach it; it closes with its last handle."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()


def heard_at(desk: Any) -> tuple[Begun, Progress]:
    """What the desk has heard; nothing where it does not answer, which no study should end for."""
    try:
        return ray.get(desk.heard.remote(), timeout=ANSWER_SECONDS)  # type: ignore[no-any-return]
    except (GetTimeoutError, RayActorError):
        return {}, {}
