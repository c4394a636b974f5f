"""What the selectors of a study make of its candidates, and how clear that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dsv_plugins.bootstrap import win_shares
from dsv_plugins.errors import DSVError, PluginError, described, reason_of
from dsv_plugins.records import SelectorPlugin
from dsv_plugins.registry import Registry
from dsv_plugins.selection import choose
from dsv_plugins.study import Study
from dsv_plugins.types import Evaluation

__all__ = ["Judgement"]


class Judgement:
    """Lets the selectors judge. One that fails is left out with a note, unless it is the one that decides.

    Args:
        study: Which selectors.
        registry: Where they are found.
        note: Told what the user should know.
    """

    def __init__(self, study: Study, registry: Registry, note: Callable[[str], None]) -> None:
        self._study = study
        self._registry = registry
        self._note = note

    def losses(self, evaluations: Sequence[Evaluation]) -> dict[str, list[float]]:
        """The losses of every selector that can judge these candidates; the first must."""
        losses = {}
        for name in self._study.selectors:
            selector = self._registry.create(SelectorPlugin, name)
            label = f"selector {name!r} ({self._registry.provider(SelectorPlugin, name)})"
            try:
                values = [float(loss) for loss in selector.losses(evaluations)]
                if len(values) != len(evaluations):
                    raise PluginError(f"{label} gave {len(values)} losses for {len(evaluations)} candidates")
                choose(values)
            except Exception as error:
                reason = str(error) if isinstance(error, DSVError) else f"{label} failed: {described(error)}"
                if name == self._study.selectors[0]:
                    raise PluginError(reason) from error
                self._note(f"no choice by {name!r}: {reason}")
                continue
            losses[name] = values
            unusable = [
                str(e.candidate) for e, loss in zip(evaluations, values, strict=True) if not math.isfinite(loss)
            ]
            if unusable:
                self._note(f"{name!r} has no finite loss for {', '.join(unusable)}; they rank last")
        return losses

    def confidence(self, evaluations: Sequence[Evaluation], names: Sequence[str]) -> dict[str, dict[str, float]]:
        """How often each candidate would win on other test images, by each selector that can judge resampled ones."""
        confidence = {}
        for name in names if self._study.confidence else ():
            selector = self._registry.create(SelectorPlugin, name)
            alone = self._registry.get(SelectorPlugin, name).judges_alone
            try:
                shares = win_shares(selector, evaluations, seed=self._study.seed, judges_alone=alone)
            except Exception as error:  # a plugin's loss may refuse a resample; its choice stands
                self._note(f"how clear the choice by {name!r} is cannot be told: {reason_of(error)}")
                continue
            confidence[name] = {e.candidate.id: share for e, share in zip(evaluations, shares, strict=True)}
        return confidence
