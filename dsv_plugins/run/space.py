"""Space on the disk, taken before it is needed: a memory map that finds the disk full kills the process."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from dsv_plugins.errors import StoreError

__all__ = ["reserve_space"]

FULL = (errno.ENOSPC, errno.EDQUOT)
MEGABYTE = 1_000_000


def reserve_space(file: Path, size: int, purpose: str) -> None:
    """Give a file all the space that it is going to take.

    Args:
        file: A file that is there already.
        size: Its bytes in the end.
        purpose: What takes the space, for the message.

    Raises:
        StoreError: The disk has less.
    """
    free = shutil.disk_usage(file.parent).free
    if not _is_reserved(file, size, free):
        needed, left = (f"{count / MEGABYTE:,.1f} MB" for count in (size, free))
        raise StoreError(
            f"{purpose} need {needed}, and the disk of {file.parent.parent} has {left} left; free some space and run "
            "the same command again, or give --out a folder on a larger disk"
        )


def _is_reserved(file: Path, size: int, free: int) -> bool:
    if hasattr(os, "posix_fallocate"):
        try:
            with file.open("r+b") as content:
                os.posix_fallocate(content.fileno(), 0, size)
            return True
        except OSError as error:
            if error.errno in FULL:
                return False
    return size <= free  # some file systems can reserve nothing
