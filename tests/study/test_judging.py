"""Losses to the last digit, however many threads a machine or a user grants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

JUDGE = """
import sys, torch, types
from dsv_plugins import Candidate, Embeddings, Evaluation, Scores, SelectorPlugin, build_registry, hookimpl
from dsv_plugins.study.judging import judge_pool, losses_by


class Total:
    # Of more than 32,768 numbers: torch adds each thread's part up, and then the parts.
    def losses(self, evaluations):
        return [float(each.embeddings.test.sum()) for each in evaluations]


plugin = types.ModuleType("total")
plugin.selector = hookimpl(lambda: SelectorPlugin("total", Total, "The sum of all embeddings"), specname="selector")
registry = build_registry([plugin])
granted = torch.get_num_threads()
generator = torch.Generator().manual_seed(0)
train, augmented, test = (torch.randn(rows, 500, generator=generator) for rows in (150, 150, 200))
pool = [Evaluation(Candidate("cutout", {}), Embeddings(train, augmented, test), Scores(train[:, 0], test[:, 0]))]
verdicts = judge_pool(registry, ["total", "dsv", "cosine"], pool, seed=0, confidence=True, note=sys.exit)
assert verdicts["total"].losses == losses_by(registry, "total", pool)
assert torch.get_num_threads() == granted, "the others get their threads back"
print(granted, {name: (verdict.losses, verdict.wins) for name, verdict in verdicts.items()})
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one thread is all there is")
def test_the_number_of_threads_changes_no_digit() -> None:
    def judged(threads: int) -> tuple[str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        run = subprocess.run([sys.executable, "-c", JUDGE], env=environment, capture_output=True, text=True, check=True)
        granted, _, losses = run.stdout.partition(" ")
        return granted, losses

    (one, expected), (two, found) = judged(1), judged(2)
    assert (one, two) == ("1", "2")
    assert found == expected
