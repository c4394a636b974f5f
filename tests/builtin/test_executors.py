from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from dsv_plugins import ExecutorPlugin, InputError, PluginSettingsError, TrainingError, build_registry
from dsv_plugins.builtin.executors import local, processes


def outcomes(name: str, work, jobs, **params):
    executor = build_registry().create(ExecutorPlugin, name, params)
    return {outcome.index: outcome for outcome in executor.run(work, jobs)}


@pytest.fixture(params=[True, False], ids=["forked", "started"])
def forks(request, monkeypatch):
    """Whether workers are forked, as on a Linux without a GPU."""
    if request.param and not local.can_fork():
        pytest.skip("workers are not forked here")
    processes.end_launchers()
    monkeypatch.setattr(local, "can_fork", lambda: request.param)
    yield request.param
    processes.end_launchers()


def double(job):
    if job == "bad":
        raise ValueError("this job is bad")
    return job * 2


def die_at_first(job):
    """Kills its own process the first time, as the system does when memory runs out."""
    marker = Path(job)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die_or_double(job):
    if job == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return job * 2


@pytest.mark.parametrize("name", ["serial", "processes"])
def test_every_job_has_its_outcome(name):
    found = outcomes(name, double, [1, "bad", 3, 4])
    assert sorted(found) == [0, 1, 2, 3]
    assert [found[index].value for index in (0, 2, 3)] == [2, 6, 8]
    assert isinstance(found[1].error, ValueError)
    assert "this job is bad" in str(found[1].error)


def test_processes_are_others_and_as_many_as_asked_for():
    found = [outcome.value for outcome in outcomes("processes", _process_and_times, range(6), workers=2).values()]
    assert os.getpid() not in {process for process, _, _ in found}
    at_once = [sum(began <= moment < ended for _, began, ended in found) for _, moment, _ in found]
    assert max(at_once) == 2


def _process_and_times(job):
    began = time.monotonic()
    time.sleep(0.3)
    return os.getpid(), began, time.monotonic()


def test_a_worker_that_is_killed_is_replaced(tmp_path):
    found = outcomes("processes", die_at_first, [str(tmp_path / str(index)) for index in range(3)], workers=2)
    assert all(outcome.error is None for outcome in found.values())
    assert len(found) == 3


def test_only_the_job_that_kills_its_workers_is_given_up():
    found = outcomes("processes", die_or_double, [1, "deadly", 3, 4], workers=2)
    assert isinstance(found[1].error, TrainingError)
    assert "died 3 times" in str(found[1].error)
    assert [found[index].value for index in (0, 2, 3)] == [2, 6, 8]


def die_of(job):
    if job == "exit":
        os._exit(3)
    os.kill(os.getpid(), job)


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (signal.SIGSEGV, "died 2 times, of SIGSEGV (Segmentation fault): a crash in the detector"),
        (signal.SIGABRT, "died 2 times, of SIGABRT (Aborted): a crash in the detector"),
        (signal.SIGKILL, "died 2 times, killed by SIGKILL, perhaps for want of memory; try fewer workers"),
        ("exit", "died 2 times, with exit code 3: something in the training ends the process"),
    ],
)
def test_a_death_is_told_with_its_cause(job, told):
    (found,) = outcomes("processes", die_of, [job], workers=1, retries=1).values()
    assert isinstance(found.error, TrainingError)
    assert told in str(found.error)


def close_all(job):
    os.closerange(3, 256)


def test_a_job_that_closes_the_connection_is_told_and_ends_no_other(forks):
    found = outcomes("processes", close_all, [0], workers=1, retries=0)
    assert str(found[0].error) == (
        "its worker process died once, cut off: something in the training closes files that are not its own"
    )


def print_on_a_full_disk(job):
    sys.stdout = open("/dev/full", "w")  # noqa: SIM115
    print("noise")  # which is written, or not, when the job has ended
    return job


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_answer_outlives_the_streams_of_its_worker():
    assert outcomes("processes", print_on_a_full_disk, [5], workers=1, retries=0)[0].value == 5


def raise_this(job):
    raise job


class UnpicklableError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("raised", "told"), [(SystemExit(3), "SystemExit: 3"), (KeyboardInterrupt(), "KeyboardInterrupt")]
)
def test_what_would_end_a_process_ends_a_job_only(raised, told):
    found = outcomes("processes", raise_this, [raised, ValueError("other")], workers=1)
    assert isinstance(found[0].error, TrainingError)
    assert str(found[0].error) == told
    assert isinstance(found[1].error, ValueError)


def raise_unpicklable(job):
    raise UnpicklableError(1, 2)


def test_an_error_that_cannot_travel_is_told():
    (found,) = outcomes("processes", raise_unpicklable, [0], workers=1).values()
    assert str(found.error) == "UnpicklableError: 1 and 2"


def test_a_job_that_cannot_travel_is_told():
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 1})
    with executor.warmed_up(functools.partial(double, threading.Lock())):
        found = {outcome.index: outcome for outcome in executor.run(double, [1, threading.Lock()])}
    assert found[0].value == 2
    assert str(found[1].error) == "cannot pickle '_thread.lock' object"


def sleep_if_positive(job):
    time.sleep(max(job, 0))
    return os.getpid()


def test_a_job_that_takes_too_long_is_stopped_and_the_others_go_on():
    started = time.monotonic()
    found = outcomes("processes", sleep_if_positive, [0, 600, 0, 0], workers=2, timeout=2)
    assert time.monotonic() - started < 60
    assert str(found[1].error).startswith("it took longer than 2 s; give it more time with --timeout")
    assert not any(found[index].error for index in (0, 2, 3))


def print_everywhere(job):
    print("printed")
    os.system("echo from a child")
    return input() if job else 0


def test_a_job_cannot_reach_the_standard_streams_of_the_driver(capfd):
    processes.end_launchers()  # it has the streams of an earlier test
    found = outcomes("processes", print_everywhere, [0, 1, 0], workers=1)
    assert isinstance(found[1].error, EOFError)
    assert found[2].value == 0
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("printed") == printed.err.count("from a child") == 3


def test_no_more_processes_than_jobs(tmp_path, forks):
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 4}).limited(jobs=2)
    assert executor.parallelism == 2
    with contextlib.suppress(InputError), executor.warmed_up(functools.partial(_note_process, tmp_path)):
        _wait_until(lambda: len(list(tmp_path.iterdir())) == (1 if forks else 2))
        time.sleep(0.5)  # there would be more by now
        assert len(workers_of_this_process()) == (0 if forks else 2)
        raise InputError("no matter what")
    assert not launchers()
    assert not workers_of_this_process()
    jobs = list(executor.limited(jobs=9).run(_process_and_pause, [1]))
    assert len(jobs) == 1
    assert len(workers_of_this_process()) == (0 if forks else 1)


def _process_and_pause(job):
    time.sleep(0.3)
    return os.getpid()


def launchers() -> list[psutil.Process]:
    """The processes of this one that start workers."""
    return [child for child in psutil.Process().children() if "launch(" in " ".join(child.cmdline())]


def workers_of_this_process() -> list[psutil.Process]:
    """What launchers started: all but the process in which multiprocessing counts semaphores, if there is one."""
    started = [child for launcher in launchers() for child in launcher.children() if child.status() != "zombie"]
    return [child for child in started if "resource_tracker" not in " ".join(child.cmdline())]


def test_a_pool_whose_idle_processes_are_killed_goes_on(forks):
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
    for _ in range(2):
        assert [outcome.error for outcome in executor.run(double, [1, 2, 3])] == [None] * 3
        for process in launchers() if forks else workers_of_this_process():
            process.kill()


def change_torch(job):
    import torch

    before = str(torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    torch.backends.mkldnn.enabled = False
    return before


@pytest.mark.skipif(not local.can_fork(), reason="workers are not forked here")
def test_what_a_plugin_does_to_a_library_ends_with_its_job():
    found = outcomes("processes", change_torch, range(3), workers=1)
    assert {outcome.value for outcome in found.values()} == {"torch.float32"}


UNGUARDED = """
import os
from dsv_plugins import ExecutorPlugin, build_registry

print("the script runs")

def work(job):
    return job * FACTOR

FACTOR = 2
executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
print(sorted(outcome.value for outcome in executor.run(work, [1, 2])))
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path, forks):
    (tmp_path / "script.py").write_text(UNGUARDED)
    completed = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True)
    assert (completed.stdout, completed.stderr) == ("the script runs\n[2, 4]\n", "")


def test_workers_die_with_a_killed_parent():
    script = (
        "import time; from dsv_plugins import ExecutorPlugin, build_registry\n"
        "def work(job):\n    import os, time; open(job, 'w').write(str(os.getpid())); time.sleep(120)\n"
        "import sys\n"
        "list(build_registry().create(ExecutorPlugin, 'processes', {'workers': 1}).run(work, [sys.argv[1]]))\n"
    )
    marker = Path(f"/tmp/dsv-worker-{os.getpid()}-{time.monotonic_ns()}")
    # The script has no `__main__` guard, and its work is defined in it: both must be fine.
    parent = subprocess.Popen([sys.executable, "-c", script, str(marker)])
    try:
        deadline = time.monotonic() + 60
        while not (marker.exists() and marker.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        worker = psutil.Process(int(marker.read_text()))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        worker.wait(timeout=20)
    finally:
        marker.unlink(missing_ok=True)
        parent.kill()


def test_workers_are_up_before_there_is_work(tmp_path, forks):
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
    with executor.warmed_up(functools.partial(_note_process, tmp_path)):
        _wait_until(lambda: len(list(tmp_path.iterdir())) == (1 if forks else 2))
        prepared = {int(file.name) for file in tmp_path.iterdir()}
        done = {outcome.value for outcome in executor.run(_process_and_parent, range(4))}
    assert {process.pid for process in (launchers() if forks else workers_of_this_process())} == prepared
    assert {parent for _, parent in done} == {launcher.pid for launcher in launchers()}
    if forks:
        assert len(done) == 4, "each job has a process of its own"
    else:
        assert {process for process, _ in done} == prepared
    assert len(list(tmp_path.iterdir())) == len(prepared), "nothing is imported twice"
    assert all(psutil.pid_exists(process) for process in prepared), "the next study finds them ready"


def _process_and_parent(job):
    time.sleep(0.3)
    return os.getpid(), os.getppid()


def test_workers_that_die_or_are_late_are_told_and_replaced_however_they_were_started(tmp_path, forks):
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
    with executor.warmed_up(int):
        found = {outcome.index: outcome for outcome in executor.run(die_of, ["exit", signal.SIGSEGV, 0])}
        assert "3 times, with exit code 3" in str(found[0].error)
        assert "3 times, of SIGSEGV" in str(found[1].error)
        assert found[2].error is None
        assert [each.error for each in executor.run(die_at_first, [str(tmp_path / name) for name in "abc"])] == [
            None
        ] * 3
        for worker in workers_of_this_process():
            worker.kill()
        assert sorted(outcome.value for outcome in executor.run(double, [1, 2, 3])) == [2, 4, 6]
        late = list(executor.limited(seconds=1.0).run(time.sleep, [60]))
        assert str(late[0].error).startswith("it took longer than 1 s")
    assert not [child for launcher in launchers() for child in launcher.children() if child.status() == "zombie"]
    processes.end_launchers()
    assert not psutil.Process().children(recursive=True)


def leave_a_child_that_has_all_files(job):
    """As a process that loads images: a fork without exec, so that it has the pipes of its parent."""
    if os.fork() == 0:
        time.sleep(600)
    if job == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def test_a_child_of_a_training_hides_no_death(forks):
    started = time.monotonic()
    found = outcomes("processes", leave_a_child_that_has_all_files, ["deadly", 1], workers=2, retries=0)
    assert "died once, killed by SIGKILL" in str(found[0].error)
    assert found[1].value == 1
    assert time.monotonic() - started < 120


@pytest.mark.skipif(not local.can_fork(), reason="workers are not forked here")
@pytest.mark.parametrize(
    "prepare", ["import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()", "os._exit(5)"]
)
def test_what_must_not_be_forked_harms_no_job(prepare):
    processes.end_launchers()
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
    with executor.warmed_up(functools.partial(exec, f"import os; {prepare}")):
        assert sorted(outcome.value for outcome in executor.run(double, [1, 2, 3])) == [2, 4, 6]
    processes.end_launchers()


def test_a_launcher_that_is_killed_takes_no_job_along(tmp_path, forks):
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
    with executor.warmed_up(int):
        running = executor.run(functools.partial(_note_process_and_pause_once, tmp_path), range(6))
        assert next(running).error is None
        _wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        for process in launchers():
            process.kill()
        _wait_until(lambda: not any(_is_running(int(file.name)) for file in tmp_path.iterdir()))
        assert [outcome.error for outcome in running] == [None] * 5
        assert [outcome.error for outcome in executor.run(double, [1, 2])] == [None] * 2


def _note_process_and_pause_once(folder, job):
    if job and len(list(folder.iterdir())) < 2:
        _note_process_and_pause_for_long(folder)


def _is_running(process):
    return psutil.pid_exists(process) and psutil.Process(process).status() != "zombie"


def test_what_fails_early_does_not_wait_for_workers_that_are_starting(tmp_path, forks):
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
    warmed_up = executor.warmed_up(functools.partial(_note_process_and_pause_for_long, tmp_path))
    with contextlib.suppress(InputError), warmed_up:
        _wait_until(lambda: list(tmp_path.iterdir()))
        raise InputError("a setting is wrong")
    _wait_until(lambda: not any(_is_running(int(file.name)) for file in tmp_path.iterdir()))


def _note_process(folder):
    (folder / str(os.getpid())).touch()
    time.sleep(0.5)  # or one worker is quick enough to prepare for both


def _note_process_and_pause_for_long(folder):
    _note_process(folder)
    time.sleep(600)


def _wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupt_reaches_no_worker_however_early(forks):
    """A Ctrl-C goes to all processes in the group of the driver."""
    executor = build_registry().create(ExecutorPlugin, "processes", {"workers": 2})
    with executor.warmed_up(int):
        assert [os.getpgid(launcher.pid) != os.getpgid(0) for launcher in launchers()] == [True]
        groups = [outcome.value for outcome in executor.run(_group, range(3))]
        assert groups == [os.getpgid(launcher.pid) for launcher in launchers()] * 3


def _group(job):
    return os.getpgid(0)


@pytest.mark.parametrize("wrong", [{"augmentation": "cutpast"}, {"selector": "dvs"}, {"detector": "resnet"}])
def test_a_wrong_name_is_refused_before_anything_is_imported_or_started(wrong):
    script = (
        "import sys; from pathlib import Path; from dsv_plugins import Study, UnknownPluginError\n"
        f"try: Study(Path('train'), Path('test'), **{wrong!r}).run()\n"
        "except UnknownPluginError as error: print('torch' in sys.modules, 'cloudpickle' in sys.modules, error)"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert completed.stdout.startswith("False False "), completed.stderr
    assert next(iter(wrong.values())) in completed.stdout


def test_a_study_starts_its_workers_before_it_imports_torch(tmp_path):
    script = """
import sys, contextlib
from pathlib import Path
from dsv_plugins import Executor, ExecutorPlugin, Study, hookimpl

class Early(Executor):
    def run(self, work, jobs):
        raise NotImplementedError

    @contextlib.contextmanager
    def warmed_up(self, prepare):
        print("torch" in sys.modules)
        prepare()
        print("torch" in sys.modules, "timm" in sys.modules)
        yield

class Plugins:
    @hookimpl
    def executor(self):
        return ExecutorPlugin("early", Early, "Prints what is imported")

Study(Path("no-images"), Path("no-images-either"), executor="early", plugins=(Plugins(),)).run()
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert completed.stdout == "False\nTrue True\n", completed.stderr
    assert completed.stderr.splitlines()[-1].startswith("dsv_plugins.errors.InputError: no-images"), completed.stderr


def test_wrong_settings():
    with pytest.raises(PluginSettingsError, match="workers is 0"):
        build_registry().create(ExecutorPlugin, "processes", {"workers": 0})
    with pytest.raises(PluginSettingsError, match="'workers'"):
        build_registry().create(ExecutorPlugin, "serial", {"workers": 2})
