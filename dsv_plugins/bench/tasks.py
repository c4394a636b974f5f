"""Labelled tasks in folders, as MVTec AD and MPDD come: `TASK/train/good`, `TASK/test/good`, `TASK/test/<defect>`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv_plugins.bench.aucs import NORMAL_FOLDER
from dsv_plugins.data.images import find_images, split_folder
from dsv_plugins.errors import InputError

__all__ = ["Task", "find_tasks"]


@dataclass(frozen=True, slots=True)
class Task:
    """One labelled task.

    Attributes:
        name: The name of its folder.
        train: Normal images.
        test: Images whose labels are the names of the folders they lie in.
    """

    name: str
    train: Path
    test: Path

    @property
    def ground_truth(self) -> Path:
        """Where masks of the defects are, if the task has any."""
        return self.test.parent / "ground_truth"

    def check_labels(self) -> None:
        """Check, before hours of training, that there are normal and anomalous test images.

        Raises:
            InputError: The folders of the test images do not tell normal from anomalous.
        """
        normal = {image.parent.name == NORMAL_FOLDER for image in find_images(self.test)}
        if len(normal) < 2:
            there = "only normal images" if True in normal else f"no folder named {NORMAL_FOLDER!r}"
            raise InputError(
                f"{self.test} has {there}; a benchmark takes its labels from folder names: put normal test images "
                f"into {NORMAL_FOLDER!r} and anomalous ones into folders of other names"
            )


def find_tasks(folders: Sequence[Path]) -> list[Task]:
    """The tasks that these folders are or hold, in the order given and by name below a parent.

    Raises:
        InputError: A folder is no task and holds none, or two tasks have the same name.
    """
    tasks: dict[str, Task] = {}
    for folder in folders:
        for place in _task_folders(folder):
            task = Task(place.absolute().name, *split_folder(place))
            known = tasks.setdefault(task.name, task)
            if known.test.resolve() != task.test.resolve():
                raise InputError(f"{known.test} and {task.test} are both of a task {task.name!r}; rename a folder")
    return list(tasks.values())


def _task_folders(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give tasks, or folders of tasks")
    if _is_task(folder):
        yield folder
        return
    below = sorted(each for each in folder.iterdir() if each.is_dir() and _is_task(each))
    if not below:
        raise InputError(f"{folder} is no task and holds none; a task is a folder with folders named train and test")
    yield from below


def _is_task(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "test").is_dir()
