"""Jobs on other machines: what is sent to a worker, and what comes back. Nothing here is Ray's.

If a worker can reach the run folder, as on a shared file system, it uses it directly. If not, the job's files travel
with it, the work is done in a temporary folder, and the driver (the process that runs the study) writes what was
finished into the run folder. The images are put into an object store once, and travel as a reference:

```python
with RemoteJobs(put=store.put) as remote:            # on the driver
    portable, images = remote.pack(job)
    result = ...                                     # on the worker: portable.run(work, store.get(images), report)
    value = remote.unpack(job, result)               # on the driver again
```
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv_plugins import WorkerError, build_registry
from dsv_plugins.data.dataset import Dataset, open_dataset
from dsv_plugins.run.folder import MANIFEST, RunFolder, finished_folder
from dsv_plugins.training.job import FROZEN_PART, IMAGE_SETS, Job

__all__ = ["PortableJob", "RemoteJobs", "RemoteResult", "environment"]

Reference = TypeVar("Reference")
Value = TypeVar("Value")

Images = Mapping[str, Any]
"""A study's images as plain arrays, which an object store can share between processes without a copy."""

Files = Mapping[str, NDArray[np.uint8]]
"""The content of files, by their path below a folder."""

REPORT_SECONDS = 0.5
COMPARED = ("dsv-plugins", "lightning", "numpy", "torch", "torchvision")


@dataclass(frozen=True)
class RemoteResult(Generic[Value]):
    """What came out of a job.

    Attributes:
        value: What the work returned.
        finished: The folders that it finished, by their path below the run; empty if the run folder has them already.
    """

    value: Value
    finished: Mapping[str, Files]


@dataclass(frozen=True)
class PortableJob:
    """A job with all that a worker needs to do it, but for the images.

    Attributes:
        job: The job as the study planned it.
        start: The files that it starts from.
        mark: A file in the run folder: a worker that sees it works on the same disk.
        environment: The driver's plugins and versions.
    """

    job: Job
    start: Files
    mark: Path
    environment: Mapping[str, str]

    def run(
        self, work: Callable[[Job], Value], images: Images, report: Callable[[str, str], None]
    ) -> RemoteResult[Value]:
        """Do the work, in the run folder or in a folder of its own.

        Args:
            work: What is to be done.
            images: What `RemoteJobs.pack` put into the object store.
            report: Called with the name and the content of a progress file, if the run folder is out of reach.

        Raises:
            WorkerError: The plugins or versions here are not those of the driver.
        """
        _require_same(self.environment, environment(self.job.plugins))
        job = replace(self.job, images=_dataset(images), features=_features(images))
        if self.mark.exists():
            return RemoteResult(work(job), {})
        with tempfile.TemporaryDirectory(prefix="dsv-job-", ignore_cleanup_errors=True) as folder:
            job = replace(job, run=Path(folder))
            RunFolder(job.run).progress.mkdir()
            if job.starts_from is not None:
                _write_files(job.starts_from, self.start)
            with _reporting(RunFolder(job.run), report):
                value = work(job)
            finished = [manifest.parent for manifest in job.run.rglob(MANIFEST)]
            return RemoteResult(value, {path.relative_to(job.run).as_posix(): _read_files(path) for path in finished})


class RemoteJobs(Generic[Reference]):
    """Packs jobs, and unpacks what they made. Use as a context manager around the jobs of one round.

    Args:
        put: Puts a value into the object store, and returns a reference to it.
    """

    def __init__(self, put: Callable[[Images], Reference]) -> None:
        self._put = put
        self._images: dict[tuple[object, ...], Reference] = {}
        self._marks: dict[Path, Path] = {}

    def __enter__(self) -> RemoteJobs[Reference]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mark in self._marks.values():
            mark.unlink(missing_ok=True)
        self._marks.clear()

    def pack(self, job: Job) -> tuple[PortableJob, Reference]:
        """The job to send, and the reference to its images, which are put into the store once for all rounds."""
        dataset = open_dataset(RunFolder(job.run).data)
        # Frozen features are computed in a round of jobs before the others: only those have them.
        features = {} if job.candidate.augmentation == FROZEN_PART else job.frozen_features()
        key = (job.run, dataset.fingerprint, *features)
        if key not in self._images:
            self._images[key] = self._put(_arrays(dataset, features))
        if job.run not in self._marks:
            self._marks[job.run] = RunFolder(job.run).progress / f".driver-{uuid.uuid4().hex}"
            self._marks[job.run].touch()
        start = {} if job.starts_from is None else _read_files(job.starts_from)
        return PortableJob(job, start, self._marks[job.run], environment(job.plugins)), self._images[key]

    def unpack(self, job: Job, result: RemoteResult[Value]) -> Value:
        """Write what the job finished into the run folder, and return the value."""
        for name, files in result.finished.items():
            with finished_folder(job.run / name) as folder:
                _write_files(folder, files)
        return result.value

    def show_progress(self, job: Job, name: str, content: str) -> None:
        """Write how far a remote training is into the run folder, where the study looks for it."""
        with contextlib.suppress(OSError):  # only for display, and not worth a failure
            (RunFolder(job.run).progress / name).write_text(content)


def environment(plugins: tuple[object, ...] = ()) -> dict[str, str]:
    """The versions that the outcome of a job depends on, and of every installed package that brings plugins."""
    registry = build_registry(plugins)
    versions = {name: metadata.version(name) for name in COMPARED}
    versions |= {each.provider.name: each.provider.version for each in registry.plugins if each.provider.entry_point}
    versions |= {
        each.provider.name: f"{each.provider.version} (it fails to load)"
        for each in registry.failures
        if each.provider.entry_point
    }
    return versions


def _require_same(driver: Mapping[str, str], worker: Mapping[str, str]) -> None:
    differences = [
        f"{name} is {worker.get(name, 'missing')} there and {driver.get(name, 'missing')} here"
        for name in sorted({*driver, *worker})
        if driver.get(name) != worker.get(name)
    ]
    if differences:
        raise WorkerError(
            f"a worker has other plugins than this process: {'; '.join(differences)}; install the same on every machine"
        )


def _read_files(folder: Path) -> Files:
    """Return the content of a finished folder, but for its manifest: it is made anew where the files arrive."""
    return {
        file.relative_to(folder).as_posix(): np.fromfile(file, np.uint8)
        for file in folder.rglob("*")
        if file.is_file() and file.name != MANIFEST
    }


def _write_files(folder: Path, files: Files) -> None:
    """Write what `_read_files` returned."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(file)


def _arrays(dataset: Dataset, features: Mapping[str, Mapping[str, Tensor]]) -> Images:
    sets = {name: getattr(dataset, name) for name in IMAGE_SETS}
    return {
        **{name: None if images is None else images.numpy() for name, images in sets.items()},
        "fingerprint": dataset.fingerprint,
        "features": {
            images: {name: values.numpy() for name, values in parts.items()} for images, parts in features.items()
        },
    }


def _dataset(images: Images) -> Dataset:
    sets = {name: None if images[name] is None else _tensor(images[name]) for name in IMAGE_SETS}
    return Dataset(**sets, fingerprint=images["fingerprint"])  # type: ignore[arg-type]


def _features(images: Images) -> dict[str, dict[str, Tensor]] | None:
    features = images["features"]
    if not features:
        return None
    return {name: {part: _tensor(values) for part, values in parts.items()} for name, parts in features.items()}


def _tensor(pixels: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory that must not be written to, which nobody does
        return torch.from_numpy(pixels)


@contextlib.contextmanager
def _reporting(run: RunFolder, report: Callable[[str, str], None]) -> Iterator[None]:
    """Pass on, from a thread, how far a training says that it is."""
    ended = threading.Event()

    def watch() -> None:
        reported: dict[str, str] = {}
        while not ended.wait(REPORT_SECONDS):
            for file in run.progress.iterdir():
                content = file.read_text()
                if content and content != reported.get(file.name):  # empty while it is written
                    reported[file.name] = content
                    report(file.name, content)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
