"""Trainings of the CutPaste ResNet18 in a process of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from detectors import detector, same_weights, trained

pytestmark = pytest.mark.usefixtures("one_thread")


IN_ANOTHER_PROCESS = """
    import sys
    from pathlib import Path

    import numpy as np
    import torch

    sys.path.insert(0, sys.argv[1])
    from detectors import Recording, cutpaste, detector, textures

    torch.set_num_threads(1)
    folder = Path(sys.argv[2])

    # Resume a training.
    found = detector()
    found.load(folder)
    found.fit(textures(), cutpaste())
    found.save(folder)

    # Train on 590 MB of mapped images.
    def anonymous_megabytes():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    if Path("/proc/self/status").exists():
        small = {"image_size": 16, "width": 2, "updates": 4, "shared_updates": 0, "batch_size": 8}
        few = textures(100, height=256, width=256)
        file = folder / "images"
        with file.open("wb") as images:
            for _ in range(30):
                images.write(few.numpy().tobytes())
        detector(**small).fit(few, cutpaste())
        before = anonymous_megabytes()
        mapped = torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r+", shape=(3000, 3, 256, 256)))
        found = detector(**small)
        found.fit(mapped, cutpaste())
        found.encode_augmented(mapped[:500], cutpaste(), generator=torch.Generator())
        print(anonymous_megabytes() - before, flush=True)
        file.unlink()
    else:
        print("nan", flush=True)

    # Be interrupted, then be terminated.
    class Announcing(Recording):
        def __call__(self, images, *, generator):
            print(".", flush=True)
            return images.clone()

    try:
        detector(updates=100_000).fit(textures(), Announcing())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    detector(updates=100_000).fit(textures(), Announcing())
"""


@dataclass
class AnotherProcess:
    folder: Path
    grown_megabytes: float
    interrupted: bool
    code: int


@pytest.fixture(scope="module")
def another_process(tmp_path_factory):
    """What happened in a process of its own: one for several tests, since it takes seconds to start."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("elsewhere")
    trained(until=10).save(folder)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(IN_ANOTHER_PROCESS), str(Path(__file__).parents[2]), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        grown = float(process.stdout.readline())
        assert process.stdout.readline() == ".\n"
        process.send_signal(signal.SIGINT)
        interrupted = False
        while (line := process.stdout.readline()) == ".\n":
            pass
        interrupted = line == "interrupted\n"
        assert process.stdout.readline() == ".\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    return AnotherProcess(folder, grown, interrupted, process.returncode)


def test_training_resumes_in_another_process(finished_detector, another_process):
    elsewhere = detector()
    elsewhere.load(another_process.folder)
    assert same_weights(elsewhere, finished_detector)


def test_signals_end_a_process_as_they_would_without_a_training(another_process):
    assert another_process.interrupted
    assert another_process.code == -signal.SIGTERM


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_mapped_images_stay_on_disk(another_process):
    assert another_process.grown_megabytes < 0.1 * 590
