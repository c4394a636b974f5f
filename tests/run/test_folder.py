from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv_plugins import StoreError
from dsv_plugins.run import folder as store
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import RunFolder, finished_folder, read_json, write_json


def fill(folder: Path, text: str = "content") -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "file.txt").write_text(text)
    (folder / "other.bin").write_bytes(bytes(range(256)) * 100)


def test_a_finished_folder_is_whole_and_verified(tmp_path):
    with finished_folder(tmp_path / "a" / "target") as folder:
        fill(folder)
        assert not (tmp_path / "a" / "target").exists()
    assert verify(tmp_path / "a" / "target") is None
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["target"]


def test_all_of_a_folder_is_on_the_disk_before_it_appears(tmp_path, monkeypatch):
    target, flushed = tmp_path / "target", []
    monkeypatch.setattr(store, "_flush", lambda path: flushed.append((path, target.exists())))
    with finished_folder(target) as folder:
        fill(folder)
    *before, last = flushed
    names = {path.relative_to(folder).as_posix() for path, _ in before}
    assert names == {".", "deep", "deep/file.txt", "other.bin", "manifest.json"}
    assert not any(there for _, there in before)
    assert last == (tmp_path, True)


def test_a_folder_that_was_not_finished_leaves_nothing(tmp_path):
    def interrupted() -> None:
        with finished_folder(tmp_path / "target") as folder:
            fill(folder)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_replaces_an_older_one(tmp_path):
    for text in ("old", "new"):
        with finished_folder(tmp_path / "target") as folder:
            fill(folder, text)
    assert (tmp_path / "target" / "deep" / "file.txt").read_text() == "new"
    assert verify(tmp_path / "target") is None


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder / "other.bin").write_bytes(b"short"), r"other\.bin is damaged"),
        (lambda folder: (folder / "other.bin").unlink(), r"other\.bin is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text('{"a'), r"manifest\.json is damaged"),
        (lambda folder: (folder / "manifest.json").write_text('["a"]'), r"manifest\.json is damaged"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), r"manifest\.json is damaged \(it lists no files"),
        (lambda folder: (folder / "manifest.json").write_text('{"../../x": "0"}'), r"\.\./x is missing"),
        (lambda folder: (folder / "manifest.json").write_text('{"/etc/passwd": "0"}'), r"/etc/passwd is missing"),
        (lambda folder: (folder / "deep" / "more.txt").touch(), r"deep/more\.txt is not in manifest\.json"),
    ],
)
def test_damage_is_found_and_named(tmp_path, damage, complaint):
    with finished_folder(tmp_path / "target") as folder:
        fill(folder)
    damage(tmp_path / "target")
    assert re.search(complaint, verify(tmp_path / "target") or "")


def test_one_flipped_bit_is_found(tmp_path):
    with finished_folder(tmp_path / "target") as folder:
        fill(folder)
    file = tmp_path / "target" / "other.bin"
    content = bytearray(file.read_bytes())
    content[1234] ^= 1
    file.write_bytes(content)
    assert verify(tmp_path / "target") == f"{file} is damaged"


def test_a_reader_never_sees_a_part_of_a_json_file_whoever_writes_it(tmp_path):
    script = (
        "import sys; from pathlib import Path; from dsv_plugins.run.folder import write_json\n"
        "while True:\n    write_json(Path(sys.argv[1]), {'numbers': list(range(5000))})\n"
    )
    path = tmp_path / "file.json"
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path)], stderr=subprocess.PIPE) for _ in range(2)]
    try:
        deadline = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(300):
            assert len(read_json(path)["numbers"]) == 5000
        assert [writer.poll() for writer in writers] == [None, None], "none failed"
    finally:
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.communicate()
    assert len(read_json(path)["numbers"]) == 5000


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_kill_while_a_folder_is_replaced_leaves_the_old_one_or_the_new_one(tmp_path, killed_at):
    """The first rename puts the old folder aside, the second puts the new one in its place."""
    script = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from dsv_plugins.run.folder import RunFolder, finished_folder\n"
        "run, killed_at, rename, renames = RunFolder(Path(sys.argv[1])), int(sys.argv[2]), Path.rename, []\n"
        "def counted(self, target):\n"
        "    renames.append(target)\n"
        "    if len(renames) == killed_at:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return rename(self, target)\n"
        "with run.locked():\n"
        "    Path.rename = counted\n"
        "    with finished_folder(run.model) as folder:\n"
        "        (folder / 'model.json').write_text('new')\n"
    )
    run = RunFolder(tmp_path / "run")
    with run.locked(), finished_folder(run.model) as folder:
        (folder / "model.json").write_text("old")
    killed = subprocess.run([sys.executable, "-c", script, str(run.path), str(killed_at)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    with run.locked():
        assert verify(run.model) is None
    assert (run.model / "model.json").read_text() == {1: "old", 2: "new"}[killed_at]
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_a_second_process_fails_at_once_and_a_killed_one_frees_the_run(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from dsv_plugins.run.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked():\n    print('locked', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "locked"
        started = time.monotonic()
        with (
            pytest.raises(StoreError, match="another process is working on .*run; wait"),
            RunFolder(tmp_path / "run").locked(),
        ):
            pass
        assert time.monotonic() - started < 2
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with RunFolder(tmp_path / "run").locked():
        pass


def test_leftovers_of_a_killed_run_are_cleared(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.locked():
        pass
    for folder in (run.path, run.candidates, run.frozen / "abc"):
        (folder / ".abc-12.xyz.partial" / "deep").mkdir(parents=True)
        (folder / ".selection.json.partial").touch()
    with run.locked():
        assert not list(run.path.rglob("*.partial"))


def test_leftovers_behind_links_are_not_ours(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".theirs.partial").mkdir(parents=True)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.candidates.symlink_to(elsewhere)
    (run.path / ".data.xyz.partial").symlink_to(elsewhere)
    with run.locked():
        assert not (run.path / ".data.xyz.partial").is_symlink()
    assert (elsewhere / ".theirs.partial").is_dir()


def test_a_folder_that_cannot_be_written_is_one_line():
    complaint = r"/proc/.* cannot be written \(.*run the same command again"
    with pytest.raises(StoreError, match=complaint), RunFolder(Path("/proc/dsv-run")).locked():
        pass
    with pytest.raises(StoreError, match="cannot be written"), finished_folder(Path("/proc/dsv-run/x")):
        pass


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of one megabyte, where the machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_loses_nothing(small_disk):
    with finished_folder(small_disk / "kept") as folder:
        fill(folder)
    write_json(small_disk / "state.json", {"state": "old"})

    def too_large() -> None:
        with finished_folder(small_disk / "large") as folder:
            (folder / "file").write_bytes(bytes(2 << 20))

    with pytest.raises(StoreError, match="No space left on device"):
        too_large()
    with pytest.raises(StoreError, match="No space left on device"):
        write_json(small_disk / "state.json", {"state": "x" * (2 << 20)})
    assert verify(small_disk / "kept") is None
    assert read_json(small_disk / "state.json") == {"state": "old"}
    assert not (small_disk / "large").exists()


def test_safetensors_on_a_full_disk_is_one_line_too(small_disk):
    import torch
    from safetensors.torch import save_file

    def too_large() -> None:
        with finished_folder(small_disk / "large") as folder:
            save_file({"x": torch.zeros(2 << 20)}, folder / "file.safetensors")

    with pytest.raises(StoreError, match="No space left on device"):
        too_large()
