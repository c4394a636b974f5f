"""Labelled tasks: how they are found, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_task

from dsv_plugins.bench.protocol import Bench
from dsv_plugins.bench.tasks import find_tasks
from dsv_plugins.errors import InputError


def test_tasks_and_folders_of_tasks_are_found(tmp_path: Path) -> None:
    for name in ("data/bolt", "data/nut", "washer"):
        make_task(tmp_path / name)
    (tmp_path / "data/readme").mkdir()
    tasks = find_tasks([tmp_path / "washer", tmp_path / "data", tmp_path / "data/bolt"])
    assert [task.name for task in tasks] == ["washer", "bolt", "nut"]
    assert tasks[0].train == tmp_path / "washer/train/good"


def test_folders_that_are_no_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no task and holds none"):
        find_tasks([tmp_path])
    with pytest.raises(InputError, match="is not a folder"):
        find_tasks([tmp_path / "missing"])
    make_task(tmp_path / "one/bolt")
    make_task(tmp_path / "two/bolt")
    with pytest.raises(InputError, match="are both of a task 'bolt'"):
        find_tasks([tmp_path / "one", tmp_path / "two"])


def test_labels_are_asked_for_before_anything_is_trained(tmp_path: Path) -> None:
    task = find_tasks([make_task(tmp_path / "bolt")])[0]
    task.check_labels()
    (task.test / "bar").rename(tmp_path / "bar")
    with pytest.raises(InputError, match="only normal images.*folders of other names"):
        task.check_labels()
    (task.test / "good").rename(task.test / "mixed")
    with pytest.raises(InputError, match="no folder named 'good'"):
        task.check_labels()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [0, 1, 0]}, "seeds is 0,1,0; give whole numbers of at least 0, each once"),
        ({"seeds": [2, -1]}, "seeds is 2,-1"),
        ({"augmentations": []}, "at least one"),
        ({"augmentations": ["cutout", "cutout"]}, "each augmentation once"),
        ({"thin": [0.3, 0.1, 0.3]}, "thin has a share twice: 0.3, 0.1, 0.3"),
    ],
)
def test_wrong_settings_are_refused(task: Path, tmp_path: Path, settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Bench(find_tasks([task]), tmp_path / "out", **settings).run(conduct=None, report=print)
