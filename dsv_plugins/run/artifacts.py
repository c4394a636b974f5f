"""The arrays of a run folder: images, evaluations and frozen features, each in a folder that is written once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dsv_plugins.errors import StoreError
from dsv_plugins.run.checksums import RESTORE, checked_file, checked_file_if_any
from dsv_plugins.run.folder import json_text
from dsv_plugins.run.records import EvaluationRecord, ImageIndex, parse_record
from dsv_plugins.types import Embeddings, Evaluation, Scores

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EvaluationFolder",
    "has_image_index",
    "images_file",
    "load_features",
    "load_if_any",
    "open_checked_images",
    "open_images",
    "read_image_index",
    "save_features",
    "write_image_index",
]

Array = NDArray[Any]

EVALUATION_RECORD, EVALUATION_ARRAYS = "evaluation.json", "evaluation.safetensors"
PREVIEW, HEATMAPS, PROJECTION = "preview.npy", "heatmaps.npy", "projection.npy"
MODEL_HEATMAPS = "test-heatmaps.npy"
DETECTOR = "detector"
IMAGE_INDEX = "images.json"
SETS = ("train", "augmented", "test", "holdout", "pseudo")


def images_file(folder: Path, name: str) -> Path:
    """Return where the pixels of a set of images are, as one array."""
    return folder / f"{name}.npy"


def open_images(folder: Path, name: str) -> Array:
    """Return the pixels of a set of images, memory-mapped, once their checksum is found to be right."""
    return _mapped(checked_file(folder, images_file(folder, name).name), "r")


def open_checked_images(folder: Path, name: str) -> Array:
    """The same for those who know that the folder is sound. Who writes to the array changes their own copy only."""
    return _mapped(images_file(folder, name), "c")


def write_image_index(folder: Path, index: ImageIndex) -> None:
    """Write `images.json`."""
    (folder / IMAGE_INDEX).write_text(json_text(asdict(index)))


def has_image_index(folder: Path) -> bool:
    """Return whether images have been prepared here."""
    return (folder / IMAGE_INDEX).exists()


def read_image_index(folder: Path) -> ImageIndex:
    """Read `images.json`."""
    return parse_record(checked_file(folder, IMAGE_INDEX), ImageIndex)


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
            heatmaps: How unusual each patch of each test image is, if the detector can say.
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
        record = EvaluationRecord(evaluation.candidate, evaluation.health, evaluation.timings, measures, curve)
        (self.path / EVALUATION_RECORD).write_text(json_text(asdict(record)))
        np.save(self.path / PREVIEW, preview)
        for name, values in ((HEATMAPS, heatmaps), (PROJECTION, projection)):
            if values is not None:
                np.save(self.path / name, values)

    def load(self) -> Evaluation:
        """Read the evaluation."""
        from safetensors.torch import load_file as load_tensors

        record, file = self.record(), checked_file(self.path, EVALUATION_ARRAYS)
        with _reading(file):
            tensors = load_tensors(file)
        try:
            embeddings, scores = Embeddings(**_part(tensors, "embeddings")), Scores(**_part(tensors, "scores"))
        except TypeError as error:  # other tensors than those that were written
            raise StoreError(f"{file} is damaged ({error}); {RESTORE}") from error
        return Evaluation(record.candidate, embeddings, scores, record.health, record.timings)

    def record(self) -> EvaluationRecord:
        """Read what is known of the training beside its arrays."""
        return parse_record(checked_file(self.path, EVALUATION_RECORD), EvaluationRecord)

    def arrays(self) -> dict[str, Array]:
        """Read embeddings and scores, as `embeddings.train` and so on."""
        file = checked_file(self.path, EVALUATION_ARRAYS)
        with _reading(file):
            return load_file(file)

    def preview(self) -> Array | None:
        """Read a few train images under the augmentation; None if the run has none."""
        return load_if_any(self.path, PREVIEW)

    def heatmaps(self) -> Array | None:
        """Read how unusual each patch of each test image is; None if the detector cannot say."""
        return load_if_any(self.path, HEATMAPS)

    def projection(self) -> Array | None:
        """Read the embeddings in the plane, with neighbours kept together; None if the run has none."""
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
    """Return an array of a finished folder; None if it has no such file."""
    file = checked_file_if_any(folder, name)
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
