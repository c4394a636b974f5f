"""Labelled tasks in folders, as MVTec AD comes: `TASK/train/good`, `TASK/test/good` and `TASK/test/<defect>`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv_plugins.data.images import find_images, split_folder
from dsv_plugins.errors import InputError
from dsv_plugins.run.artifacts import read_image_index
from dsv_plugins.run.folder import RunFolder

__all__ = ["NORMAL_FOLDER", "Task", "find_tasks", "labels_of"]

NORMAL_FOLDER = "good"


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
        """Return where masks of the defects are, if the task has any."""
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
    """Return the tasks that these folders are or hold, in the order given and by name below a parent.

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


def labels_of(run: Path) -> list[bool]:
    """Return whether each test image of a run is anomalous, in the run's order, from the folders they lie in."""
    files = read_image_index(RunFolder(run).data).files["test"]
    labels = [Path(file).parent.name != NORMAL_FOLDER for file in files]
    if len(set(labels)) < 2:
        raise InputError(f"{run} has test images of one class only; an AUC needs a folder {NORMAL_FOLDER!r} and others")
    return labels


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
