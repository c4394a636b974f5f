"""The Random baseline: one training whose hyperparameters are redrawn for every image."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real

from dsv_plugins.bench.methods import MAIN
from dsv_plugins.errors import InputError
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.study.plan import plan_study
from dsv_plugins.study.study import Study
from dsv_plugins.types import DETECTOR_PREFIX

__all__ = ["random_study"]


def random_study(study: Study, registry: Registry) -> Study:
    """A study of one candidate whose hyperparameters are ranges over the grid, from which every image draws.

    Raises:
        DSVError: The augmentation has hyperparameters without a range, or does not take ranges; or none is used.
    """
    plan = plan_study(study, registry)
    if not plan.learns_from_augmentation:
        raise InputError(f"{', '.join(plan.detectors)} learns without augmentations, so there is nothing to draw")
    if len(plan.detectors) > 1:
        raise InputError("the detector cannot be another for every image")
    points = [candidate.params for candidate in plan.candidates()]
    ranges: dict[str, list[object]] = {}
    for name in points[0]:
        values = [point[name] for point in points]
        if len({str(value) for value in values}) == 1:
            ranges[name] = values[:1]
            continue
        if name.startswith(DETECTOR_PREFIX):
            raise InputError(f"{name} is of the detector, which cannot be another for every image")
        numbers = [value for value in values if isinstance(value, Real)]
        if len(numbers) < len(values):
            raise InputError(f"{name} has values that are not numbers, so there is no range to draw it from")
        ranges[name] = [[float(min(numbers)), float(max(numbers))]]
    out = study.folder().with_name(f"{study.folder().name}-random")
    random = replace(study, grid=ranges, selector=MAIN, out=out)
    plan_study(random, registry)  # refuses an augmentation that takes no ranges
    return random
