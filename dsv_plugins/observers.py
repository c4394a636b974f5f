"""Who wants to know how a study goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsv_plugins.types import Candidate

__all__ = ["Observer"]


class Observer:
    """Told what happens in a study. Derive from it and override what is of interest; the rest does nothing."""

    def decoding(self, images: str, done: int, planned: int) -> None:
        """So many of the train, test or holdout images have been read."""

    def dispatching(self, run: Path, candidates: Sequence[Candidate], updates: int | None) -> None:
        """These candidates are about to be trained, up to so many updates; the others of this round are stored."""

    def finished(self, candidate: Candidate, seconds: float) -> None:
        """A candidate is trained, evaluated and stored."""

    def failed(self, candidate: Candidate, reason: str) -> None:
        """A candidate failed, and is left out."""

    def noted(self, message: str) -> None:
        """Something that the user should know, in one line."""
