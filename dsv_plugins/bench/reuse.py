"""Work that the studies of a task have in common: prepared images and shared starts."""

from __future__ import annotations

import shutil

from dsv_plugins.store.artifacts import has_image_index
from dsv_plugins.store.folder import RunFolder
from dsv_plugins.study.study import Study

__all__ = ["reuse_work"]


def reuse_work(study: Study) -> None:
    """Copy what does not depend on the augmentation from the other studies of the task: images and shared starts.

    Nothing is copied that the study has. It checks the images before it uses them, and prepares its own if they differ.
    """
    run = RunFolder(study.folder())
    others = [RunFolder(path) for path in sorted(run.path.parent.glob("*/")) if path != run.path]
    # Which images are held out depends on the seed.
    others.sort(key=lambda other: not other.path.name.removesuffix("-random").endswith(f"-{study.seed}"))
    prepared = next((other.data for other in others if has_image_index(other.data)), None)
    if prepared is not None and not has_image_index(run.data):
        shutil.copytree(prepared, run.data, dirs_exist_ok=True)
    for start in (start for other in others for start in other.shared_starts.glob("[!.]*")):
        if not run.shared_start(start.name).exists():  # its name identifies settings, seed and images
            shutil.copytree(start, run.shared_start(start.name))
