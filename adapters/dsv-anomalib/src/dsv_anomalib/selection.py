"""Selection in a workflow of anomalib: from a model and a datamodule to a fitted module."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from anomalib.data import AnomalibDataModule
from anomalib.data.utils import TestSplitMode
from anomalib.models.components import AnomalibModule
from lightning.pytorch import Trainer

import dsv_plugins
from dsv_anomalib.data import set_up, test_paths, train_paths
from dsv_anomalib.entries import PREFIX
from dsv_anomalib.models import Model, detector_of, plain_detector
from dsv_anomalib.table import NATIVE
from dsv_anomalib.trained import load
from dsv_anomalib.training import RESERVED
from dsv_plugins import (
    DetectorEncoderPlugin,
    Display,
    InputError,
    Observer,
    Run,
    Space,
    Values,
    When,
    build_registry,
)
from dsv_plugins import select as select_images
from dsv_plugins.calibration import check_promise, check_rate
from dsv_plugins.errors import did_you_mean
from dsv_plugins.types import DETECTOR_PREFIX

__all__ = ["Selected", "select"]

MODEL_PREFIX = "model."
"""Begins the name of an argument of the model in a space."""


class Selected(Run):
    """A finished study whose model is a module of anomalib.

    Args:
        path: The run folder.
        plugins: Plugins that are in no package.
        false_alarms: The share of good images that the module may call anomalous; None for the default.
    """

    def __init__(self, path: Path, plugins: object = (), false_alarms: float | None = None) -> None:
        super().__init__(path, plugins)
        self.false_alarms = false_alarms

    @functools.cached_property
    def model(self) -> AnomalibModule:  # type: ignore[override] # what anomalib's users call a model
        """The fitted module of the choice, or of all candidates as one, ready for `Engine().test`; see `load`.

        Raises:
            InputError: The images kept out cannot promise `false_alarms`.
        """
        return load(self.path, false_alarms=self.false_alarms, plugins=self.plugins)


def select(
    model: Model | Sequence[Model] = dsv_plugins.Study.detector,
    datamodule: AnomalibDataModule | None = None,
    *,
    augmentation: str | Sequence[str] | None = None,
    space: Space | None = None,
    selector: str | Sequence[str] | None = None,
    engine_args: Mapping[str, Any] | None = None,
    detector_params: Mapping[str, Any] | None = None,
    false_alarms: float | None = None,
    unlabelled: Path | str | Sequence[Path | str] | None = None,
    observer: Observer | None = None,
    **study: Any,
) -> Selected:
    """Choose the hyperparameters of a model's augmentation by the unlabelled test images of a datamodule.

    Args:
        model: "patch-fusion", which is the default, or any other detector that `dsv plugins` lists; "cutpaste"; the
            name of a model in the table such as "draem", its class, a function that makes a module of it, or an `Entry`
            for a model of your own. Several as a list: their candidates form one pool.
        datamodule: Its train images are normal, its test images unlabelled: no label of it is read.
        augmentation: Name of an augmentation plugin, or several; by default the model's own.
        space: Values to try of its hyperparameters, in place of those that it suggests; and of any argument of the
            model, as `model.NAME`, or of one of several, as `patchcore.NAME`.
        selector: Name of a selector, or several; the first decides. By default that of `dsv_plugins.Study`.
        engine_args: Arguments of anomalib's Engine, for each training.
        detector_params: Settings of the training: `image_size`, `updates`, `batch_size`, and others that
            `dsv plugins` and the documentation name. Those of one of several models stand below its detector's name.
        false_alarms: The share of good images that the chosen module may call anomalous; 0.05 if None, or the lowest
            rate that the good images kept out of training can promise.
        unlabelled: The images to choose by, in place of the datamodule's test images: a folder, a pattern, a list of
            paths, or a txt or csv file of paths. The datamodule then needs good images only.
        observer: Notified of what happens; by default the progress is shown on the standard error.
        **study: Further settings of `dsv_plugins.Study`, such as `out`, `executor`, `seed` and `search`.

    Raises:
        InputError: The model has nothing to select, or a setting is wrong.
    """
    if false_alarms is not None:
        check_rate("false_alarms", false_alarms)
    models: Sequence[Model] = model if isinstance(model, (list, tuple)) else [model]  # type: ignore[list-item]
    datamodule = _check(models, datamodule, engine_args or {}, study)
    params = dict(detector_params or {})
    if engine_args:
        params["engine_args"] = dict(engine_args)
    found = [detector_of(each) for each in models]
    detectors = [detector for detector, _, _ in found]
    plugins = (*(own_plugins for _, _, own_plugins in found), study.pop("plugins", ()))
    registry = build_registry(plugins)
    made = [registry.create(DetectorEncoderPlugin, name, _params_of(name, detectors, params)) for name in detectors]
    if len(models) == 1 and detectors[0].startswith(PREFIX) and not (made[0].learns_from_augmentation or space):
        raise InputError(
            f"{getattr(model, '__name__', model)} has no augmentation to select; give values of its arguments, as "
            "space={'model.NAME': [...]}, or several models"
        )
    own = {own for (_, own, _), each in zip(found, made, strict=True) if each.learns_from_augmentation}
    if augmentation is None and len(own) > 1:
        raise InputError(
            f"the models have different augmentations of their own ({', '.join(sorted(own))}); give augmentation=…, "
            "which all of them learn from"
        )
    set_up(datamodule)
    if false_alarms is not None:
        check_promise(false_alarms, len(train_paths(datamodule)), study.get("holdout"))
    if unlabelled is None:
        _warn_of_meaningless_tests(datamodule)
        unlabelled = test_paths(datamodule)
    else:
        _warn_of_unused_images(datamodule)
    if selector is not None:
        study["selector"] = selector
    with Display() if observer is None else nullcontext(observer) as watching:
        run = select_images(
            train_paths(datamodule),
            unlabelled,
            augmentation=augmentation or next(iter(own), NATIVE),
            grid=_grid(space or {}, detectors),
            detector=detectors,
            detector_params=params,
            plugins=plugins,
            observer=watching,
            **study,
        )
        if run.findings is not None:
            watching.noted(str(run.findings))
    return Selected(run.path, plugins, false_alarms)


def _grid(space: Space, detectors: Sequence[str]) -> dict[str, Values]:
    """Return the space by the names that its hyperparameters have in a study."""
    found: dict[str, Values] = {}
    for given, values in space.items():
        for name in _settings(given, detectors):
            owner = [name.partition(".")[0]] if len(detectors) > 1 and "." in name else detectors
            found[name] = (
                values.renamed(lambda other, of=owner: _settings(other, of)[0])  # type: ignore[misc]
                if isinstance(values, When) and len(owner) == 1
                else values
            )
    return found


def _params_of(detector: str, detectors: Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one detector, as a study takes them apart."""
    if len(detectors) == 1:
        return dict(params)
    return {**{name: value for name, value in params.items() if name not in detectors}, **params.get(detector, {})}


def _settings(name: str, detectors: Sequence[str]) -> list[str]:
    """Return what a study calls an argument of a model: a setting of its detector, or of each. Others stay as they are.

    Args:
        name: As given in the space: `model.NAME`, or `patchcore.NAME` for one of several.
        detectors: The detectors of the study.
    """
    owner, dot, argument = name.partition(".")
    owners = [each for each in detectors if f"{owner}." == MODEL_PREFIX or owner in (each, each.removeprefix(PREFIX))]
    if not dot or not owners:
        return [name]
    places = {each: "model_params." if each.startswith(PREFIX) else "" for each in owners}
    if len(detectors) == 1:
        return [f"{DETECTOR_PREFIX}{places[owners[0]]}{argument}"]
    return [f"{each}.{places[each]}{argument}" for each in owners]


def _check(
    models: Sequence[Model], datamodule: object, engine_args: Mapping[str, Any], study: Mapping[str, Any]
) -> AnomalibDataModule:
    """Refuse, in one line, what would fail inside anomalib or Lightning, or as an argument of another function.

    Returns:
        The datamodule, if it is one.
    """
    settings = [field.name for field in fields(dsv_plugins.Study)]
    for name in study:
        if name not in settings:
            meant = did_you_mean(name, [*inspect.signature(select).parameters, *settings])
            raise InputError(
                f"select takes no {name}{f' ({meant})' if meant else ''}; arguments of the model are "
                "detector_params={'model_params': …}"
            )
    if not isinstance(datamodule, AnomalibDataModule):
        raise InputError(
            f"the datamodule is a {type(datamodule).__name__}; give one of anomalib.data, such as Folder(name='parts', "
            "root='parts', normal_dir='train/good', …)"
        )
    for model in models if engine_args else ():
        if plain_detector(model) is not None:
            given = getattr(model, "__name__", model)
            raise InputError(f"engine_args are for models that anomalib's Engine trains; {given} is trained without it")
    reserved = [name for name in engine_args if name in RESERVED]
    if reserved:
        raise InputError(
            f"engine_args has {', '.join(reserved)}, which the study sets itself; the length of a training is "
            "detector_params={'updates': …}"
        )
    accepted = inspect.signature(Trainer).parameters
    unknown = [name for name in engine_args if name not in accepted]
    if unknown:
        raise InputError(
            f"engine_args has {unknown[0]}, which Lightning's Trainer does not take; "
            f"{did_you_mean(unknown[0], accepted) or 'its documentation lists what it takes'}"
        )
    return datamodule


def _warn_of_meaningless_tests(datamodule: AnomalibDataModule) -> None:
    """Say so if the test images cannot hold anomalies of their own. Only settings are looked at, not labels."""
    if getattr(datamodule, "test_split_mode", None) == TestSplitMode.SYNTHETIC:
        found = "are good images with synthetic anomalies"
    elif getattr(datamodule, "abnormal_dir", "") is None:
        found = "are good images only, split off from the train images"
    else:
        return
    warnings.warn(
        f"the test images of {datamodule.name} {found}, so that they cannot tell which augmentation suits your "
        "defects; give new images with unlabelled=FOLDER",
        stacklevel=3,
    )


def _warn_of_unused_images(datamodule: AnomalibDataModule) -> None:
    """Say so if the datamodule has set good images aside, as a Folder does by default."""
    splits = all(getattr(datamodule, name, "") is None for name in ("abnormal_dir", "normal_test_dir"))
    unused = len(getattr(datamodule, "test_data", None) or ()) if splits else 0
    if unused:
        warnings.warn(
            f"{datamodule.name} sets {unused} of the good images aside, and nobody uses them; give it "
            'test_split_mode="none"',
            stacklevel=3,
        )
