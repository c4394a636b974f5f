"""Paths and lists that no file can have, wherever a command takes one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from ground import Ground

PATHS = ["o" * 256, "o" * 5000, "/dev/null", "/dev/full", "/proc/self/mem/x", ".", "", "a\nb", "\udcff" * 9]
LISTS = [
    ("txt", b"o" * 5000),
    ("txt", b"a\0b"),
    ("txt", b"\xff\xfe\xff"),
    ("csv", b"path\n" + b"o" * 200_000),
    ("csv", b'path\n"' + b"o" * 100),
    ("csv", b"path\na\0b"),
    ("csv", b"path,path\n1,2,3\n"),
    ("csv", b""),
]


def bad_paths(ground: Ground, dice: random.Random, folder: Path) -> Iterator[tuple[str, list[object]]]:
    """What is wrong with each call, and its arguments."""
    test = ground.task / "test"
    for path in PATHS:
        told = repr(path) if len(path) < 20 else f"{path[:3]!r}… of {len(path)} characters"
        yield f"to score a run at {told}", ["score", path, test]
        yield f"to score the images at {told}", ["score", ground.run, path]
        yield f"to report a run at {told}", ["report", path]
        yield f"to export to {told}", ["export", ground.run, "--format", "torch", "--out", path]
        yield f"to score into {told}", ["score", ground.run, test, "--out", path]
        yield f"to draw heatmaps into {told}", ["score", ground.run, test, "--heatmaps", path]
        yield f"plugins at {told}", ["plugins", "--plugins", path]
        yield f"train images at {told}", ["select", "--train", path, "--test", test, "--out", folder / "run"]
    for number, (suffix, content) in enumerate(LISTS):
        file = folder / f"list{number}.{suffix}"
        file.write_bytes(content)
        images = ["--train", file, "--test", test, "--out", folder / "run"]
        yield f"a list with {content[:20]!r}", ["select", *images]
