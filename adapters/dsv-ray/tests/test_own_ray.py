"""A Ray of this machine, which starts without an address and ends with its process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from quick_plugins import wait_until

from dsv_plugins import ExecutorPlugin, PluginSettingsError, build_registry

SCRIPT = """
import os, time
from dsv_plugins import ExecutorPlugin, WorkerError, build_registry

def work(job):
    open(f"FOLDER/{job}-{os.getpid()}", "w").close()
    time.sleep(SECONDS)
    return job * 2

for _ in range(5):  # a machine that is busy may not start Ray in the time that Ray allows
    try:
        executor = build_registry().create(ExecutorPlugin, "ray", {"workers": 2, "num_cpus": 0.5})
        assert sorted(outcome.value for outcome in executor.run(work, [1, 2, 3])) == [2, 4, 6]
        break
    except WorkerError as error:
        print(error)
else:
    raise SystemExit("Ray never started")
"""


@pytest.mark.slow  # a machine that is busy does not start Ray in the fifteen seconds that Ray allows
@pytest.mark.parametrize("killed", [False, True])
def test_it_ends_with_its_process(tmp_path: Path, killed: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    script = SCRIPT.replace("FOLDER", str(tmp_path)).replace("SECONDS", "60" if killed else "2")
    driver = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        wait_until(lambda: list(tmp_path.iterdir()) or driver.poll() is not None, seconds=400)
        processes = psutil.Process(driver.pid).children(recursive=True)
        assert processes
        if killed:
            os.kill(driver.pid, signal.SIGKILL)
        assert driver.wait(timeout=120) == (-signal.SIGKILL if killed else 0)
        _, alive = psutil.wait_procs(processes, timeout=180)  # agents look for their node once a minute
        assert not alive
    finally:
        driver.kill()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"workers": 0}, "workers is 0"), ({"num_gpus": -1}, "num_gpus is -1"), ({"nodes": 2}, "does not take 'nodes'")],
)
def test_wrong_settings(settings, complaint):
    with pytest.raises(PluginSettingsError, match=complaint):
        build_registry().create(ExecutorPlugin, "ray", settings)


def test_listing_plugins_imports_neither_ray_nor_torch():
    script = (
        "import sys; from dsv_plugins.cli import main; main(['plugins']); print({'ray', 'torch'} & set(sys.modules))"
    )
    # The tests of the cluster may have installed the quick plugins by now, which import torch.
    environment = {**os.environ, "DSV_DISABLE_PLUGINS": "dsv-quick"}
    completed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert completed.stdout.endswith("set()\n")
    assert " ray " in completed.stdout
