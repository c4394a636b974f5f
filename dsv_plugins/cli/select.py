"""Select the augmentation for a folder of good images and a folder of unlabelled ones, and train its detector."""

from __future__ import annotations

import shlex
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.markup import escape

from dsv_plugins.cli.report import write_report
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.errors import InputError
from dsv_plugins.spaces import Range, Values

if TYPE_CHECKING:
    from dsv_plugins.result import Result
    from dsv_plugins.study import Study

__all__ = [
    "add_arguments",
    "add_study_arguments",
    "add_training_arguments",
    "conduct",
    "listed",
    "run",
    "show",
    "study_settings",
    "training_settings",
]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("folder", nargs="?", type=str, help="a task in MVTec layout: train/good, and test/* unlabelled")
    parser.add_argument("--train", type=str, help="folder of good images, in place of FOLDER")
    parser.add_argument("--test", type=str, help="folder of unlabelled images, in place of FOLDER")
    add_study_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and an estimate of the time, and stop")


def add_study_arguments(parser: ArgumentParser) -> None:
    """Declare the options of a study."""
    parser.add_argument("--augmentation", default="cutpaste", help="one augmentation, or several as a,b,c")
    add_training_arguments(parser)
    parser.add_argument(
        "--selector",
        default="dsv",
        help="one selector, or several as a,b,c; the first one decides. cosine,dsv where several augmentations compete "
        "or the test images have another light",
    )
    parser.add_argument("--search", default="grid", help="which candidates are trained, and how far: grid, halving, …")
    parser.add_argument("--trials", type=int, help="how many candidates to try, for searches that propose them")
    parser.add_argument("--search-params", type=dict, default={}, help="settings of the search, as '{storage: …}'")
    parser.add_argument("--rungs", type=int, default=3, help="in how many parts the budget is spent, unless by grid")
    parser.add_argument("--factor", type=float, default=3.0, help="by how much the budget grows from part to part")
    parser.add_argument("--seed", type=int, default=0, help="fixes every draw")
    parser.add_argument("--skip-bad", action="store_true", help="go on without files that cannot be used")
    parser.add_argument("--out", type=str, help="the run folder, or its address, as s3://…; the same command goes on")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def add_training_arguments(parser: ArgumentParser) -> None:
    """Declare the options of every command that trains: on what grid, which detector, and where."""
    parser.add_argument("--config", action="config", help="a YAML file with any of these options")
    parser.add_argument("--grid", type=_grid, default={}, help="values to try, as 'name=1,2,3 other=0:1 third=1:9:log'")
    parser.add_argument("--detector", default="cutpaste-resnet18", help="the detector to train")
    parser.add_argument("--preset", type=str, help="the detector's preset, such as quick or paper")
    parser.add_argument(
        "--updates",
        type=int,
        help="training updates for each candidate; a shared start of the detector grows with them",
    )
    parser.add_argument("--image-size", type=int, help="height and width in pixels")
    parser.add_argument("--detector-params", type=dict, default={}, help="further settings, as '{width: 16}'")
    parser.add_argument("--holdout", type=float, default=0.0, help="share of the good images to keep out of training")
    parser.add_argument("--executor", default="processes", help="where the trainings run")
    parser.add_argument("--executor-params", type=dict, default={}, help="settings of the executor, as '{num_gpus: 1}'")
    parser.add_argument("--ray-address", type=str, help="the cluster of --executor ray; by default a Ray of its own")
    parser.add_argument("--observers", default="", help="observer plugins to tell what happens, as a,b,c")
    parser.add_argument("--workers", type=int, help="trainings at once; by default one on each core")
    parser.add_argument("--threads", type=int, default=1, help="threads of each training")


def run(arguments: Namespace) -> int:
    """Run the study, or show its plan."""
    from dsv_plugins.study import Study

    train, test = _folders(arguments)
    study = Study(train, test, **study_settings(arguments))
    if arguments.dry_run:
        from dsv_plugins.cli.plan import show_plan

        show_plan(study, as_json=arguments.json)
    else:
        result = conduct(study, as_json=arguments.json)
        show(result, as_json=arguments.json, report=write_report(result.run))
    return 0


def conduct(study: Study, *, as_json: bool) -> Result:
    """Run a study with a display on the terminal; interrupted, it says how to go on."""
    from dsv_plugins.cli.display import Display

    console = Console(stderr=as_json)
    try:
        with Display(console) as display:
            return study.run(display)
    except KeyboardInterrupt:
        if study.folder().exists():
            console.print(
                f"what is finished is kept in {escape(str(study.folder()))}, and the same command goes on from there",
                soft_wrap=True,
                highlight=False,
            )
        raise


def show(result: Result, *, as_json: bool, report: Path | None, aucs: Mapping[str, float] | None = None) -> None:
    """Print what a study found, with the candidates' AUCs where these are known."""
    from dsv_plugins.tables import candidates_table

    terminal = Terminal()
    if as_json:
        terminal.print_json_object({**result.as_json(), "report": str(report) if report else None})
        return
    terminal.print(candidates_table(result, width=terminal.width, aucs=aucs))
    if any(entry.status == "finished" and not entry.concentrated for entry in result.candidates):
        terminal.print("! conc. (concentration): the normal images are not as close together as DSV presumes")
    for name, choice in result.selected.items():
        terminal.print(literal(f"{name} chooses {choice.candidate}, loss {choice.loss:.4g}"), soft_wrap=True)
    terminal.print(literal(f"run folder: {result.run}"), soft_wrap=True)
    if report is not None:
        terminal.print(literal(f"report: {report}"), soft_wrap=True)
    command = f"dsv score {shlex.quote(str(result.run))} FOLDER_OR_FILES"
    terminal.print(literal(f"score new images with: {command}"), soft_wrap=True)


def study_settings(arguments: Namespace) -> dict[str, Any]:
    """The settings of a `Study`, from the options."""
    from dsv_plugins.search import Rungs

    return {
        **training_settings(arguments),
        "augmentation": listed(arguments.augmentation),
        "selector": listed(arguments.selector),
        "search": arguments.search,
        "search_params": _with(arguments.search_params, trials=arguments.trials),
        "rungs": Rungs(arguments.rungs, arguments.factor),
        "seed": arguments.seed,
        "skip_bad": arguments.skip_bad,
        "out": arguments.out or None,
    }


def training_settings(arguments: Namespace) -> dict[str, Any]:
    """Those of them that `add_training_arguments` declares."""
    return {
        "grid": arguments.grid,
        "detector": arguments.detector,
        "detector_params": _with(
            arguments.detector_params,
            preset=arguments.preset,
            updates=arguments.updates,
            image_size=arguments.image_size,
        ),
        "holdout": arguments.holdout,
        "executor": arguments.executor,
        "executor_params": _with(arguments.executor_params, address=arguments.ray_address),
        "observers": listed(arguments.observers),
        "workers": arguments.workers,
        "threads": arguments.threads,
    }


def listed(names: str) -> list[str]:
    """The names in an option of the form a,b,c."""
    return [name.strip() for name in names.split(",") if name.strip()]


def _folders(arguments: Namespace) -> tuple[Path, Path]:
    from dsv_plugins.images import split_folder

    if arguments.folder and (arguments.train or arguments.test):
        raise InputError("give either FOLDER or --train and --test, not both")
    if arguments.folder:
        return split_folder(Path(arguments.folder))
    if not (arguments.train and arguments.test):
        raise InputError("give the FOLDER of a task, or --train with good images and --test with unlabelled ones")
    return Path(arguments.train), Path(arguments.test)


def _with(params: Mapping[str, object], **options: object) -> dict[str, object]:
    """A plugin's settings, with those that have an option of their own."""
    return {**params, **{name: value for name, value in options.items() if value is not None}}


def _grid(value: object) -> dict[str, Values]:
    """The values of each hyperparameter: a mapping in a YAML file, `name=1,2,3` or `name=1:9` on the command line."""
    if isinstance(value, Mapping):
        return {str(name): _axis(name, values) for name, values in value.items()}
    axes = {}
    for axis in str(value).split():
        name, equals, values = axis.partition("=")
        if not equals or not values:
            raise ArgumentTypeError(f"{axis!r} is not of the form name=value,value, as in patch_size=0.02,0.08")
        axes[name] = _axis(name, values)
    return axes


def _axis(name: object, values: object) -> Values:
    if isinstance(values, Range):  # a configuration that was read already
        return values
    if not isinstance(values, str):
        if isinstance(values, Sequence):
            return list(values)
        raise ArgumentTypeError(f"the values of {name} are {values!r}; give a list, or a range such as 0.001:0.64:log")
    if ":" not in values:
        return [_plain(value) for value in values.split(",")]
    low, high, *scale = values.split(":")
    try:
        return Range(float(low), float(high), log={(): False, ("log",): True}[tuple(scale)])
    except (KeyError, ValueError):
        raise ArgumentTypeError(
            f"{values!r} is not of the form low:high or low:high:log, as in patch_size=0.001:0.64:log"
        ) from None


def _plain(value: str) -> object:
    """A number where it reads as one, and text where it does not."""
    try:
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    except ValueError:
        return value
