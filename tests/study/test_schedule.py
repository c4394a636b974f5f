"""Executors that do not keep to their interface are named in one line."""

from __future__ import annotations

import json
import sys

import pytest
from brightness import SETTINGS, BrightnessPlugins, grey_images
from conftest import TINY, dsv, make_task, tiny_select

from dsv_plugins import Executor, ExecutorPlugin, InputError, Outcome, PluginError, Study, hookimpl, select


def nothing(outcomes):
    return iter(())


def none_at_all(outcomes):
    return None


def yield_none(outcomes):
    yield None


def out_of_range(outcomes):
    yield Outcome(7, 1.0)


def negative(outcomes):
    yield Outcome(-1, 1.0)


def no_number(outcomes):
    yield Outcome([0], 1.0)


def twice(outcomes):
    first = next(outcomes)
    yield first
    yield first


def no_value(outcomes):
    yield Outcome(0)


def leave_the_last_out(outcomes):
    yield from list(outcomes)[:-1]


def exits(outcomes):
    sys.exit(3)
    yield


def raises(outcomes):
    yield next(outcomes)
    raise RuntimeError("the cluster is gone")


class Bad(Executor):
    def __init__(self, spoil):
        self.spoil = spoil

    def run(self, work, jobs):
        return self.spoil(Outcome(index, work(job)) for index, job in enumerate(jobs))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (nothing, "gave no outcome for 3 of 3 jobs"),
        (none_at_all, "failed: TypeError: 'NoneType' object is not iterable"),
        (yield_none, "gave no outcome for 3 of 3 jobs"),
        (out_of_range, "gave an outcome of job 7, which is none that is left"),
        (negative, "gave an outcome of job -1, which is none that is left"),
        (no_number, "gave an outcome of job [0], which is none that is left"),
        (twice, "gave an outcome of job 0, which is none that is left"),
        (no_value, "gave None as what a job returned"),
        (leave_the_last_out, "gave no outcome for 1 of 3 jobs"),
        (exits, "called sys.exit(3)"),
        (raises, "failed: RuntimeError: the cluster is gone"),
    ],
)
def test_an_executor_is_named(tmp_path, spoil, told):
    class Plugins(BrightnessPlugins):
        @hookimpl
        def executor(self):
            return ExecutorPlugin("bad", lambda: Bad(spoil))

    settings = {**SETTINGS, "executor": "bad", "out": tmp_path / "run", "plugins": (Plugins(),)}
    with pytest.raises(PluginError) as caught:
        select(grey_images(12, 0), grey_images(6, 1), **settings)
    assert str(caught.value) == f"executor 'bad' ({Plugins.__qualname__}) {told}"


def test_a_training_that_takes_too_long_fails_in_any_executor(tmp_path):
    """The detector tells of its progress, so that even the serial executor keeps to the limit."""
    task = make_task(tmp_path / "parts")
    slow = json.dumps({**TINY, "updates": 100_000})
    arguments = tiny_select(task, tmp_path / "run", "--detector-params", slow, "--timeout", 1)
    completed = dsv(*arguments)
    assert completed.returncode == 1
    assert completed.stderr == (
        "dsv select: every candidate failed; the first: "
        "it took longer than 1 s; give it more time with --timeout, or fewer updates\n"
    )


def test_a_timeout_is_above_zero_and_no_part_of_the_identity(tmp_path):
    with pytest.raises(InputError, match="timeout is -1; give a number of seconds above 0"):
        Study(tmp_path, tmp_path, timeout=-1)
    assert Study(tmp_path, tmp_path, timeout=9).identity() == Study(tmp_path, tmp_path).identity()


def test_more_workers_than_candidates_are_not_planned(tmp_path):
    task = make_task(tmp_path / "parts")
    many = ["--executor", "processes", "--workers", 8, "--dry-run", "--json"]
    completed = dsv(*tiny_select(task, tmp_path / "run", *many))
    assert json.loads(completed.stdout)["workers"] == 3, completed.stderr
