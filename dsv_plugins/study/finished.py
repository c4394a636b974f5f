"""A study that was run to its end: the same study again takes the result as it is stored, if nothing has changed.

Nothing is judged or loaded for that, and torch is not imported: checksums say whether the images, the code, the
settings and the files are those of the selection. If one of them is not, the study is run as always.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from dsv_plugins.data.images import survey
from dsv_plugins.data.listing import image_files, list_images
from dsv_plugins.errors import StoreError
from dsv_plugins.plugins.fingerprint import own_source
from dsv_plugins.plugins.observer import Observer
from dsv_plugins.plugins.records import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    Plugin,
    SearchPlugin,
    SelectorPlugin,
)
from dsv_plugins.plugins.registry import Registry
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import MANIFEST, RunFolder, checksum
from dsv_plugins.run.journal import RESUMED, SELECTED
from dsv_plugins.run.records import FinishedRecord, read_checksummed, write_checksummed
from dsv_plugins.run.run import Run, claim
from dsv_plugins.study.check import make_observers
from dsv_plugins.study.observers import RunLog
from dsv_plugins.study.settings import StudySettings
from dsv_plugins.types import Size

__all__ = ["finished_result", "remember"]

ONLY_EXECUTION = {"executor", "executor_params", "workers", "timeout", "observers", "observer_params", "out", "plugins"}
"""Settings that no result depends on. The plugins themselves count, wherever they come from."""
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "pillow")


def finished_result(
    settings: StudySettings, registry: Registry, observer: Observer, *, command: str = ""
) -> Run | None:
    """Return the run of a study that came to its end; None if it was not, or something has changed.

    Args:
        settings: The study.
        registry: Where its plugins are found.
        observer: Notified as in a run in which all candidates are trained already.
        command: The command line that asked for it, for the journal.
    """
    folder = RunFolder(settings.folder())
    record = _record(folder)
    if record is None or settings.address is not None or record.depends_on != _dependencies(settings, registry):
        return None
    log = RunLog(folder, None, make_observers(settings, registry, observer))
    with folder.locked(), log.failure_notified():
        claim(folder, settings.identity())
        if log.journal.unreadable_lines() or not _is_unchanged(settings, folder, record):
            return None
        run = Run(folder.path, settings.plugins)
        log.record(RESUMED, pid=os.getpid(), command=command)
        proposes = registry.get(SearchPlugin, settings.search).proposes
        candidates = [] if proposes else [entry.candidate for entry in run.candidates]
        log.notify(Observer.started, folder.path, candidates, planned=len(run.candidates))
        log.notify(Observer.dispatching, folder.path, [], run.candidates[0].updates)
        for note in record.notes:
            log.note(note)
        log.record(SELECTED, candidate=run.choice.candidate.id, selector=run.selectors[0])
        for name, choice in run.selected.items():
            log.notify(Observer.selected, name, choice.candidate, choice.loss)
        log.notify(Observer.study_ended, run)
        return run


def remember(
    settings: StudySettings,
    registry: Registry,
    run: Run,
    image_size: Size,
    images: str,
    notes: Sequence[str],
) -> None:
    """Write what a result depends on, unless the next run would try to do better: where a candidate failed.

    Args:
        settings: The study.
        registry: Where its plugins were found.
        run: The run, which has its selection.
        image_size: The size at which images were loaded.
        images: The fingerprint of the images.
        notes: What the user is to be told the next time, too.
    """
    folder = run.folder
    imperfect = any(entry.status == "failed" or None in entry.losses.values() for entry in run.candidates)
    if imperfect or settings.address is not None:
        folder.finished.unlink(missing_ok=True)
        return
    record = FinishedRecord(
        depends_on=_dependencies(settings, registry),
        image_size=image_size,
        images=images,
        checksums=dict(_checksums(folder, [(each.candidate.id, each.updates) for each in run.candidates])),
        notes=notes,
    )
    write_checksummed(folder.finished, asdict(record))


def _record(folder: RunFolder) -> FinishedRecord | None:
    """Read `finished.json`; None if there is none, or it is damaged, since the study can do without."""
    with contextlib.suppress(StoreError):
        return read_checksummed(folder.finished, FinishedRecord)
    return None


def _dependencies(settings: StudySettings, registry: Registry) -> str:
    """Return a hash of all that a selection depends on, but for the images."""
    plugins: dict[type[Plugin[Any]], Sequence[str]] = {
        AugmentationPlugin: settings.augmentations,
        DetectorEncoderPlugin: settings.detectors,
        SearchPlugin: (settings.search,),
        SelectorPlugin: settings.selectors,
    }
    identity = settings.identity()
    own = {field.name for field in fields(settings)} - identity.keys() - ONLY_EXECUTION
    content = {
        "identity": identity,
        "settings": {name: getattr(settings, name) for name in sorted(own)} | {"selector": settings.selectors},
        "plugins": [
            [kind.kind, name, registry.identity(kind, name)] for kind, names in plugins.items() for name in names
        ],
        "libraries": [metadata.version(name) for name in LIBRARIES],
        "code": own_source(),  # of how candidates are judged, too
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _checksums(folder: RunFolder, candidates: Sequence[tuple[str, int | None]]) -> Iterator[tuple[str, str]]:
    """Yield the checksum of the selection, and that of the manifest of every folder that belongs to the result."""
    yield folder.selection.name, checksum(folder.selection)
    for path in (folder.data, folder.model, *(folder.candidate(*each) for each in candidates)):
        yield path.relative_to(folder.path).as_posix(), checksum(path / MANIFEST)


def _is_unchanged(settings: StudySettings, folder: RunFolder, record: FinishedRecord) -> bool:
    """Return whether the images and the stored files are those of the selection."""
    sources = (settings.train, () if settings.test is None else settings.test)
    if not all(isinstance(source, (str, Path, list, tuple)) for source in sources):
        return False  # tensors and datasets: their owner has imported torch anyway
    found = [survey(image_files(source)) if source else ([], []) for source in sources]  # type: ignore[arg-type]
    listing = list_images(
        *found,
        size=record.image_size,
        holdout=settings.holdout,
        seed=settings.seed,
        skip_bad=settings.skip_bad,
        drop_suspects=settings.drop_suspects,
    )
    if listing.bad or listing.fingerprint != record.images:
        return False
    for name, expected in record.checksums.items():
        path = folder.path / name
        file = path / MANIFEST if path.is_dir() else path
        if not file.is_file() or checksum(file) != expected or (path.is_dir() and verify(path) is not None):
            return False
    return True
