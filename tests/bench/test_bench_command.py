"""`dsv bench` as a user runs it: on two tiny tasks, killed and resumed, with a broken task, without labels."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DETECTOR, TINY, dsv, dsv_here, make_task

from dsv_plugins import Study
from dsv_plugins.cli import main

SIZES = [0.02, 0.08, 0.32]


def tiny_bench(tasks: Path, out: Path, *more: object) -> list[object]:
    """Two augmentations with three candidates each, trained one after the other in this process."""
    grid = f"patch_size={','.join(map(str, SIZES))}"
    options = ["--augmentations", "cutout,cutpaste", "--grid", grid]
    options += ["--detector", DETECTOR, "--detector-params", json.dumps(TINY)]
    options += ["--holdout", 0.4, "--thin", "0.34,0.2", "--brighten", 1.2]
    return ["bench", tasks, *options, "--executor", "serial", "--out", out, *more]


def finished_trainings(out: Path) -> list[str]:
    events = [json.loads(line) for file in out.glob("*/*/journal.jsonl") for line in file.read_text().splitlines()]
    return [event["candidate"] for event in events if event["event"] == "finished"]


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
    """The tasks, the folder of a benchmark on them that was killed and resumed, and the output of the second run."""
    folder = tmp_path_factory.mktemp("bench")
    for name in ("bolt", "nut"):
        make_task(folder / "tasks" / name)
    (folder / "tasks/nut/train/good/broken.png").write_bytes(b"no image")
    arguments = tiny_bench(folder / "tasks", folder / "out")
    running = subprocess.Popen(
        [sys.executable, "-m", "dsv_plugins", *map(str, arguments)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(finished_trainings(folder / "out")) < 5:
        assert time.monotonic() < deadline, "it did not happen in time"
        assert running.poll() is None, "it ended before it was killed"
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    return folder / "tasks", folder / "out", dsv(*arguments)


def test_a_killed_benchmark_resumes_and_trains_nothing_twice(benched) -> None:
    tasks, out, completed = benched
    assert completed.returncode == 0, completed.stderr
    trainings = finished_trainings(out)
    # Two tasks with two augmentations, each three candidates and the random run; nut's images differ by none of bolt's.
    assert len(trainings) == 2 * 2 * 4
    assert re.search(r"about \d+:\d\d:\d\d left", completed.stdout)
    again = dsv_here(*tiny_bench(tasks, out, "--json"))
    assert again.returncode == 0, again.stderr
    assert finished_trainings(out) == trainings
    assert json.loads(again.stdout) == json.loads((out / "bench.json").read_text())


def test_the_tables_are_shown_and_written(benched) -> None:
    _, out, completed = benched
    for title in ("Average AUC", "Average rank", "Quality of the choices", "Wilcoxon", "changed test sets"):
        assert title in completed.stdout
    assert "all together" in completed.stdout
    page = (out / "tables.md").read_text()
    assert "## How well the losses follow what they approximate" in page
    assert "left out" in page.split("## Notes")[1]
    assert "broken.png" in page.split("## Notes")[1]
    assert (out / "figures.html").stat().st_size > 1_000_000, "the library is in the page"
    assert (out / "tables.csv").read_text().startswith("table,row,column,value\n")


def test_the_cells_are_complete_and_consistent(benched) -> None:
    _, out, _ = benched
    content = json.loads((out / "bench.json").read_text())
    cells = {(cell["task"], cell["augmentation"]): cell for cell in content["cells"]}
    assert len(cells) == 2 * 3
    for (task, augmentation), cell in cells.items():
        pool = [candidate["auc"] for candidate in cell["candidates"]]
        assert len(pool) == (6 if augmentation == "all together" else 3)
        assert cell["auc"]["best"] == max(pool)
        for method, choice in cell["choices"].items():
            losses = cell["losses"][method]
            assert losses[choice] == min(losses), (task, augmentation, method)
            assert cell["auc"][method] == pool[choice]
    alone, pooled = cells["bolt", "cutout"], cells["bolt", "all together"]
    assert pooled["candidates"][:3] == alone["candidates"]
    # A selector that judges alone has the same losses in any pool, one that compares candidates has not.
    assert pooled["losses"]["dsv"][:3] == alone["losses"]["dsv"]
    assert pooled["losses"]["hits"][:3] != alone["losses"]["hits"]
    assert "Random" in alone["auc"]
    assert "Random" not in pooled["auc"]


def test_the_choices_are_judged_again_on_changed_test_sets(benched) -> None:
    _, out, _ = benched
    content = json.loads((out / "bench.json").read_text())
    variations = ["full", "34% anomalies", "20% anomalies", "normals × 1.2"]
    assert len(content["variations"]) == len(variations) * 2 * 3
    methods = {row["method"]: row for row in content["tables"]["variations"]}
    assert {"Average", "dsv", "pu-auc", "best"} <= set(methods)
    alone = [cell for cell in content["cells"] if cell["augmentation"] != "all together"]
    for method, row in methods.items():
        assert list(row) == ["method", *variations]
        assert row["full"] == pytest.approx(sum(cell["auc"][method] for cell in alone) / len(alone))
    # Thinning hides anomalies from the selectors, and leaves the AUCs of the candidates as they are.
    assert methods["best"]["full"] == methods["best"]["20% anomalies"]
    assert methods["best"]["full"] != methods["best"]["normals × 1.2"]


def test_the_random_run_draws_from_the_range_of_the_grid_outside_the_pool(benched) -> None:
    _, out, _ = benched
    evaluations = list((out / "bolt/cutout-0-random/candidates").glob("*/evaluation.json"))
    assert len(evaluations) == 1
    assert json.loads(evaluations[0].read_text())["candidate"]["params"] == {"patch_size": [0.02, 0.32]}


def test_the_report_of_a_cell_shows_the_aucs(benched, tmp_path) -> None:
    _, out, _ = benched
    cell = next(cell for cell in json.loads((out / "bench.json").read_text())["cells"] if cell["task"] == "bolt")
    aucs = json.loads((out / "bolt" / f"{cell['augmentation']}-0" / "aucs.json").read_text())
    assert sorted(aucs["candidates"].values()) == sorted(candidate["auc"] for candidate in cell["candidates"])
    assert aucs["chosen"]["dsv"] == cell["auc"]["dsv"]
    completed = dsv_here("report", out / "bolt" / f"{cell['augmentation']}-0", "--out", tmp_path / "report.html")
    assert completed.returncode == 0, completed.stderr
    assert "AUC of the choice" in (tmp_path / "report.html").read_text()


def test_losses_are_the_same_whatever_the_test_folders_are_called(benched, tmp_path) -> None:
    tasks, out, _ = benched
    (tmp_path / "unlabelled").mkdir()
    for kind in ("good", "bar"):
        for image in (tasks / "bolt/test" / kind).iterdir():
            shutil.copy(image, tmp_path / "unlabelled" / f"{kind == 'good'}-{image.name}")
    study = Study(
        tasks / "bolt/train/good",
        tmp_path / "unlabelled",
        augmentation="cutout",
        grid={"patch_size": SIZES},
        detector=DETECTOR,
        detector_params=TINY,
        selector=["dsv", "mc", "pu-auc"],
        holdout=0.4,
        executor="serial",
        out=tmp_path / "run",
    )
    entries = study.run().candidates
    cell = next(
        cell
        for cell in json.loads((out / "bench.json").read_text())["cells"]
        if (cell["task"], cell["augmentation"]) == ("bolt", "cutout")
    )
    for selector in ("dsv", "mc", "pu-auc"):
        assert [entry.losses[selector] for entry in entries] == cell["losses"][selector]


def test_a_failing_task_leaves_the_others(benched, tmp_path) -> None:
    tasks, out, _ = benched
    shutil.copytree(out, tmp_path / "out")
    unlabelled = make_task(tmp_path / "washer")
    (unlabelled / "test/good").rename(unlabelled / "test/mixed")
    empty = make_task(tmp_path / "empty")
    shutil.rmtree(empty / "train/good")
    arguments = tiny_bench(tasks, tmp_path / "out", "--json")
    completed = dsv_here(*arguments[:2], unlabelled, empty, *arguments[2:])
    assert completed.returncode == 1
    content = json.loads(completed.stdout)
    assert {cell["task"] for cell in content["cells"]} == {"bolt", "nut"}
    reasons = content["failures"]
    assert "put normal test images into 'good'" in reasons["washer, seed 0"]
    assert "holds no images" in reasons["empty, cutout, seed 0"]
    assert "an augmentation is missing" in reasons["empty, all together, seed 0"]
    assert "Traceback" not in completed.stderr


def test_labels_that_are_missing_everywhere_are_one_line(task, tmp_path, capsys) -> None:
    (task / "test/good").rename(task / "test/mixed")
    assert main([*map(str, tiny_bench(task, tmp_path / "out"))]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "takes its labels from folder names" in errors
    assert not finished_trainings(tmp_path / "out")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--augmentations", "cutot"], "did you mean"),
        (["--detector-params", "{depth: 3}"], "does not take 'depth'"),
        (["--seeds", "0,1,0"], "seeds is 0,1,0; give whole numbers of at least 0, each once"),
        (["--seeds", "3,-1"], "seeds is 3,-1"),
        (["--seeds", ","], "seeds is empty"),
        (["--thin", "0.3,1.2"], "thin has the share 1.2"),
        (["--brighten", "0"], "brighten is 0.0"),
    ],
)
def test_wrong_settings_are_one_line_at_once(task, tmp_path, more, message, capsys) -> None:
    assert main([*map(str, tiny_bench(task, tmp_path / "out", *more))]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


FORMS = {"auc": ".3f", "rank": ".2f", "choices": ".3f", "wilcoxon": ".2g", "variations": ".3f"}
TITLES = {
    "auc": "Average AUC",
    "rank": "Average rank",
    "wilcoxon": "p-values of the Wilcoxon signed-rank test",
    "variations": "Average AUC on changed test sets",
}


def shown_values(output: str, title: str, methods: list[str]) -> dict[str, list[str]]:
    """The values of each row under a title, over all parts of the table."""
    values: dict[str, list[str]] = {}
    inside = False
    for line in output.splitlines():
        label = max((method for method in methods if line.startswith(f"{method} ")), key=len, default=None)
        if line.strip() == title:
            inside = True
        elif inside and label is not None:
            values.setdefault(label, []).extend(line[len(label) :].split())
        elif line.strip() and not line.startswith("method "):
            inside = False
    return values


def as_shown(value: object, form: str) -> str:
    return "-" if value is None else format(value, form) if isinstance(value, float) else str(value)


def test_tables_fit_eighty_columns_with_all_selectors_and_four_augmentations(benched, tmp_path) -> None:
    tasks, out, _ = benched
    shutil.copytree(out / "bolt", tmp_path / "out/bolt")
    arguments = tiny_bench(tasks / "bolt", tmp_path / "out", "--augmentations", "cutout,cutavg,cutdiff,cutpaste")
    completed = dsv(*arguments, COLUMNS="80")
    assert completed.returncode == 0, completed.stderr
    output = completed.stdout[completed.stdout.index("Average AUC") : completed.stdout.index("results in ")]
    assert max(map(len, output.splitlines())) <= 80
    tables = json.loads((tmp_path / "out/bench.json").read_text())["tables"]
    pools = ["cutout", "cutavg", "cutdiff", "cutpaste", "all together"]
    methods = [row["method"] for row in tables["wilcoxon"]]
    selectors = {"dsv", "discordance", "separability", "dsv-reference", "base", "mmd", "std", "mc", "select", "hits"}
    assert set(methods) >= {"Average", "Random", "cosine", "energy", "pu-auc", *selectors}
    labels = [*methods, "best", "worst"]
    for name in ("auc", "rank"):
        by_pool = {row["augmentation"]: row for row in tables[name]}
        assert list(by_pool) == pools
        chooses = [method for method in methods if not method.startswith(("Ensemble", "Weighted"))]
        rows = labels if name == "auc" else chooses
        expected = {label: [as_shown(by_pool[pool][label], FORMS[name]) for pool in pools] for label in rows}
        assert shown_values(output, TITLES[name], labels) == expected
    for name in ("wilcoxon", "variations"):
        expected = {
            row["method"]: [as_shown(value, FORMS[name]) for column, value in row.items() if column != "method"]
            for row in tables[name]
        }
        assert shown_values(output, TITLES[name], labels) == expected
    for pool in pools:
        rows = [row for row in tables["choices"] if row["augmentation"] == pool]
        expected = {
            row["method"]: [
                as_shown(value, ".2g" if column.startswith("p ") else FORMS["choices"])
                for column, value in row.items()
                if column not in ("augmentation", "method")
            ]
            for row in rows
        }
        constants = [
            row for row in tables["pools"] if row["augmentation"] == pool and row["method"].startswith("Always")
        ]
        best = max((row for row in constants if row["test set"] == "full"), key=lambda row: row["AUC"])["method"]
        assert {"best", best} < set(expected)
        assert len(expected) == len(methods) + 2 - (pool == "all together")  # which has no Random
        assert shown_values(output, f"Quality of the choices: {pool}", [*expected]) == expected


def test_one_table_has_every_pool_test_set_ensemble_and_constant(benched) -> None:
    _, out, _ = benched
    content = json.loads((out / "bench.json").read_text())
    rows = {(row["augmentation"], row["test set"], row["method"]): row for row in content["tables"]["pools"]}
    cells = [cell for cell in content["cells"] if cell["augmentation"] == "all together"]
    selectors = list(cells[0]["losses"])
    for test_set in ("full", "34% anomalies", "20% anomalies", "normals × 1.2"):
        names = {method for pool, name, method in rows if (pool, name) == ("all together", test_set)}
        assert names >= {*selectors, *(f"Weighted by {name}" for name in selectors), "Ensemble", "Average", "best"}
        assert len([name for name in names if name.startswith("Always ")]) == 6
    for place, candidate in enumerate(cells[0]["candidates"]):
        size = candidate["params"]["patch_size"]
        row = rows["all together", "full", f"Always {candidate['augmentation']}(patch_size={size})"]
        regrets = [cell["auc"]["best"] - cell["candidates"][place]["auc"] for cell in cells]
        assert row["regret"] == pytest.approx(sum(regrets) / len(regrets))
        assert row["largest regret"] == pytest.approx(max(regrets))


def test_seeds_are_a_list(task, tmp_path, capsys) -> None:
    config = tmp_path / "bench.yaml"
    config.write_text("seeds: [4, 1]\n")
    options = ["--grid", "patch_size=0.08", "--augmentations", "cutout"]
    for given, expected in ((["--config", config], [4, 1]), (["--seeds", "1"], [1]), (["--seeds", "1,4"], [1, 4])):
        arguments = tiny_bench(task, tmp_path / "out", *options, *given, "--json")
        assert main([*map(str, arguments)]) == 0
        content = json.loads(capsys.readouterr().out)
        assert content["settings"]["seeds"] == expected
        assert [cell["seed"] for cell in content["cells"]] == expected
        has_spread = content["tables"]["choices"][0]["± over seeds"] is not None
        assert has_spread == (len(expected) > 1)
    assert len(finished_trainings(tmp_path / "out")) == 2 * 2, "each seed once, with its random run"


@pytest.mark.parametrize("seeds", ["0,1.5", "three", "0:3"])
def test_seeds_that_are_no_list_of_numbers_are_one_line(task, tmp_path, capsys, seeds) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, tiny_bench(task, tmp_path / "out", "--seeds", seeds))])
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert f"'{seeds}' is not a list of seeds, as in 0,1,2" in errors
    assert errors.count("\n") == 1


def test_pandas_is_imported_by_the_benchmark_only() -> None:
    program = (
        "import sys, dsv_plugins, dsv_plugins.cli\n"
        "try: dsv_plugins.cli.main(['bench', '--help'])\n"
        "except SystemExit: pass\n"
        "print('pandas' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert completed.stdout.endswith("\nFalse\n"), completed.stderr
    assert "--seeds SEEDS" in completed.stdout
