"""Space for images is taken before they are decoded: a memory map that finds the disk full kills the process."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsv_plugins import StoreError
from dsv_plugins.run.space import reserve_space


def refusing(code: int):
    def fallocate(descriptor: int, start: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    return fallocate


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.npy").touch()
    return tmp_path / "data" / "train.npy"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_too_little_space_is_one_line_that_says_how_much(file, monkeypatch, code):
    monkeypatch.setattr(os, "posix_fallocate", refusing(code), raising=False)
    free = shutil.disk_usage(file.parent).free
    complaint = re.escape(f"the train images need 12.5 MB, and the disk of {file.parent.parent} has ")
    with pytest.raises(StoreError, match=f"^{complaint}.* MB left; free some space and run the same command again"):
        reserve_space(file, 12_500_000, "the train images")
    assert free > 12_500_000  # or the next test would show the same


@pytest.mark.parametrize("support", ["unsupported", "missing"])
def test_where_nothing_can_be_reserved_the_free_space_counts(file, monkeypatch, support):
    if support == "missing":
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", refusing(errno.EOPNOTSUPP), raising=False)
    reserve_space(file, 1000, "the train images")
    with pytest.raises(StoreError, match=r"need .* MB, and the disk"):
        reserve_space(file, 1 << 60, "the train images")


def test_what_is_reserved_is_taken_from_the_disk(file):
    with file.open("r+b") as content:
        content.truncate(1 << 20)
    reserve_space(file, 1 << 20, "the train images")
    assert file.stat().st_size == 1 << 20
    assert file.stat().st_blocks * 512 >= 1 << 20


READ_IMAGES = """
import sys
from pathlib import Path
from dsv_plugins import StoreError
from dsv_plugins.data.dataset import prepare

parts, disk = map(Path, sys.argv[1:])
try:
    prepare(parts / "train", parts / "test", disk / "run" / "data", size=256)
except StoreError as error:
    sys.exit(f"{error}; left: {list((disk / 'run').iterdir())}")
"""


def test_a_disk_too_small_for_the_images_is_one_line(task, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        outcome = subprocess.run(
            [sys.executable, "-c", READ_IMAGES, str(task), str(disk)], capture_output=True, text=True, timeout=120
        )
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert outcome.returncode == 1, outcome.returncode
    assert re.fullmatch(
        rf"the train images need 1\.6 MB, and the disk of {disk}/run has 1\.0 MB left; .*; left: \[\]\n", outcome.stderr
    )
