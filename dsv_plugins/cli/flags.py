"""The flags of a command that trains, made from the settings of a study.

jsonargparse can make flags of a class by itself, but then a flag that was not given has its default, so that a preset
or a configuration file cannot tell what the user chose.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli.config import ConfigFile, WrongValueError
from dsv_plugins.plugins.records import AugmentationPlugin, DetectorEncoderPlugin
from dsv_plugins.plugins.registry import Registry, build_registry
from dsv_plugins.plugins.spaces import Range, Space, Values
from dsv_plugins.study.settings import StudySettings

__all__ = ["add_study_flags", "study_settings"]

SHORTCUTS: Mapping[str, tuple[str, type, str]] = {
    "preset": ("detector_params", str, "a preset of the detector: paper is the protocol of the paper"),
    "updates": ("detector_params", int, "training updates of each candidate; the shared ones grow with them"),
    "image_size": ("detector_params", int, "height and width in pixels"),
    "trials": ("search_params", int, "how many candidates to try, for searches that propose them"),
}
"""Settings of plugins that have a flag of their own: where they belong, their type and their help."""


def add_study_flags(parser: ArgumentParser, *, leave_out: Collection[str] = ()) -> None:
    """Declare a flag for every setting of a study, in groups, with the help of `StudySettings`.

    Args:
        parser: The command's parser.
        leave_out: Settings that the command decides by itself.
    """
    parser.add_argument("--config", action=ConfigFile, help="a YAML file with any of these options")
    hints = typing.get_type_hints(StudySettings, localns={"Source": object})
    help_texts = {
        param.arg_name: " ".join((param.description or "").split())
        for param in docstring_parser.parse(StudySettings.__doc__ or "").params
    }
    groups: dict[str, Any] = {}
    for setting in _flagged(leave_out):
        group = setting.metadata["group"]
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        target = groups[group]
        _add(target, setting, hints[setting.name], _lowered(help_texts[setting.name]))
        for name, (owner, kind, text) in SHORTCUTS.items():
            if owner == setting.name:
                target.add_argument(_flag(name), type=kind, help=text)


def study_settings(arguments: Namespace, *, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of a study that the user gave; a study has defaults for the others.

    A preset of another detector than the default one brings that detector, and the settings that go with the preset:
    `--preset paper` is the paper's whole protocol.
    """
    names = [setting.name for setting in _flagged(leave_out)]
    settings = {name: arguments[name] for name in names if arguments[name] is not None}
    for name, (owner, _, _) in SHORTCUTS.items():
        if owner in names and arguments[name] is not None:
            settings[owner] = {**settings.get(owner, {}), name: arguments[name]}
    if arguments.preset is not None:
        registry = build_registry(arguments.plugins or ())
        implied = _implied_by(arguments.preset, settings.get("detector"), registry)
        if not _fits(implied.get("grid", {}), settings.get("augmentation"), registry):
            del implied["grid"]
        settings = {**{name: value for name, value in implied.items() if name in names}, **settings}
    return settings


def _implied_by(preset: str, detector: str | None, registry: Registry) -> dict[str, Any]:
    """Return the settings that go with a preset, and the detector that has it if none is given."""
    others = [] if detector else [record.name for record in registry.of_kind(DetectorEncoderPlugin)]
    for name in (detector or str(StudySettings.detector), *others):
        for each in registry.named(name, DetectorEncoderPlugin.kind):
            if isinstance(each.record, DetectorEncoderPlugin) and preset in each.record.presets:
                return {"detector": name, **each.record.presets[preset]}
    return {}


def _fits(grid: Space, augmentation: str | None, registry: Registry) -> bool:
    """Return whether the augmentations have these hyperparameters; those of other packages may have others."""
    names = (augmentation or str(StudySettings.augmentation)).split(",")
    found = [each for name in names for each in registry.named(name, AugmentationPlugin.kind)]
    return all(set(grid) <= set(each.record.space) for each in found)


def _flagged(leave_out: Collection[str]) -> list[Field[Any]]:
    return [each for each in fields(StudySettings) if "group" in each.metadata and each.name not in leave_out]


def _add(target: Any, setting: Field[Any], hint: Any, text: str) -> None:
    flag = _flag(setting.name)
    if hint is bool:
        target.add_argument(flag, action="store_true", default=None, help=text)
        return
    if hint == Space:
        text = "values to try, as 'name=1,2,3 other=0:1 third=1:9:log', in place of those that the plugin suggests"
    if setting.default not in (MISSING, None, "", ()):
        text += f" (default: {setting.default})"
    target.add_argument(flag, type=_parser_of(hint), help=text)


def _parser_of(hint: Any) -> Any:
    """Return what reads a flag's text: names come as a,b,c, which a study splits by itself."""
    if hint == Space:
        return _space
    if typing.get_origin(hint) is Mapping:
        return _mapping
    if hint in (str, int, float):
        return hint
    if hint is Any:  # plugins, which only Python can give as objects
        return str
    plain = [each for each in typing.get_args(hint) if each in (str, int, float)]
    return plain[0]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}".rstrip(".")


def _mapping(value: object) -> dict[str, Any]:
    """Settings by their names, as YAML."""
    try:
        read = yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        read = None
    if not isinstance(read, Mapping):
        raise WrongValueError(f"{value!r} is no mapping of settings, as in '{{width: 16}}'")
    return dict(read)


def _space(value: object) -> dict[str, Values]:
    """The values of each hyperparameter: a mapping in a YAML file, `name=1,2,3` or `name=1:9` on the command line."""
    if isinstance(value, Mapping):
        return {str(name): _axis(name, values) for name, values in value.items()}
    axes = {}
    for axis in str(value).split():
        name, equals, values = axis.partition("=")
        if not equals or not values:
            raise WrongValueError(f"{axis!r} is not of the form name=value,value, as in patch_size=0.02,0.08")
        axes[name] = _axis(name, values)
    return axes


def _axis(name: object, values: object) -> Values:
    if isinstance(values, Range):  # a configuration that was read already
        return values
    if not isinstance(values, str):
        if isinstance(values, Sequence):
            return list(values)
        raise WrongValueError(f"the values of {name} are {values!r}; give a list, or a range such as 0.001:0.64:log")
    if ":" not in values:
        return [_plain(value) for value in values.split(",")]
    low, high, *scale = values.split(":")
    try:
        log = {(): False, ("log",): True}[tuple(scale)]
        return Range(float(low), float(high), log=log)
    except (KeyError, ValueError):
        raise WrongValueError(
            f"{values!r} is not of the form low:high or low:high:log, as in patch_size=0.001:0.64:log"
        ) from None


def _plain(value: str) -> object:
    """Return a number if it reads as one, else text."""
    try:
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    except ValueError:
        return value
