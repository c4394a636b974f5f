"""Work that the studies of a task have in common: prepared images, shared starts and frozen features."""

from __future__ import annotations

import os
import shutil

from dsv_plugins.run.artifacts import has_image_index
from dsv_plugins.run.folder import RunFolder
from dsv_plugins.study.study import Study

__all__ = ["reuse_work"]


def reuse_work(study: Study) -> None:
    """Copy what does not depend on the augmentation from the other studies of the task, unless the study has it.

    The study checks all of it before use, and prepares its own images if the copied ones are not the same.
    """
    run = RunFolder(study.folder())
    others = [RunFolder(path) for path in sorted(run.path.parent.glob("*/")) if path != run.path]
    # Which images are held out depends on the seed, so the studies with the same seed come first.
    others.sort(key=lambda other: not other.path.name.removesuffix("-random").endswith(f"-{study.seed}"))
    prepared = next((other.data for other in others if has_image_index(other.data)), None)
    if prepared is not None and not has_image_index(run.data):
        shutil.copytree(prepared, run.data, dirs_exist_ok=True, copy_function=_link)
    for other in others:
        # The names of these folders identify the detector's settings, the images and, if it matters, the seed.
        for folder in (*other.shared_starts.glob("[!.]*"), *other.frozen.glob("[!.]*/[!.]*")):
            target = run.path / folder.relative_to(other.path)
            if not target.exists():
                shutil.copytree(folder, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    """Link a file, which takes no space, or copy it if the file system has no links. Finished files never change."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
