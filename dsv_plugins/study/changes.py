"""Why candidates are trained again: what has changed since they were trained before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dsv_plugins.errors import StoreError
from dsv_plugins.run.artifacts import EvaluationFolder
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.types import Candidate

__all__ = ["why_again"]


def why_again(missing: Sequence[Candidate], folder: RunFolder) -> list[str]:
    """A line for each reason for which candidates that were trained before do not count any more.

    Args:
        missing: The candidates that are about to be trained.
        folder: The run folder, which still has the earlier trainings.
    """
    before = _stored(folder) if missing else {}
    reasons = Counter(
        "; ".join(_differences(candidate, before[key])) for candidate in missing if (key := _key(candidate)) in before
    )
    return [f"{count} of {len(missing)} trained before, trained again: {reason}" for reason, count in reasons.items()]


def _stored(folder: RunFolder) -> dict[str, Mapping[str, Any]]:
    """The contexts of the trainings that the folder has; the latest one if a candidate was trained more than once."""
    found: dict[str, Mapping[str, Any]] = {}
    trained = folder.candidates.glob("[!.]*") if folder.candidates.is_dir() else ()
    for path in sorted(trained, key=lambda path: path.stat().st_mtime):
        try:
            candidate = Candidate(**EvaluationFolder(path).record()["candidate"])
        except (StoreError, LookupError, TypeError):  # a damaged one tells nothing
            continue
        found[_key(candidate)] = candidate.context
    return found


def _key(candidate: Candidate) -> str:
    """What a user calls the same candidate."""
    settings = (candidate.augmentation, candidate.params, candidate.detector, candidate.detector_params, candidate.seed)
    return json.dumps(settings, sort_keys=True, default=str)


def _differences(candidate: Candidate, before: Mapping[str, Any]) -> list[str]:
    now = candidate.context
    changed = [name for name in now if now[name] != before.get(name)]
    return [_told(name, getattr(candidate, name, ""), str(before.get(name)), now[name]) for name in changed]


def _told(what: str, plugin: str, before: str, now: str) -> str:
    if what == "data":
        return "the images have changed"
    provider = before.partition(" [")[0]
    if plugin and provider == now.partition(" [")[0]:
        return f"the code of the {what} {plugin} ({provider}) has changed"
    return f"{what} {plugin}".rstrip() + f" was {before} and is {now}"
