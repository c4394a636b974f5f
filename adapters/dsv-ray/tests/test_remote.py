"""Jobs for a machine that does not see the run folder; here, they pass through pickle and work in another folder."""

from __future__ import annotations

import json
import pickle
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch

from dsv_plugins import Candidate, WorkerError
from dsv_plugins.data.dataset import prepare
from dsv_plugins.run.checksums import verify
from dsv_plugins.run.folder import RunFolder, finished_folder
from dsv_plugins.training.job import Job
from dsv_ray.remote import RemoteJobs, environment


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job that resumes from ten updates, in a run folder with images and a holdout."""
    images = torch.randint(256, (9, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    run = RunFolder(tmp_path / "run")
    run.progress.mkdir(parents=True)
    prepare(images[:6], images[6:], run.data, size=4, holdout=0.4)
    candidate = Candidate("cutpaste", {"patch_size": 0.1})
    with finished_folder(run.candidate(candidate.id, 10)) as folder:
        (folder / "detector").mkdir()
        (folder / "detector/weights").write_bytes(bytes(range(256)))
    return Job(run.path, candidate, updates=30, resumes_from=10)


def look_around(job: Job) -> dict[str, object]:
    """Work that writes down what it was given."""
    found = {
        "run": str(job.run),
        "weights": (job.starts_from / "weights").read_bytes().hex(),
        "sum": [int(part.sum()) for part in (job.dataset().train, job.dataset().test, job.dataset().holdout)],
    }
    (RunFolder(job.run).progress / job.candidate.id).write_text(json.dumps({"update": 20}))
    with finished_folder(RunFolder(job.run).candidate(job.candidate.id, job.updates)) as folder:
        (folder / "detector").mkdir()
        (folder / "detector/weights").write_text("thirty")
        (folder / "evaluation.json").write_text(json.dumps(found))
    return found


def run_remotely(job: Job, *, reach: bool):
    """Run a job by way of pickle, as between machines."""
    with RemoteJobs(put=pickle.dumps) as remote:
        portable, images = remote.pack(job)
        if not reach:  # as if the same path were another disk
            portable = replace(portable, mark=portable.mark.with_name("elsewhere"))
        result = pickle.loads(pickle.dumps(portable)).run(look_around, pickle.loads(images), lambda name, text: None)
        finished = sorted(result.finished)
        return remote.unpack(job, pickle.loads(pickle.dumps(result))), finished


@pytest.mark.parametrize("reach", [True, False])
def test_the_work_sees_what_it_needs_and_its_artifacts_arrive(job, reach):
    value, sent = run_remotely(job, reach=reach)
    target = RunFolder(job.run).candidate(job.candidate.id, 30)
    assert value["weights"] == bytes(range(256)).hex()
    dataset = job.dataset()
    assert value["sum"] == [int(part.sum()) for part in (dataset.train, dataset.test, dataset.holdout)]
    assert (value["run"] == str(job.run)) == reach
    assert sent == ([] if reach else [f"candidates/{target.name}"])
    assert verify(target) is None
    assert (target / "detector/weights").read_text() == "thirty"
    assert not list(RunFolder(job.run).progress.glob(".driver-*"))
    assert reach or not Path(value["run"]).exists(), "a worker leaves nothing behind"


def test_images_are_put_once_whatever_the_rounds(job):
    stored = []
    remote = RemoteJobs(put=lambda images: stored.append(images) or len(stored))
    for updates in (30, 90):
        with remote:
            assert [remote.pack(replace(job, updates=updates))[1] for _ in range(3)] == [1, 1, 1]
    assert len(stored) == 1
    assert torch.equal(torch.from_numpy(stored[0]["train"]), job.dataset().train)


def test_progress_is_reported_while_the_work_runs(job):
    reported = []
    was_reported = threading.Event()

    def report(name: str, content: str) -> None:
        reported.append((name, content))
        was_reported.set()

    def work_until_reported(job: Job) -> bool:
        (RunFolder(job.run).progress / job.candidate.id).write_text(json.dumps({"update": 20}))
        return was_reported.wait(timeout=20)

    with RemoteJobs(put=lambda images: images) as remote:
        portable, images = remote.pack(job)
        portable = replace(portable, mark=portable.mark.with_name("elsewhere"))
        result = portable.run(work_until_reported, images, report)
        assert result.value, "nothing was reported within 20 seconds"
        remote.show_progress(job, *reported[0])
    assert reported == [(job.candidate.id, '{"update": 20}')]
    assert (RunFolder(job.run).progress / job.candidate.id).read_text() == '{"update": 20}'


def test_a_worker_with_other_versions_or_plugins_is_named(job):
    here = environment()
    assert here["torch"] == metadata.version("torch")
    with RemoteJobs(put=lambda images: images) as remote:
        portable, images = remote.pack(job)
        portable = replace(portable, environment={**here, "torch": "1.0", "dsv-fog": "0.3"})
        with pytest.raises(WorkerError) as caught:
            portable.run(look_around, images, lambda name, content: None)
    assert str(caught.value) == (
        "a worker has other plugins than this process: dsv-fog is missing there and 0.3 here; "
        f"torch is {here['torch']} there and 1.0 here; install the same on every machine"
    )
