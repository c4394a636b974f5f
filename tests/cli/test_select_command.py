"""The commands that do the work, as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil

import pytest
from conftest import DETECTOR, TINY, dsv, dsv_here, tiny_select


def test_the_end_shows_the_table_the_choice_and_what_to_do_next(finished):
    _, run, output = finished
    assert len(re.findall(r"patch_size=0\.\d+", output.split("candidate ")[1])) >= 3
    assert re.search(r"^dsv chooses cutpaste\(patch_size=0\.\d+\), loss ", output, re.MULTILINE)
    assert f"judge new images with: dsv score {run}" in output


def test_json_is_one_object_and_progress_goes_elsewhere(finished, tmp_path):
    task, run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    completed = dsv(*tiny_select(task, tmp_path / "run", "--json", "--selector", "dsv,mc"))
    result = json.loads(completed.stdout)
    assert set(result["selected"]) == {"dsv", "mc"}
    assert set(result["selected"]["dsv"]) == {"augmentation", "params", "loss"}
    assert len(result["candidates"]) == 3
    assert set(result["candidates"][0]) == {
        *("id", "augmentation", "params", "status", "reason", "updates", "losses", "seconds"),
        *("training_accuracy", "concentration"),
    }
    assert result["run"] == str(tmp_path / "run")


def test_losses_for_which_a_narrow_terminal_has_no_room_are_named(finished, tmp_path, monkeypatch):
    task, run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    arguments = tiny_select(task, tmp_path / "run", "--selector", "dsv,base,std,mmd,energy")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = dsv_here(*arguments).stdout
    table = [line for line in narrow.splitlines() if line.startswith(("candidate", "cutpaste("))]
    assert max(map(len, table)) <= 80
    assert len(table) == 4
    shown = next(line for line in narrow.splitlines() if line.startswith("candidate")).split()
    (remark,) = (line for line in narrow.splitlines() if line.startswith("no room"))
    assert {*shown, *remark.replace(",", " ").replace(":", " ").split()} >= {"dsv", "base", "std", "mmd", "energy"}
    monkeypatch.setenv("COLUMNS", "200")
    assert "no room" not in dsv_here(*arguments).stdout


def test_train_and_test_folders_and_a_config_file(finished, tmp_path):
    task, run, _ = finished
    config = tmp_path / "config.yaml"
    config.write_text(
        f"grid: {{patch_size: [0.02, 0.08, 0.32]}}\ndetector: {DETECTOR}\ndetector_params: {json.dumps(TINY)}\n"
        f"selector: dsv\nout: {tmp_path / 'run'}\n"
    )
    completed = dsv_here("select", "--train", task / "train/good", "--test", task / "test", "--config", config)
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "run/selection.json").read_bytes() == (run / "selection.json").read_bytes()


def test_dry_run_plans_and_keeps_nothing(finished, tmp_path):
    task, _, _ = finished
    completed = dsv_here(*tiny_select(task, tmp_path / "run", "--dry-run"))
    assert completed.returncode == 0, completed.stderr
    assert "3 candidates of 12 updates, after 8 that they share," in completed.stdout
    assert re.search(
        r"^about \d+ s for each, \d+\.\d min in all \(from the first one, not kept\)$", completed.stdout, re.MULTILINE
    )
    assert not (tmp_path / "run").exists()
    plan = json.loads(dsv_here(*tiny_select(task, tmp_path / "run", "--dry-run", "--json")).stdout)
    assert [candidate["params"]["patch_size"] for candidate in plan["candidates"]] == [0.02, 0.08, 0.32]
    # Three candidates, one after the other, after what they share.
    assert plan["seconds_per_candidate"] > 0
    assert plan["seconds"] > 3 * plan["seconds_per_candidate"]


@pytest.mark.parametrize("spelling", ["patch_size=0.01:0.64:log", "angle=0:90 patch_size=0.01:0.64:log"])
def test_a_range_is_a_grid_of_nine_points(finished, tmp_path, spelling):
    task, _, _ = finished
    plan = json.loads(dsv_here(*tiny_select(task, tmp_path / "run", "--grid", spelling, "--dry-run", "--json")).stdout)
    sizes = sorted({candidate["params"]["patch_size"] for candidate in plan["candidates"]})
    assert sizes == pytest.approx([0.01 * 64 ** (step / 8) for step in range(9)])
    assert plan["trials"] == 9 ** len(spelling.split())


KINDS = """
from dsv_plugins import AugmentationPlugin, Range, hookimpl

class Kind:
    def __init__(self, kind, count, gain=0.5):
        self.count = count

    def __call__(self, images, *, generator):
        return images * (1 / self.count)

@hookimpl
def augmentation():
    return AugmentationPlugin("kinds", Kind, space={"kind": ["thin", "thick"], "count": Range(2, 9, integer=True)})
"""


def test_values_that_a_plugin_does_not_know_are_refused_before_anything_starts(finished, tmp_path):
    task, _, _ = finished
    (tmp_path / "kinds.py").write_text(KINDS)

    def planned(grid):
        arguments = (
            "--plugins",
            tmp_path / "kinds.py",
            "--augmentation",
            "kinds",
            "--grid",
            grid,
            "--dry-run",
            "--json",
        )
        return dsv_here(*(each for each in tiny_select(task, tmp_path / "run", *arguments)))

    refused = planned("kind=purple")
    assert refused.returncode == 2
    assert refused.stderr == (
        "dsv select: grid: kind of kinds cannot have these values: 'purple' is none of thin, thick\n"
    )
    assert "gain of kinds cannot have these values: 'a' is no number" in planned("kind=thin gain=a,b").stderr
    plan = json.loads(planned("kind=thin count=2:5").stdout)
    assert [candidate["params"]["count"] for candidate in plan["candidates"]] == [2, 3, 4, 5]


def test_a_range_in_a_config_file(finished, tmp_path):
    task, _, _ = finished
    (tmp_path / "config.yaml").write_text("grid: {patch_size: 0.01:0.64, aspect: [1.0]}\n")
    detector = ["--detector", DETECTOR, "--detector-params", json.dumps(TINY)]
    arguments = ["select", task, "--config", tmp_path / "config.yaml", *detector]
    plan = json.loads(dsv_here(*arguments, "--dry-run", "--json").stdout)
    assert len(plan["candidates"]) == 9
    assert plan["candidates"][-1]["params"]["patch_size"] == 0.64


def test_scores_of_new_images_are_those_of_the_run(finished, tmp_path):
    task, run, _ = finished
    rows = list(csv.DictReader(io.StringIO(dsv_here("score", run, task / "test").stdout)))
    assert len(rows) == 8
    some = json.loads(dsv_here("score", run, task / "test/bar/200.png", task / "test/good", "--json").stdout)
    by_file = {row["file"]: float(row["score"]) for row in rows}
    assert len(some) == 5
    for entry in some:
        assert entry["score"] == pytest.approx(by_file[entry["file"]], rel=1e-5)
    completed = dsv_here("score", run, task / "test", "--out", tmp_path / "scores.csv")
    assert completed.stdout == ""
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 9
    completed = dsv_here("score", run, task / "test", "--out", tmp_path / "missing" / "scores.csv")
    assert completed.returncode == 2
    assert completed.stderr.endswith("scores.csv cannot be written, since its folder is not there; make it first\n")


def test_a_bad_image_to_score_is_named_or_skipped(finished, tmp_path):
    task, run, _ = finished
    shutil.copytree(task / "test/good", tmp_path / "new")
    (tmp_path / "new/broken.png").write_bytes(b"no image")
    completed = dsv_here("score", run, tmp_path / "new")
    assert (completed.returncode, completed.stdout) == (2, "")
    *_, last = completed.stderr.splitlines()
    assert re.fullmatch(r"dsv score: .*broken\.png cannot be read as an image .*--skip-bad", last)
    completed = dsv_here("score", run, tmp_path / "new", "--skip-bad")
    assert completed.returncode == 0
    assert "left out" in completed.stderr
    assert len(completed.stdout.splitlines()) == 5


def bad_call(*arguments: object) -> str:
    completed = dsv_here(*arguments)
    assert completed.returncode == 2, (completed.stdout, completed.stderr)
    assert len(completed.stderr.splitlines()) == 1
    assert "Traceback" not in completed.stderr
    return completed.stderr


def test_wrong_calls_are_one_line(task, tmp_path):
    run = tmp_path / "run"
    assert "--train" in bad_call("select", "--out", run)
    assert "not both" in bad_call("select", task, "--train", task)
    assert "did you mean 'cutpaste'" in bad_call(*tiny_select(task, run, "--augmentation", "cutpast"))
    for wrong in ("patch_size=1:2:lin", "patch_size=a:2", "patch_size=1:2:log:3"):
        assert "not of the form low:high" in bad_call("select", task, "--grid", wrong, "--out", run)
    assert "is empty: low 0.5 is above high 0.1" in bad_call(
        "select", task, "--grid", "patch_size=0.5:0.1", "--out", run
    )
    assert "not of the form name=value" in bad_call("select", task, "--grid", "patch_size", "--out", run)
    assert "does not take 'depth'" in bad_call("select", task, "--detector-params", "{depth: 3}", "--out", run)
    assert "no folder named train and none named test;" in bad_call("select", tmp_path, "--out", run)
    (tmp_path / "half" / "train" / "good").mkdir(parents=True)
    assert "half has no folder named test;" in bad_call("select", tmp_path / "half", "--out", run)
    assert "is not a folder" in bad_call("select", tmp_path / "missing", "--out", run)
    assert "holds no chosen model" in dsv_here("score", tmp_path, task / "test").stderr


def test_bad_images_are_one_line_or_skipped(task, tmp_path):
    (task / "train/good/000.png").write_bytes(b"no image")
    line = bad_call(*tiny_select(task, tmp_path / "run"))
    assert re.search(
        r"000\.png cannot be read as an image .*; remove it, or leave such files out with --skip-bad", line
    )
    completed = dsv_here(*tiny_select(task, tmp_path / "run", "--skip-bad", "--json"))
    assert completed.returncode == 0, completed.stderr
    assert any("000.png" in note for note in json.loads(completed.stdout)["notes"])
