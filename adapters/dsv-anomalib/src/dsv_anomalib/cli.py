"""The command `dsv-anomalib`: from the config of `anomalib train` to a selected, trained and exported model."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from dsv_anomalib.importing import import_anomalib
from dsv_plugins import DSVError, InputError, report

if TYPE_CHECKING:
    from anomalib.data import AnomalibDataModule

    from dsv_anomalib.selection import Selected

__all__ = ["main"]

COMPONENTS = ("pre_processor", "post_processor", "evaluator", "visualizer")
ENGINE_OPTIONS = ("accelerator", "devices", "strategy", "precision", "num_nodes")
"""The options of a config's trainer that apply to every training of a study: its device, not its length or output."""
IGNORED = ("ckpt_path", "logging", "default_root_dir", "results_path")
"""What else stands in a config of anomalib and has no meaning here."""
CHOSEN = ("augmentation", "augmentation_params", "holdout", "seed")
"""Arguments of our own modules that the study chooses, or sets for all candidates."""
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 the work failed, 2 the call was wrong."""
    parser = _parser()
    arguments = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    try:
        _run(arguments, parser)
    except KeyboardInterrupt:
        print("dsv-anomalib: interrupted; run the same command again to resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        reason = " ".join(str(error).split())
        if isinstance(error, DSVError):
            print(f"dsv-anomalib: {reason}", file=sys.stderr)
            return error.exit_code
        print(f"dsv-anomalib: {type(error).__name__}: {reason}; add --debug to see where", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _parser() -> ArgumentParser:
    from anomalib.data import AnomalibDataModule

    parser = ArgumentParser(
        prog="dsv-anomalib",
        description="Selects the augmentation of a model without labels. Takes the config of `anomalib train`; the "
        "options below may stand in a second one.",
    )
    parser.add_argument("--config", action="config", help="a YAML file; may be given several times")
    parser.add_argument(
        "--model",
        type=str | dict[str, Any],
        default="patch-fusion",
        help="a model's name, or its class_path and init_args",
    )
    parser.add_subclass_arguments(AnomalibDataModule, "data", required=True)
    parser.add_argument("--trainer", type=dict[str, Any], default={}, help="as for anomalib")
    parser.add_argument("--seed_everything", type=Any, default=0, help="fixes every draw")
    for name in IGNORED:
        parser.add_argument(f"--{name}", type=Any, help="ignored: it may stand in a config of anomalib")
    parser.add_argument(
        "--augmentation", type=str | list[str] | None, help="one augmentation, or a list; by default the model's own"
    )
    parser.add_argument(
        "--unlabelled", type=str | None, help="images to choose by, in place of the test images of the data"
    )
    parser.add_argument("--space", type=dict[str, list[Any]], default={}, help="values to try of its hyperparameters")
    parser.add_argument(
        "--selector", type=str | list[str] | None, help="one selector, or a list; by default that of `dsv select`"
    )
    parser.add_argument(
        "--keep", type=str | None, help="choice, or ensemble for all settings as one; by default that of the model"
    )
    parser.add_argument("--updates", type=int | None, help="updates of each training, in place of the trainer's epochs")
    parser.add_argument("--image_size", type=int | None, help="height and width in pixels")
    parser.add_argument("--executor", default="processes", help="where the trainings run")
    parser.add_argument("--workers", type=int | None, help="trainings at once; by default one on each core")
    parser.add_argument("--plugins", type=str, default="", help="files or modules with plugins, as fog.py,my.module")
    parser.add_argument("--out", type=str, default="dsv-anomalib", help="the run folder; the same command resumes it")
    parser.add_argument("--export", type=list[str], default=["torch"], help="formats: torch, onnx, openvino")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _run(arguments: Namespace, parser: ArgumentParser) -> None:
    import_anomalib()
    from anomalib.engine import Engine

    from dsv_anomalib.data import set_up
    from dsv_anomalib.models import plain_detector
    from dsv_anomalib.native import DETECTOR
    from dsv_anomalib.own import OPSET
    from dsv_anomalib.selection import select

    model, params = _model(arguments.model)
    plain = plain_detector(model)
    datamodule: AnomalibDataModule = parser.instantiate_classes(arguments).data
    set_up(datamodule)
    updates = arguments.updates
    if plain is None:
        params = {"model_params": params}
    if plain in (None, DETECTOR):  # others have a budget and batches of their own
        params["batch_size"] = datamodule.train_batch_size
        updates = updates or _updates(arguments.trainer, datamodule)
    for name, value in (("updates", updates), ("image_size", arguments.image_size)):
        if value is not None:
            params[name] = value
    engine_args = {name: arguments.trainer[name] for name in ENGINE_OPTIONS if arguments.trainer.get(name) is not None}
    selected = select(
        model,
        datamodule,
        augmentation=arguments.augmentation,
        space=arguments.space,
        selector=arguments.selector,
        keep=arguments.keep,
        detector_params=params,
        engine_args=engine_args if plain is None else None,
        executor=arguments.executor,
        workers=arguments.workers,
        seed=int(arguments.seed_everything),
        unlabelled=arguments.unlabelled,
        plugins=arguments.plugins,
        out=Path(arguments.out),
    )
    _show(selected)
    for kind in arguments.export:
        size = selected.model.input_size
        path = Engine().export(
            selected.model,
            kind,
            export_root=selected.path / "export",
            input_size=size,
            onnx_kwargs={"opset_version": OPSET},
        )
        print(f"exported: {path}")


def _model(given: object) -> tuple[str, dict[str, Any]]:
    """The model's name and its arguments, without those that the study sets."""
    if isinstance(given, str):
        return given, {}
    if not isinstance(given, Mapping) or "class_path" not in given:
        raise InputError(f"model is {given!r}; give a name such as Draem, or a mapping with class_path and init_args")
    arguments = dict(given.get("init_args") or {})
    for name in COMPONENTS:
        if arguments.pop(name, True) not in (True, False):
            raise InputError(
                f"the model's {name} cannot be set in a config for selection; give --image_size for its size"
            )
    path = str(given["class_path"])
    own = CHOSEN if path.startswith(f"{__package__}.") else ()
    return path, {name: value for name, value in arguments.items() if name not in own and value is not None}


def _updates(trainer: Mapping[str, Any], datamodule: AnomalibDataModule) -> int | None:
    """The updates that the trainer of a config would make; None if it does not say."""
    steps, epochs = trainer.get("max_steps") or -1, trainer.get("max_epochs") or -1
    batches = math.ceil(len(datamodule.train_data) / datamodule.train_batch_size)
    planned = [count for count in (steps, epochs * batches) if count > 0]
    return min(planned, default=None)


def _show(selected: Selected) -> None:
    print(report.table(selected))
    for name, choice in selected.selected.items():
        print(f"{name} chooses {choice.candidate}, loss {choice.loss:.4g}")
    for note in selected.notes:
        print(f"note: {note}")
    print(f"run folder: {selected.path}")
