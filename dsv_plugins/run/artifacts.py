"""What a run folder holds, file by file, without its model: how each is written, and how it is read again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dsv_plugins.errors import InputError, StoreError, shown
from dsv_plugins.run.checksums import (
    check_seal,
    read_sealed,
    sound,
    trusted_file,
    trusted_file_if_any,
    write_sealed,
)
from dsv_plugins.run.folder import FORMAT, RunFolder, json_text, read_json
from dsv_plugins.types import Candidate, Embeddings, Evaluation, Health, Scores, Size

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EvaluationFolder",
    "FinishedRecord",
    "ImageIndex",
    "claim",
    "load_if_any",
    "read_aucs",
    "read_finished",
    "read_image_index",
    "read_selection",
    "read_study",
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
VERSIONED = ("dsv-plugins", "torch", "torchvision", "lightning")
SETS = ("train", "augmented", "test", "holdout", "pseudo")


# ---------------------------------------------------------------------------
# study.json: what the run folder is for
# ---------------------------------------------------------------------------


def claim(run: RunFolder, identity: Mapping[str, Any]) -> bool:
    """Write what the run folder is for, or check that it is for this study; returns whether it was there before.

    A folder in which not even the images were read yet, since one of them is broken, is for whoever comes next.

    Raises:
        InputError: The folder belongs to another study.
        StoreError: Another version wrote it.
    """
    if run.study.exists():
        claimed = read_study(run)["identity"]
        differing = [name for name, value in claimed.items() if identity.get(name) != value]
        if not differing:
            return True
        if has_image_index(run.data) or any(run.candidates.glob("*")):
            name = differing[0]
            other = f"whose {name} is {claimed[name]}, not {identity.get(name)}"
            other = f"of other {name} images" if name in ("train", "test") else other
            raise InputError(f"{run.path} belongs to a study {other}; give another --out (out=FOLDER)")
    versions = {name: metadata.version(name) for name in VERSIONED}
    write_sealed(run.study, {"format": FORMAT, "identity": identity, "versions": versions})
    return False


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
            if (tensor := getattr(sets, name, None)) is not None  # embeddings have no pseudo-anomalies
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
        return load_if_any(self.path, PREVIEW)

    def heatmaps(self) -> Array | None:
        """How unusual each place of each test image is; None if the detector cannot say."""
        return load_if_any(self.path, HEATMAPS)

    def projection(self) -> Array | None:
        """Embeddings in the plane with neighbours kept together; None if the run has none."""
        return load_if_any(self.path, PROJECTION)


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


def load_if_any(folder: Path, name: str) -> Array | None:
    """An array of a finished folder; None if it has no such file."""
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
    image_size: Size
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
