"""A cluster of two real nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

ISOLATE = 'mount -t tmpfs tmpfs "$DSV_TEST_HIDDEN" && exec "$@"'
"""Before a node starts, an empty file system hides the driver's files from it, as if it were another machine."""


def can_isolate() -> bool:
    probe = 'mount -t tmpfs tmpfs "$(mktemp -d)"'
    return shutil.which("unshare") is not None and not subprocess.run(["unshare", "-m", "sh", "-c", probe]).returncode


class Cluster:
    """Two nodes on loopback: A, which has the driver's files, and B, which does not where that can be arranged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "driver"
        self.files.mkdir()
        (self.files / "here").touch()
        self.site = _site(folder / "site")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.isolated = can_isolate()
        self.environment = {
            "PYTHONPATH": str(self.site),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "DSV_TEST_DRIVER": str(self.files / "here"),
            "DSV_TEST_HIDDEN": str(self.files),
            "DSV_TEST_MARKS": str(folder / "marks"),
            "OMP_NUM_THREADS": "1",
        }
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        port = self.address.rpartition(":")[2]
        place = ["--head", "--port", port] if name == "A" else ["--address", self.address]
        command = ["ray", "start", *place, "--block", "--num-cpus", "1", "--node-ip-address", "127.0.0.1"]
        command += ["--include-dashboard", "false", "--temp-dir", str(self.folder / "ray")] if name == "A" else []
        command[0] = str(Path(sys.executable).with_name("ray"))
        if name == "B" and self.isolated:
            command = ["unshare", "-m", "sh", "-c", ISOLATE, "sh", *command]
        log = (self.folder / f"{name}.log").open("wb")
        environment = {**os.environ, **self.environment, "DSV_TEST_NODE": name}
        self.nodes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """Kill a node with all its processes, as a power cut does."""
        node = self.nodes.pop(name)
        if node.poll() is not None:  # it never came up, and took its own processes down
            return
        processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=30)

    def wait_for(self, name: str, condition: Callable[[], bool]) -> None:
        """Wait until a node is up. A machine that is busy may not start it in the time that Ray allows: then again."""
        deadline = time.monotonic() + 240
        while not condition():
            assert time.monotonic() < deadline, (self.folder / f"{name}.log").read_text()
            if self.nodes[name].poll() is not None:
                self.start(name)
            time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster, with this process as its driver."""
    import ray

    folder = Path(tempfile.mkdtemp(prefix="dsv-ray-"))  # short: the paths of Ray's sockets must be
    cluster = Cluster(folder)
    before = {name: os.environ.get(name) for name in cluster.environment}
    os.environ.update(cluster.environment)
    sys.path.insert(0, str(cluster.site))
    try:
        cluster.start("A")
        cluster.wait_for("A", lambda: _joined(cluster.address))
        cluster.start("B")
        cluster.wait_for("B", lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
        yield cluster
    finally:
        ray.shutdown()
        for name in list(cluster.nodes):
            cluster.kill(name)
        sys.path.remove(str(cluster.site))
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


def _joined(address: str) -> bool:
    """Try to make this process a driver of the cluster."""
    import ray

    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        ray.init(address, log_to_driver=False)
    except (OSError, RuntimeError, ValueError):
        return False
    return True


def _site(folder: Path) -> Path:
    """A folder that has the quick plugins installed, for every process that has it on its path."""
    install(folder, "dsv-quick", "1.0", "quick = quick_plugins")
    shutil.copy(HERE / "quick_plugins.py", folder)
    return folder


def install(folder: Path, name: str, version: str, entry_point: str) -> None:
    """What an installer leaves of a package, beside its modules."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[dsv_plugins]\n{entry_point}\n")
