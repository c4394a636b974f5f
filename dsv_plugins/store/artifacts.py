"""What a run folder holds, file by file: how each is written, and how it is read again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dsv_plugins.errors import InputError, StoreError, shown
from dsv_plugins.store.folder import FORMAT, MANIFEST, RunFolder, finished_folder, json_text, read_json
from dsv_plugins.store.trust import (
    RESTORE,
    check_seal,
    read_sealed,
    sound,
    trusted_file,
    trusted_file_if_any,
    verify,
    write_sealed,
)
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EvaluationFolder",
    "FinishedRecord",
    "ImageIndex",
    "ModelRecord",
    "claim",
    "load_held_out",
    "load_model_record",
    "read_aucs",
    "read_finished",
    "read_image_index",
    "read_selection",
    "read_study",
    "recalibrate_model",
    "save_model",
    "write_aucs",
    "write_finished",
    "write_image_index",
    "write_selection",
]

Array = NDArray[Any]

EVALUATION_RECORD, EVALUATION_ARRAYS = "evaluation.json", "evaluation.safetensors"
PREVIEW, HEATMAPS, PROJECTION = "preview.npy", "heatmaps.npy", "projection.npy"
DETECTOR = "detector"
IMAGE_INDEX = "images.json"
MODEL_RECORD, HELD_OUT = "model.json", "held-out-scores.npy"
VERSIONED = ("dsv-plugins", "torch", "torchvision", "lightning")
SETS = ("train", "augmented", "test", "holdout")


# ---------------------------------------------------------------------------
# study.json: what the run folder is for
# ---------------------------------------------------------------------------


def claim(run: RunFolder, identity: Mapping[str, Any]) -> bool:
    """Write what the run folder is for, or check that it is for this study; returns whether it was there before.

    Raises:
        InputError: The folder belongs to another study.
        StoreError: Another version wrote it.
    """
    if not run.study.exists():
        versions = {name: metadata.version(name) for name in VERSIONED}
        write_sealed(run.study, {"format": FORMAT, "identity": identity, "versions": versions})
        return False
    for name, value in read_study(run)["identity"].items():
        if identity.get(name) != value:
            raise InputError(
                f"{run.path} belongs to a study whose {name} is {value}, not {identity.get(name)}; give another --out"
            )
    return True


def read_study(run: RunFolder) -> Mapping[str, Any]:
    """The content of `study.json`: format, identity and versions.

    Raises:
        StoreError: Another version wrote it, or it is damaged.
    """
    try:
        content = read_json(run.study)
        if content.get("format") == FORMAT:
            return check_seal(run.study, content)
    except StoreError as error:
        raise StoreError(
            f"{error}; remove it and run the same `dsv select` again, which keeps what is finished"
        ) from error
    raise StoreError(
        f"{run.path} has the format {shown(content.get('format'))}, and this version reads {FORMAT}; "
        "run the same `dsv select` with another --out"
    )


# ---------------------------------------------------------------------------
# data/: the images
# ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImageIndex:
    """What `data/images.json` says of the arrays beside it.

    Attributes:
        fingerprint: A hash of the images, their order and their size.
        files: The file of each image of each set, in the order of the arrays.
        bad: The files that were left out, each with the reason.
    """

    fingerprint: str
    files: Mapping[str, Sequence[str]]
    bad: Sequence[tuple[str, str]] = ()


def images_file(folder: Path, name: str) -> Path:
    """Where the pixels of a set of images are, as one array."""
    return folder / f"{name}.npy"


def open_images(folder: Path, name: str) -> Array:
    """The pixels of a set of images, memory-mapped, once their checksum is found to be right."""
    return _mapped(trusted_file(folder, images_file(folder, name).name), "r")


def open_checked_images(folder: Path, name: str) -> Array:
    """The same for those who know that the folder is sound. Who writes to the array changes their own copy only."""
    return _mapped(images_file(folder, name), "c")


def write_image_index(folder: Path, index: ImageIndex) -> None:
    """Write `images.json`."""
    (folder / IMAGE_INDEX).write_text(json_text(asdict(index)))


def has_image_index(folder: Path) -> bool:
    """Whether images have been prepared here."""
    return (folder / IMAGE_INDEX).exists()


def read_image_index(folder: Path) -> ImageIndex:
    """Read `images.json`."""
    file = trusted_file(folder, IMAGE_INDEX)
    content = read_json(file)
    with sound(file):
        return ImageIndex(
            fingerprint=str(content["fingerprint"]),
            files={name: [str(file) for file in files] for name, files in content["files"].items()},
            bad=[(str(file), str(reason)) for file, reason in content["bad"]],
        )


# ---------------------------------------------------------------------------
# candidates/ID-N/: one evaluation
# ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """The folder of one evaluation, or of a shared start, which holds a detector only."""

    path: Path

    @property
    def detector(self) -> Path:
        """Where the trained detector is."""
        return self.path / DETECTOR

    def save(
        self,
        evaluation: Evaluation,
        *,
        measures: Mapping[str, float],
        curve: Sequence[tuple[int, float]],
        preview: Array,
        heatmaps: Array | None = None,
        projection: Array | None = None,
    ) -> None:
        """Write everything but the detector.

        Args:
            evaluation: What selectors look at.
            measures: Discordance and separability, for the report.
            curve: The training loss after updates.
            preview: A few train images under the augmentation.
            heatmaps: How unusual each place of each test image is, if the detector can say.
            projection: Embeddings in the plane, for the report.
        """
        from safetensors.torch import save_file

        tensors = {
            f"{part}.{name}": tensor.contiguous()
            for part, sets in (("embeddings", evaluation.embeddings), ("scores", evaluation.scores))
            for name in SETS
            if (tensor := getattr(sets, name)) is not None
        }
        save_file(tensors, self.path / EVALUATION_ARRAYS)
        assert evaluation.health is not None
        record = {
            "candidate": asdict(evaluation.candidate),
            "health": asdict(evaluation.health),
            "timings": dict(evaluation.timings),
            "measures": dict(measures),
            "curve": [list(point) for point in curve],
        }
        (self.path / EVALUATION_RECORD).write_text(json_text(record))
        np.save(self.path / PREVIEW, preview)
        for name, values in ((HEATMAPS, heatmaps), (PROJECTION, projection)):
            if values is not None:
                np.save(self.path / name, values)

    def load(self) -> Evaluation:
        """The evaluation."""
        from safetensors.torch import load_file as load_tensors

        record, file = self.record(), trusted_file(self.path, EVALUATION_ARRAYS)
        with _reading(file):
            tensors = load_tensors(file)
        with sound(self.path / EVALUATION_RECORD):
            return Evaluation(
                candidate=Candidate(**record["candidate"]),
                embeddings=Embeddings(**_part(tensors, "embeddings")),
                scores=Scores(**_part(tensors, "scores")),
                health=Health(**record["health"]),
                timings=record["timings"],
            )

    def record(self) -> Mapping[str, Any]:
        """Candidate, health, timings, measures and training curve."""
        return read_json(trusted_file(self.path, EVALUATION_RECORD))

    def arrays(self) -> dict[str, Array]:
        """Embeddings and scores, as `embeddings.train` and so on."""
        file = trusted_file(self.path, EVALUATION_ARRAYS)
        with _reading(file):
            return load_file(file)

    def preview(self) -> Array | None:
        """A few train images under the augmentation; None if the run has none."""
        return _load_if_any(self.path, PREVIEW)

    def heatmaps(self) -> Array | None:
        """How unusual each place of each test image is; None if the detector cannot say."""
        return _load_if_any(self.path, HEATMAPS)

    def projection(self) -> Array | None:
        """Embeddings in the plane with neighbours kept together; None if the run has none."""
        return _load_if_any(self.path, PROJECTION)


def save_features(folder: Path, parts: Iterable[Mapping[str, Tensor]], images: int) -> None:
    """Write the frozen features of some images after the other, an array each: they may be larger than memory.

    Args:
        folder: Where they go.
        parts: Features by name, a row for each image.
        images: The images of all parts.
    """
    with contextlib.ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for part in parts:
            for name, values in part.items():
                rows = values.contiguous().numpy()
                if name not in files:
                    files[name] = stack.enter_context((folder / f"{name}.npy").open("wb"))
                    header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False}
                    np.lib.format.write_array_header_1_0(files[name], {**header, "shape": (images, *rows.shape[1:])})
                files[name].write(rows.data)


def load_features(folder: Path) -> dict[str, Tensor]:
    """Frozen features, memory-mapped: workers share one copy. The study checks the folder before it sends a job."""
    import torch

    loaded = {}
    for file in sorted(folder.glob("*.npy")):
        # Copy-on-write: torch warns of read-only memory, and nobody writes.
        loaded[file.stem] = torch.from_numpy(_mapped(file, "c"))
    return loaded


def _mapped(file: Path, mode: Literal["r", "c"]) -> Array:
    with _reading(file):
        return np.load(file, mmap_mode=mode, allow_pickle=False)  # type: ignore[no-any-return]


def _load_if_any(folder: Path, name: str) -> Array | None:
    file = trusted_file_if_any(folder, name)
    if file is None:
        return None
    with _reading(file):
        return np.load(file, allow_pickle=False)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Name the file that cannot be read."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"{file} cannot be read ({error})") from error


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Any]:
    return {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


# ---------------------------------------------------------------------------
# selection.json, finished.json, aucs.json
# ---------------------------------------------------------------------------


def write_selection(run: RunFolder, selection: Mapping[str, Any]) -> None:
    """Write `selection.json`."""
    write_sealed(run.selection, selection)


def read_selection(run: RunFolder) -> Mapping[str, Any]:
    """Read `selection.json`.

    Raises:
        StoreError: This is no run folder, its study has not selected yet, another version wrote it, or it is damaged.
    """
    if not run.study.exists():
        raise StoreError(f"{run.path} is no run folder; give the folder that `dsv select` printed")
    read_study(run)  # which tells the format
    if not run.selection.exists():
        raise StoreError(f"{run.path} has no selection yet; finish the study with the same `dsv select` first")
    return read_sealed(run.selection)


@dataclass(frozen=True, slots=True)
class FinishedRecord:
    """What `finished.json` says of a study that was run to its end.

    Attributes:
        depends_on: A hash of all that the selection depends on, but for the images.
        image_size: The size at which images were loaded.
        images: The fingerprint of the images.
        checksums: Those of `selection.json` and of the manifests of the folders that belong to the result.
        updates_spent: The training updates of all candidates.
        notes: What the user is told whenever the study is run.
    """

    depends_on: str
    image_size: int
    images: str
    checksums: Mapping[str, str]
    updates_spent: int | None
    notes: Sequence[str]


def write_finished(run: RunFolder, record: FinishedRecord) -> None:
    """Write `finished.json`."""
    write_sealed(run.finished, asdict(record))


def read_finished(run: RunFolder) -> FinishedRecord | None:
    """Read `finished.json`; None if there is none, or it is damaged, since the study can do without."""
    try:
        content = read_sealed(run.finished)
        with sound(run.finished):
            return FinishedRecord(**content)
    except StoreError:
        return None


def write_aucs(run: RunFolder, *, candidates: Mapping[str, float], chosen: Mapping[str, float]) -> None:
    """Write `aucs.json`: the AUC of each candidate by its id, and of each selector's choice."""
    write_sealed(run.aucs, {"candidates": dict(candidates), "chosen": dict(chosen)})


def read_aucs(run: RunFolder) -> Mapping[str, float]:
    """The AUC of each candidate by its id; empty if no labels are known."""
    if not run.aucs.exists():
        return {}
    content = read_sealed(run.aucs, "remove it, or run the same `dsv demo` or `dsv bench` again")
    with sound(run.aucs):
        return {str(candidate): float(auc) for candidate, auc in content["candidates"].items()}


# ---------------------------------------------------------------------------
# model/: the chosen detector
# ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """What `model/model.json` says of the detector beside it.

    Attributes:
        detector: Name of the detector plugin.
        detector_params: Its settings.
        augmentation: Name of the augmentation that it was trained on.
        params: Hyperparameters of the augmentation.
        selector: Name of the selector that chose it.
        image_size: The size at which it takes images.
        heat_scale: Where the colour of a heatmap begins and where it is strongest; None if it has no heatmaps.
        heat_threshold: The heat above which a place counts as unusual; None if that is not known.
        candidate: Id of the candidate, and the updates it was trained for.
        members: If it is an ensemble, what each member was trained on and the scale of its scores; the member's files
            are in the folder `members`, by its place here.
        warnings: Reasons in the images to doubt its decisions.
        calibrated_on: The folder of good images whose scores decide; None for those that the study kept out.
        provider: What provided the detector plugin: a package with its version, and a fingerprint of the code.
        plugins: The files and modules with plugins that the study was given.
    """

    detector: str
    augmentation: str
    selector: str
    image_size: int
    detector_params: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    heat_scale: tuple[float, float] | None = None
    heat_threshold: float | None = None
    candidate: str = ""
    members: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    calibrated_on: str | None = None
    provider: str = ""
    plugins: Sequence[str] = ()


MEMBER_KINDS: Mapping[str, type] = {
    "augmentation": str,
    **dict.fromkeys(("params", "detector_params"), dict),
    **dict.fromkeys(("mean", "deviation"), float),
}
"""What a model says of each member."""

MODEL_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("detector", "augmentation", "selector", "candidate", "provider"), str),
    **dict.fromkeys(("detector_params", "params"), dict),
    "image_size": int,
    "heat_scale": (list, type(None)),
    "heat_threshold": (float, type(None)),
    **dict.fromkeys(("members", "warnings", "plugins"), (list, tuple)),
    "calibrated_on": (str, type(None)),
}
"""What the values of `model.json` are."""


def save_model(run: RunFolder, record: ModelRecord, detectors: Sequence[Path], held_out: Array | None) -> None:
    """Copy the chosen detector's folder into the run as its model, with the scores of the images that were kept out.

    Several detectors are the members of an ensemble. If the same candidate was recalibrated before, it stays so.
    """
    with contextlib.suppress(StoreError):  # there is none yet, or it is damaged
        before = load_model_record(run)
        if before.candidate == record.candidate and before.calibrated_on is not None:
            record, held_out = replace(record, calibrated_on=before.calibrated_on), load_held_out(run)
    with finished_folder(run.model) as folder:
        for place, detector in enumerate(detectors):
            target = member_folder(folder, place) if record.members else folder
            shutil.copytree(detector, target, dirs_exist_ok=True)
        (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
        if held_out is not None:
            np.save(folder / HELD_OUT, held_out)


def member_folder(model: Path, place: int) -> Path:
    """Where the files of an ensemble's member are."""
    return model / "members" / str(place)


def load_held_out(run: RunFolder) -> Array | None:
    """The scores of good images that the model was not trained on; None if there are none."""
    return _load_if_any(run.model, HELD_OUT)


def recalibrate_model(run: RunFolder, images: Path, held_out: Array) -> None:
    """Let the scores of these good images decide from now on."""
    record = replace(load_model_record(run), calibrated_on=str(images.absolute()))
    with finished_folder(run.model) as folder:
        shutil.copytree(run.model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        (folder / MODEL_RECORD).write_text(json_text(asdict(record)))
        np.save(folder / HELD_OUT, held_out)


def load_model_record(run: RunFolder) -> ModelRecord:
    """What the chosen model is; its files lie in `run.model`.

    Raises:
        StoreError: There is no model, another version wrote it, or it is damaged.
    """
    if run.study.exists():  # a model works without the rest of its run
        read_study(run)
    if not run.model.is_dir():
        raise StoreError(f"{run.path} holds no chosen model; finish the study with `dsv select` first")
    problem = verify(run.model)
    if problem is not None:
        raise StoreError(f"{problem}; {RESTORE}")
    file = run.model / MODEL_RECORD
    content = read_json(file)
    with sound(file):
        record = ModelRecord(**content)
        for name, kinds in MODEL_KINDS.items():
            if not isinstance(getattr(record, name), kinds):
                raise TypeError(f"{name} is {shown(getattr(record, name))}")
        for member in record.members:
            for name, kind in MEMBER_KINDS.items():
                if not isinstance(member[name], kind):
                    raise TypeError(f"{name} of a member is {shown(member[name])}")
        return record
