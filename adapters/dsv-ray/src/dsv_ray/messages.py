"""Messages from Ray workers to the driver of a study. Free of torch, so that the mailbox opens quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["open_mailbox", "read_messages"]

ANSWER_SECONDS = 10

Begun = Mapping[int, Sequence[str]]
"""Where each job was begun, once for each attempt."""

Progress = Mapping[int, tuple[str, str]]
"""The name and the content of each job's progress file, if it has changed."""


class Mailbox:
    """Where workers report that a job begins, and how far it is."""

    def __init__(self) -> None:
        self._begun: dict[int, list[str]] = {}
        self._progress: dict[int, tuple[str, str]] = {}

    def begin(self, job: int, place: str) -> None:
        """Note that an attempt at a job begins at a place."""
        self._begun.setdefault(job, []).append(place)

    def report(self, job: int, name: str, content: str) -> None:
        """Note how far a job is."""
        self._progress[job] = (name, content)

    def messages(self) -> tuple[Begun, Progress]:
        """Every attempt so far, and the progress since the last call."""
        progress, self._progress = self._progress, {}
        return self._begun, progress


def open_mailbox() -> Any:
    """A mailbox on the driver's own node, which survives the death of others; it closes with its last handle."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()


def read_messages(mailbox: Any) -> tuple[Begun, Progress]:
    """The messages in a mailbox; none if it does not answer, which no study should end for."""
    try:
        return ray.get(mailbox.messages.remote(), timeout=ANSWER_SECONDS)  # type: ignore[no-any-return]
    except (GetTimeoutError, RayActorError):
        return {}, {}
