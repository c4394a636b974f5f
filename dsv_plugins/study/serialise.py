"""A result as plain JSON: for a command's `--json`, and for the run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv_plugins.study.result import CandidateResult, Result

__all__ = ["as_json", "as_selection", "finite", "finite_or_none"]


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def finite(content: Any) -> Any:
    """Plain JSON content with null for every number that is not finite."""
    if isinstance(content, Mapping):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return finite_or_none(content) if isinstance(content, float) else content


def as_json(result: Result) -> dict[str, Any]:
    """The result as one JSON object; a loss that is not finite is null."""
    content = {
        "run": str(result.run),
        "selected": {
            name: {
                "augmentation": choice.candidate.augmentation,
                "params": dict(choice.candidate.params),
                "loss": choice.loss,
            }
            for name, choice in result.selected.items()
        },
        "candidates": [
            {
                **_identified(entry),
                "losses": dict(entry.losses or {}),
                "seconds": entry.seconds,
                "training_accuracy": entry.health.training_accuracy if entry.health else None,
                "concentration": entry.health.concentration if entry.health else None,
            }
            for entry in result.candidates
        ],
        "confidence": {name: dict(shares) for name, shares in result.confidence.items()},
        "kept": dict(result.shares),
        "updates_spent": result.updates_spent,
        "findings": None if result.findings is None else asdict(result.findings),
        "notes": list(result.notes),
    }
    return finite(content)  # type: ignore[no-any-return]


def as_selection(result: Result) -> dict[str, Any]:
    """What `selection.json` keeps: nothing that differs between two runs of one study, such as times."""
    content = {
        "candidates": [_identified(entry) for entry in result.candidates],
        "selected": {name: {"id": made.candidate.id, "loss": made.loss} for name, made in result.selected.items()},
        "losses": {entry.candidate.id: dict(entry.losses or {}) for entry in result.candidates},
        "confidence": {name: dict(shares) for name, shares in result.confidence.items()},
        "kept": dict(result.shares),
        "findings": None if result.findings is None else asdict(result.findings),
        "warnings": list(result.warnings),
    }
    return finite(content)  # type: ignore[no-any-return]


def _identified(entry: CandidateResult) -> dict[str, Any]:
    return {
        "id": entry.candidate.id,
        "augmentation": entry.candidate.augmentation,
        "params": dict(entry.candidate.params),
        "status": entry.status,
        "reason": entry.reason,
        "updates": entry.updates,
    }
