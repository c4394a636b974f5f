"""From a score to a decision: p-values, verdicts, recalibration, and what happens if they cannot be had."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DETECTOR, TINY, dsv_here, make_task, texture
from PIL import Image
from scipy.stats import false_discovery_control

import dsv_plugins
from dsv_plugins import InputError, StoreError, select
from dsv_plugins.builtin.detectors.patch_memory.backbone import Backbone
from dsv_plugins.run.folder import RunFolder

SMALL = {"image_size": 64}


def write_images(folder: Path, seeds: range, *, defect: bool = False) -> Path:
    folder.mkdir(parents=True)
    for seed in seeds:
        Image.fromarray(texture(seed, defect=defect, size=64)).save(folder / f"{seed:04d}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study with the default detector, made small."""
    folder = tmp_path_factory.mktemp("decide")
    train = write_images(folder / "good", range(60))
    write_images(folder / "new" / "good", range(100, 120))
    write_images(folder / "new" / "bar", range(200, 210), defect=True)
    result = select(
        train,
        folder / "new",
        grid={"patch_size": [0.02, 0.1]},
        detector_params=SMALL,
        executor="serial",
        out=folder / "run",
    )
    return Path(result.path)


@pytest.fixture
def images(run: Path) -> Path:
    return run.parent / "new"


def judged(*arguments: object) -> list[dict[str, str]]:
    completed = dsv_here("score", *arguments)
    assert completed.returncode == 0, completed.stderr
    return list(csv.DictReader(io.StringIO(completed.stdout)))


def refused(*arguments: object) -> str:
    completed = dsv_here("score", *arguments)
    assert (completed.returncode, completed.stdout) == (2, ""), completed.stderr
    *_, last = completed.stderr.splitlines()
    return last


def test_a_third_of_few_good_images_is_kept_out_and_their_scores_are_kept(run: Path):
    evaluation = json.loads((run / "selection.json").read_text())
    model = dsv_plugins.load(run)
    files = json.loads((run / "data" / "images.json").read_text())["files"]
    assert (len(files["train"]), len(files["holdout"])) == (41, 19)
    pixels = torch.from_numpy(np.load(run / "data" / "holdout.npy"))
    assert np.allclose(model.calibration.held_out, np.sort(model.detector.score(pixels).numpy()), atol=1e-5)
    assert evaluation["findings"]["held_out"] == 19


def test_every_image_has_its_p_value_and_verdict(run: Path, images: Path):
    held_out = np.load(run / "model" / "held-out-scores.npy")
    rows = judged(run, images)
    assert len(rows) == 30
    for row in rows:
        expected = (1 + sum(held_out >= float(row["score"]))) / (len(held_out) + 1)
        assert float(row["p_value"]) == pytest.approx(expected)
        assert row["verdict"] == ("anomalous" if expected <= 0.05 + 1e-9 else "normal")
    assert all(row["verdict"] == "anomalous" for row in rows if "/bar/" in row["file"])
    assert sum(row["verdict"] == "anomalous" for row in rows if "/good/" in row["file"]) < 10


def test_the_rate_decides(run: Path, images: Path):
    rows = json.loads(dsv_here("score", run, images, "--false-alarms", 0.5, "--json").stdout)
    assert {row["file"]: row["verdict"] for row in rows} == {
        row["file"]: "anomalous" if row["p_value"] <= 0.5 else "normal" for row in rows
    }
    assert "19 held-out images cannot promise a false-alarm rate of 0.01, only 0.05 or more" in refused(
        run, images, "--false-alarms", 0.01
    )


def test_a_batch_with_few_false_discoveries(run: Path, images: Path):
    rows = judged(run, images, "--false-discoveries", 0.2)
    adjusted = false_discovery_control([float(row["p_value"]) for row in rows])
    assert [row["verdict"] for row in rows] == ["anomalous" if value <= 0.2 else "normal" for value in adjusted]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--false-alarms", 1.5], "--false-alarms is 1.5; give a rate between 0 and 1"),
        (["--false-discoveries", 0], "--false-discoveries is 0; give a rate between 0 and 1"),
        (["--false-alarms", 0.1, "--false-discoveries", 0.1], "not both"),
        (["--recalibrate", "/nowhere"], "/nowhere is not a folder"),
        (["--out", "o" * 256], "is too long for a path; give a shorter one"),
        (["--out", "/dev/null"], "/dev/null cannot be written, since it is no file"),
        (["--out", "."], ". cannot be written, since it is no file"),
    ],
)
def test_wrong_calls_are_one_line(run: Path, images: Path, options: list[object], message: str):
    assert message in refused(run, images, *options)


def test_other_good_images_can_decide_without_training(run: Path, images: Path, tmp_path: Path):
    before = {file: file.read_bytes() for file in (run / "model").rglob("*") if file.is_file()}
    other = write_images(tmp_path / "other", range(300, 330))
    try:
        scores, old = [float(row["score"]) for row in judged(run, images)], dsv_plugins.load(run).calibration
        shutil.copy(other / "0300.png", other / "copy.png")
        completed = dsv_here("score", run, "--recalibrate", other)
        assert completed.returncode == 0
        assert completed.stdout == ""
        new = np.load(run / "model" / "held-out-scores.npy")
        assert len(new) == 30
        flagged, still = (
            [(1 + sum(each >= score for each in held_out)) / (len(held_out) + 1) <= 0.05 + 1e-9 for score in scores]
            for held_out in (old.held_out, new)
        )
        kept = sum(map(all, zip(flagged, still, strict=True)))
        assert completed.stderr == (
            f"note: 1 of the 31 images of {other} are copies, and count once\n"
            f"note: from now on, 30 images of {other} decide; of the {sum(flagged)} test images that were flagged, "
            f"{kept} ({kept / sum(flagged):.0%}) still are, "
            f"and {sum(still) - kept} of the {30 - sum(flagged)} others are now\n"
        )
        (other / "copy.png").unlink()
        model = dsv_plugins.load(run, false_alarms=1 / 31)
        assert len(model.calibration.held_out) == 30
        assert model.record.calibrated_on == str(other)
        scores = [float(row["score"]) for row in judged(run, other)]
        assert np.allclose(model.calibration.held_out, sorted(scores), atol=1e-5)
    finally:
        for file, content in before.items():
            file.write_bytes(content)


def test_images_that_were_trained_on_cannot_decide(run: Path, tmp_path: Path):
    files = json.loads((run / "data" / "images.json").read_text())["files"]
    mixed = write_images(tmp_path / "mixed", range(400, 420))
    shutil.copy(files["train"][3], mixed / "renamed.png")
    before = (run / "model" / "held-out-scores.npy").read_bytes()
    message = refused(run, "--recalibrate", mixed)
    assert f"1 of the 21 images of {mixed} were trained on, such as {mixed}/renamed.png;" in message
    assert (run / "model" / "held-out-scores.npy").read_bytes() == before
    # Those that were held out were not trained on.
    held_out = [Path(file) for file in files["holdout"]]
    assert not {file.read_bytes() for file in held_out} & {Path(file).read_bytes() for file in files["train"]}
    model = dsv_plugins.load(run)
    assert len(model.record.trained_on) == 41


def test_the_same_study_again_leaves_a_recalibration_alone(tmp_path: Path):
    train = write_images(tmp_path / "good", range(20))
    test = write_images(tmp_path / "new", range(100, 106))
    settings = {
        "grid": {"patch_size": [0.1]},
        "detector": DETECTOR,
        "detector_params": TINY,
        "executor": "serial",
        "out": tmp_path / "run",
    }
    select(train, test, **settings)
    model = dsv_plugins.load(tmp_path / "run")
    assert len(model.calibration.held_out) == 6
    model.recalibrated(torch.arange(9.0), torch.arange(9.0), test)
    select(train, test, **settings)
    assert len(dsv_plugins.load(tmp_path / "run").calibration.held_out) == 9


def test_what_load_returns_predicts_what_the_command_prints(run: Path, images: Path):
    rows = judged(run, images / "bar")
    pixels = np.stack([np.asarray(Image.open(row["file"]).convert("RGB")).transpose(2, 0, 1) for row in rows])
    prediction = dsv_plugins.load(run).predict(torch.from_numpy(pixels))
    assert torch.allclose(prediction.scores, torch.tensor([float(row["score"]) for row in rows]), atol=1e-5)
    assert prediction.p_values.tolist() == pytest.approx([float(row["p_value"]) for row in rows])
    assert prediction.anomalous.tolist() == [row["verdict"] == "anomalous" for row in rows]
    assert prediction.heatmaps.shape == (10, 8, 8)


def test_the_frozen_part_sees_an_image_once_for_score_and_heatmap(run: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    original = Backbone.features

    def counted(self: Backbone, images: torch.Tensor, shape: tuple[int, int]):
        seen.append(len(images))
        return original(self, images, shape)

    model = dsv_plugins.load(run)
    monkeypatch.setattr(Backbone, "features", counted)
    model.predict(torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert seen == [5]


def test_the_model_needs_no_folder_but_its_own(run: Path, images: Path, tmp_path: Path):
    shutil.copytree(run / "model", tmp_path / "run" / "model")
    assert judged(tmp_path / "run", images) == judged(run, images)


def test_too_few_good_images_give_scores_and_one_line_that_says_what_to_do(tmp_path: Path):
    task = make_task(tmp_path / "task")
    arguments = ["--detector", DETECTOR, "--detector-params", json.dumps(TINY), "--grid", "patch_size=0.1"]
    selected = dsv_here("select", task, *arguments, "--out", tmp_path / "run")
    assert "note: no image can be called anomalous: no good images were held out" in selected.stdout
    assert "--holdout 0.4, which keeps 3 of 8 out, enough for a false-alarm rate of 0.25" in selected.stdout
    completed = dsv_here("score", tmp_path / "run", task / "test")
    assert completed.returncode == 0
    (note,) = completed.stderr.splitlines()
    assert note.startswith("note: no p-values and no verdicts: ")
    assert "--recalibrate FOLDER" in note
    assert {row["verdict"] for row in csv.DictReader(io.StringIO(completed.stdout))} == {""}
    for option in ("--false-alarms", "--false-discoveries"):
        assert "--recalibrate FOLDER" in refused(tmp_path / "run", task / "test", option, 0.1)


def test_a_full_disk_leaves_the_older_file_whole(run: Path, images: Path, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        target = disk / "scores.csv"
        target.write_text("older")
        (disk / "rest").write_bytes(bytes(4096))
        completed = dsv_here("score", run, images, "--out", target)
        assert completed.returncode != 0
        assert "cannot be written (No space left on device)" in completed.stderr
        assert completed.stdout == dsv_here("score", run, images).stdout  # what is computed is not lost
        assert target.read_text() == "older"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_nothing_readable_is_a_failure(run: Path, tmp_path: Path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    completed = dsv_here("score", run, tmp_path, "--skip-bad")
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.endswith("dsv score: none of the images can be read\n")


@pytest.mark.timeout(120)
def test_what_is_no_file_is_named_or_left_out(run: Path, images: Path, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("nowhere.png")
    for name, reason in (("pipe", "a pipe"), ("link", "a link to nowhere.png, which is not there")):
        line = refused(run, tmp_path / f"{name}.png")
        assert line.startswith(f"dsv score: {tmp_path / name}.png cannot be read as an image (it is ")
        assert reason in line
        assert "--skip-bad" in line
    completed = dsv_here("score", run, tmp_path, tmp_path / "link.png", images / "bar", "--skip-bad")
    assert completed.returncode == 0
    assert completed.stderr.count("left out: ") == 3
    assert len(completed.stdout.splitlines()) == 11


def test_a_damaged_calibration_is_named(run: Path, tmp_path: Path):
    shutil.copytree(run / "model", tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / "held-out-scores.npy").write_bytes(b"torn")
    with pytest.raises(StoreError, match=r"held-out-scores\.npy is damaged"):
        dsv_plugins.load(tmp_path / "run")


def test_load_refuses_a_rate_that_cannot_be_promised(run: Path):
    with pytest.raises(InputError, match="recalibrate with 999 good images"):
        dsv_plugins.load(run, false_alarms=0.001)


def test_a_change_of_the_light_is_told_once_and_undisturbed_images_are_not(run: Path, tmp_path: Path):
    usual = write_images(tmp_path / "usual", range(300, 350))
    dimmed = tmp_path / "dimmed"
    dimmed.mkdir()
    for file in usual.iterdir():
        Image.fromarray((np.asarray(Image.open(file)) * 0.75).astype(np.uint8)).save(dimmed / file.name)
    told = dsv_here("score", run, dimmed).stderr.splitlines()
    assert sum("the images have changed, or more than 30% of them are anomalous: their" in line for line in told) == 1
    assert "brightness" in told[-1]
    assert "changed" not in dsv_here("score", run, usual).stderr


def test_labels_say_what_the_verdicts_are_worth_and_change_none_of_them(run: Path, images: Path):
    rows = judged(run, images)
    completed = dsv_here("score", run, images, "--labels", "folders")
    assert list(csv.DictReader(io.StringIO(completed.stdout))) == rows
    flagged = sum(row["verdict"] == "anomalous" for row in rows if "/good/" in row["file"])
    assert f"good images that are flagged: {flagged} of 20" in completed.stderr
    assert "defective images that are flagged: 10 of 10 (100%, 95 % interval 69% to 100%)" in completed.stderr
    content = json.loads(dsv_here("score", run, images, "--labels", "folders", "--json").stdout)
    assert content["labels"]["types"]["bar"]["flagged"] == 10
    assert content["labels"]["auc"] > 0.9
    assert len(content["images"]) == 30
    assert "cannot be read" in refused(run, images, "--labels", "missing.csv")


def test_an_update_lets_new_good_images_be_remembered_and_others_decide(run: Path, images: Path, tmp_path: Path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    before = dsv_plugins.load(copy)
    new = write_images(tmp_path / "new", range(400, 420))
    pixels = {
        file.name: torch.from_numpy(np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1).copy())
        for file in new.iterdir()
    }
    completed = dsv_here("update", copy, new)
    assert completed.returncode == 0, completed.stderr
    assert "10 more good images are remembered, and 29 decide, 10 of them new" in completed.stdout
    after = dsv_plugins.load(copy)
    remembered = {digest for digest in after.record.trained_on if digest not in before.record.trained_on}
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in new.iterdir()}
    deciding = torch.stack([pixels[name] for name, digest in hashes.items() if digest not in remembered])
    assert len(remembered) == len(deciding) == 10
    held_out = torch.from_numpy(np.load(run / "data" / "holdout.npy"))
    expected = after.predict(torch.cat([held_out, deciding]), heatmaps=False).scores
    assert np.allclose(after.calibration.held_out, np.sort(expected.numpy()), atol=1e-4)
    # What is remembered looks no more unusual than before, and what is not like it still does.
    assert (after.predict(deciding).scores <= before.predict(deciding).scores + 1e-4).all()
    assert (after.predict(images / "bar" / "0200.png").anomalous).all()
    (entry,) = after.record.history
    assert (entry.remembered, entry.deciding, entry.images) == (10, 29, str(new))
    again = dsv_here("update", copy, new)
    assert "10 of the 20 images were trained on, and are left out" in again.stdout
    assert len(dsv_plugins.load(copy).record.history) == 2


def test_a_detector_that_remembers_nothing_is_not_updated(finished: tuple[Path, Path, str], tmp_path: Path):
    new = write_images(tmp_path / "new", range(400, 412))
    completed = dsv_here("update", finished[1], new)
    assert completed.returncode == 2
    assert "cannot be given more images without training" in completed.stderr


def test_names_are_no_commands_and_every_image_has_its_score(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    names = ["=cmd.png", "+1+1.png", "@x.png", "\x1b[31mred.png", "new\nline.png", "\udcff.png", f"{'x' * 251}.png"]
    for name in names:
        shutil.copy(run.parent / "new/good/0100.png", name)
    expected = pytest.approx(float(judged(run, run.parent / "new/good/0100.png")[0]["score"]), rel=1e-3)
    completed = dsv_here("score", run, *names, "--heatmaps", "heat", "--out", "scores.csv")
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr
    written = (tmp_path / "scores.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(written)))
    shown = ["./=cmd.png", "./+1+1.png", "./@x.png", r"\x1b[31mred.png", r"new\nline.png", r"\udcff.png", names[-1]]
    assert [(row["file"], float(row["score"])) for row in rows] == [(name, expected) for name in shown]
    assert len(list((tmp_path / "heat").iterdir())) == len(names)
    assert dsv_here("score", run, *names).stdout == written
    for row, name in zip(json.loads(dsv_here("score", run, *names, "--json").stdout), names, strict=True):
        assert row["file"] == name
    broken = Path("\x1b[2Jbroken.png")
    broken.write_bytes(b"no image")
    left_out = dsv_here("score", run, broken, names[0], "--skip-bad").stderr
    assert r"left out: \x1b[2Jbroken.png" in left_out
    assert "\x1b" not in left_out


def test_a_picture_that_cannot_be_written_costs_no_score(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save = Image.Image.save

    def full(image: Image.Image, path: str, *rest: object) -> None:
        if str(path).endswith("0101.png"):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(image, path, *rest)

    monkeypatch.setattr(Image.Image, "save", full)
    images = [run.parent / f"new/good/010{number}.png" for number in range(3)]
    completed = dsv_here("score", run, *images, "--heatmaps", tmp_path / "heat")
    assert completed.returncode == 1
    assert len(completed.stdout.splitlines()) == 4
    assert len(list((tmp_path / "heat").iterdir())) == 2
    assert completed.stderr.splitlines()[-1] == (
        f"dsv score: 1 pictures of --heatmaps cannot be written to {tmp_path / 'heat'}, such as that of {images[1]} "
        "(No space left on device)"
    )


def test_who_recalibrates_waits_for_no_other_process(run: Path, images: Path, tmp_path: Path):
    shutil.copytree(run / "model", tmp_path / "run/model")
    with RunFolder(tmp_path / "run").locked():
        completed = dsv_here("score", tmp_path / "run", "--recalibrate", images / "good")
    assert completed.returncode == 1
    assert "another process is working on" in completed.stderr.splitlines()[-1]
    assert dsv_here("score", tmp_path / "run", "--recalibrate", images / "good").returncode == 0
