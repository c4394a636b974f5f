"""The report: what it says, what it withstands, and how it behaves in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import dsv, tiny_select
from PIL import Image
from safetensors.numpy import load_file, save_file

from dsv_plugins import Candidate, Run, report
from dsv_plugins.errors import StoreError
from dsv_plugins.run.artifacts import write_image_index
from dsv_plugins.run.folder import FORMAT, MANIFEST, RunFolder, checksum, files_below, write_json
from dsv_plugins.run.journal import Journal
from dsv_plugins.run.records import ImageIndex, write_checksummed

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
HOSTILE = "</script><img src=x onerror=alert(1)>"
MEGABYTE = 1_000_000


def make_run(
    folder: Path, *, candidates: int = 4, tests: int = 40, side: int = 32, name: str = "cutpaste", file: str = "part"
) -> Path:
    """A run folder as a study leaves it, with embeddings made up; its last candidate failed."""
    generator = np.random.default_rng(0)
    run = RunFolder(folder)
    run.data.mkdir(parents=True)
    sizes = [float(f"{0.001 * 1.5 ** (place % 20) + place / 1e5:.4g}") for place in range(candidates)]
    made = [Candidate(name, {"patch_size": size}, seed=place) for place, size in enumerate(sizes)]
    ids = [candidate.id for candidate in made]
    health = {"training_accuracy": 0.9, "concentration": 0.3}
    entries = [
        {
            "candidate": asdict(candidate),
            "status": "failed" if candidate.id == ids[-1] else "finished",
            "reason": f"it broke at {file}" if candidate.id == ids[-1] else "",
            "updates": 10,
            "losses": {} if candidate.id == ids[-1] else {"dsv": abs(place - 1.2), "mc": float(place)},
            "health": None if candidate.id == ids[-1] else health,
        }
        for place, candidate in enumerate(made)
    ]
    selection = {
        "candidates": entries,
        "choices": {"dsv": ids[1], "mc": ids[0]},
        "shares": {ids[1]: 1.0},
        "updates_spent": None,
        "findings": None,
        "warnings": [],
        "confidence": {"dsv": {key: (0.75 if key == ids[1] else 0.25 if key == ids[2] else 0.0) for key in ids[:-1]}},
    }
    write_checksummed(run.study, {"format": FORMAT, "identity": {"detector": name}, "versions": {}})
    write_checksummed(run.selection, selection)
    files = [f"/parts/{file}/{place}.png" for place in range(tests)]
    write_image_index(run.data, ImageIndex(fingerprint="0123", files={"test": files}))
    np.save(run.data / "test.npy", generator.integers(0, 255, (tests, 3, side, side), dtype=np.uint8))
    journal = Journal(run.journal)
    journal.append("started", command=f"dsv select {file}")
    for key in ids[:-1]:
        target = run.candidate(key, 10)
        target.mkdir(parents=True)
        rows = {"train": 60, "augmented": 60, "test": tests}
        arrays = {f"embeddings.{part}": generator.normal(size=(count, 8)) for part, count in rows.items()}
        arrays |= {f"scores.{part}": generator.gamma(2, size=count) for part, count in rows.items()}
        save_file(
            {part: values.astype(np.float32) for part, values in arrays.items()}, target / "evaluation.safetensors"
        )
        record = {
            "candidate": asdict(made[ids.index(key)]),
            "health": health,
            "timings": {},
            "measures": {"discordance": 0.9, "separability": 0.3},
            "curve": [[update, 1 / (1 + update)] for update in range(1, 11)],
        }
        write_json(target / "evaluation.json", record)
        np.save(target / "preview.npy", generator.integers(0, 255, (4, 3, side, side), dtype=np.uint8))
        points = sum(min(60, count) for count in rows.values())
        np.save(target / "projection.npy", generator.normal(size=(points, 2)).astype(np.float32))
        list_files(target)
        journal.append("finished", candidate=key, updates=10, seconds=2.0)
    list_files(run.data)
    return folder


def content_of(page: Path) -> dict:
    """What the page's script is given."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text())[1])


def list_files(folder: Path) -> None:
    """Write the manifest of a folder whose files were changed on purpose."""
    (folder / MANIFEST).unlink(missing_ok=True)
    write_json(folder / MANIFEST, {file.relative_to(folder).as_posix(): checksum(file) for file in files_below(folder)})


def change_selection(folder: Path, **changes: Any) -> None:
    file = RunFolder(folder).selection
    known = {name: value for name, value in json.loads(file.read_text()).items() if name != "checksum"}
    write_checksummed(file, known | changes)


def keep_out(folder: Path, held_out: Sequence[float], scores: Sequence[float], **findings: Any) -> Path:
    """Let the run have kept good images out, with these scores of its choice and these findings by it."""
    run = RunFolder(folder)
    file = run.candidate(Run(folder).choice.candidate.id, 10) / "evaluation.safetensors"
    known = {"scores.holdout": held_out, "scores.test": scores}
    save_file(load_file(file) | {name: np.array(values, dtype=np.float32) for name, values in known.items()}, file)
    index = json.loads((run.data / "images.json").read_text())
    index["files"]["holdout"] = [f"/parts/good/{place}.png" for place in range(len(held_out))]
    write_json(run.data / "images.json", index)
    list_files(run.data)
    list_files(file.parent)
    if findings:
        shares = {"share": 0.19, "lowest_share": 0.12, "highest_share": 0.27, "by_chance": False}
        counts = {"images": len(scores), "held_out": len(held_out), "false_alarms": 0.1}
        change_selection(folder, findings=counts | shares | findings)
    return folder


def top_of(page: Path) -> str:
    text = page.read_text()
    return text[text.index("<header") : text.index("</header>")]


def gallery_of(page: Path) -> list[tuple[str, str, Image.Image]]:
    """Name, numbers and picture of each flagged image, as the page has them."""
    entries = re.findall(r'<li>\s*<img src="data:image/jpeg;base64,(.*?)".*?>(.*?)</li>', page.read_text(), re.DOTALL)
    found = []
    for picture, text in entries:
        name, numbers = (line.strip() for line in re.sub("<.*?>", "", text).strip().splitlines())
        found.append((name, numbers, Image.open(io.BytesIO(base64.b64decode(picture)))))
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("report") / "run", candidates=5)
    aucs = {entry.id: 0.6 + place / 10 for place, entry in enumerate(Run(folder).candidates[:-1])}
    write_checksummed(folder / "aucs.json", {"candidates": aucs, "chosen": {}})
    return report.build(Run(folder))


def test_the_answer_comes_first(page):
    text, top = page.read_text(), top_of(page)
    for part in ("dsv", "cutpaste(patch_size=0.00151)", "0.2", "75 %", "AUC", "dsv select part", "a likely choice"):
        assert part in top, part
    assert "it broke at part" in text


def test_a_real_selection_ends_with_its_report(finished, tmp_path):
    _, run, output = finished
    assert f"report: {run / 'report.html'}" in output
    assert "<h1>cutpaste(patch_size=" in (run / "report.html").read_text()
    target = tmp_path / "why.html"
    completed = dsv("report", run, "--out", target)
    assert (completed.returncode, completed.stdout) == (0, f"report: {target}\n"), completed.stderr
    assert target.read_text() == (run / "report.html").read_text()


def test_a_report_that_fails_does_not_fail_the_selection(finished, tmp_path):
    task, run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").mkdir()
    completed = dsv(*tiny_select(task, tmp_path / "run"))
    assert completed.returncode == 0
    assert "dsv chooses" in completed.stdout
    assert completed.stderr.startswith("no report: ")
    assert completed.stderr.count("\n") == 1


def test_what_is_found_is_said_at_the_top_and_its_warning_once(tmp_path):
    folder = make_run(tmp_path / "run", tests=20)
    keep_out(folder, range(9), [*range(10, 13), *[0] * 17], flagged=3)
    top = top_of(report.build(Run(folder)))
    assert "<dd>3 of 20</dd>" in top
    assert "3 of 20 test images are flagged at a false-alarm rate of 10 %" in top
    assert "by 9 good images kept out of training" in top
    assert "about 19 % of the test images are anomalous (95 % interval 12 to 27 %)." in top
    keep_out(folder, range(9), [*range(10, 13), *[0] * 17], flagged=3, by_chance=True)
    change_selection(folder, warnings=["3 of 20 test images are flagged by chance"])
    top = top_of(report.build(Run(folder)))
    assert "about 19 %" not in top, "which would contradict the warning"
    assert top.count("flagged by chance") == 1


def test_scores_of_the_model_are_shown_with_its_threshold(tmp_path):
    folder = make_run(tmp_path / "run", tests=20)
    keep_out(folder, range(9), [*range(10, 13), *[0] * 17], flagged=3)
    model = content_of(report.build(Run(folder)))["model"]
    assert model["threshold"] == 8, "one alarm in ten: above the largest of nine"
    shares = model["histogram"]
    above = [place for place, centre in enumerate(shares["centres"]) if centre > model["threshold"]]
    assert sum(shares["test"][place] for place in above) == pytest.approx(3 / 20)
    assert sum(shares["held-out"]) == pytest.approx(1, abs=1e-3)


def test_the_auc_of_the_page_is_that_of_the_model_and_the_time_that_of_the_study(tmp_path):
    folder = make_run(tmp_path / "run")
    ids = [entry.id for entry in Run(folder).candidates[:-1]]
    change_selection(folder, shares=dict.fromkeys(ids, 1 / len(ids)))
    aucs = dict.fromkeys(ids, 0.6)
    write_checksummed(folder / "aucs.json", {"candidates": aucs, "chosen": {}, "model": 0.875})
    began = Journal(folder / "journal.jsonl").events()[0]["time"]
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"event": "selected", "time": began + 71.0}) + "\n")
    tiles = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", top_of(report.build(Run(folder)))))
    assert tiles["AUC of the model"] == "0.875"
    assert tiles["took"] == "71 s", "not the sum of the trainings, which run side by side"


def test_with_one_candidate_nothing_was_chosen(tmp_path):
    folder = make_run(tmp_path / "run")
    known = json.loads((folder / "selection.json").read_text())
    only = known["candidates"][0]
    identifier = Run(folder).candidates[0].id
    change_selection(folder, candidates=[only], choices={"dsv": identifier}, shares={identifier: 1.0}, confidence={})
    text = report.build(Run(folder)).read_text()
    body = text[text.index("<body>") : text.index('<script type="application/json"')]
    assert "<h1>cutpaste(patch_size=0.001)</h1>" in body
    assert not re.search(r"chosen|chooses|ranked|Losses|wins", body)


def test_flagged_images_are_shown_by_their_p_values(tmp_path):
    generator = np.random.default_rng(1)
    held_out, scores = generator.normal(0, 1, 39), generator.normal(1.5, 1, 60)
    counted = [(1 + sum(good >= score for good in held_out)) / 40 for score in scores]
    order = sorted((p, -score, place) for place, (p, score) in enumerate(zip(counted, scores, strict=True)) if p <= 0.1)
    assert len({p for p, _, _ in order[:24]}) > 1
    folder = make_run(tmp_path / "run", tests=60)
    page = report.build(Run(keep_out(folder, held_out, scores, flagged=len(order))))
    shown = [(name, numbers) for name, numbers, _ in gallery_of(page)]
    assert shown == [(f"part/{place}.png", f"p {p:.2g} score {-score:.3g}") for p, score, place in order[:24]]
    assert f"{len(order) - 24} more images are flagged" in page.read_text()
    # The limit is one image too low for all of them, and then high enough.
    most = [*[9.0] * 25, *[0.0] * 35]
    assert "1 more image is flagged" in report.build(Run(keep_out(folder, held_out, most, flagged=25))).read_text()
    page = report.build(Run(keep_out(folder, held_out, [*[9.0] * 24, *[0.0] * 36], flagged=24)))
    assert len(gallery_of(page)) == 24
    assert "flagged and not shown" not in page.read_text()


def test_flagged_images_are_red_where_the_chosen_detector_says(tmp_path):
    folder = make_run(tmp_path / "run", tests=4)
    np.save(folder / "data/test.npy", np.full((4, 3, 32, 32), 90, dtype=np.uint8))
    keep_out(folder, range(19), [0, 50, 40, 0], flagged=2)
    for _, _, picture in gallery_of(report.build(Run(folder))):
        assert np.ptp(np.asarray(picture)) < 8, "there are no heatmaps"
    heatmaps = np.zeros((4, 8, 8), dtype=np.float16)
    heatmaps[1, :4, :4], heatmaps[2, 4:, 4:] = 1, 1
    chosen = RunFolder(folder).candidate(Run(folder).choice.candidate.id, 10)
    np.save(chosen / "heatmaps.npy", heatmaps)
    list_files(chosen)
    shown = gallery_of(report.build(Run(folder)))
    assert [name for name, _, _ in shown] == ["part/1.png", "part/2.png"]
    first, second = (np.asarray(picture).astype(int) for _, _, picture in shown)
    middle, side = slice(8, 32), len(first)
    for hot, cold in (
        (first[middle, middle], first[side - 32 :, side - 32 :]),
        (second[side - 32 : side - 8, side - 32 : side - 8], second[:32, :32]),
    ):
        assert (hot[..., 0] - hot[..., 2]).min() > 60
        assert np.abs(cold[..., 0] - cold[..., 2]).max() < 20


def test_a_run_in_which_nothing_is_flagged_says_so(tmp_path):
    folder = keep_out(make_run(tmp_path / "run", tests=10), range(9), [0.0] * 10, flagged=0)
    page = report.build(Run(folder))
    assert "0 of 10 test images are flagged" in top_of(page)
    assert "No test image has a score that is high enough." in page.read_text()
    assert gallery_of(page) == []


def test_a_run_without_held_out_images_says_what_to_do(tmp_path):
    folder = make_run(tmp_path / "run")
    page = report.build(Run(folder))
    assert "No good images were held out, so no test image can be flagged" in top_of(page)
    assert "--recalibrate FOLDER" in top_of(page)
    assert "Flagged test images" not in page.read_text()


def test_what_is_no_finished_run_is_refused_in_words(tmp_path):
    with pytest.raises(StoreError, match="is no run folder; give the folder"):
        report.build(Run(tmp_path))
    folder = make_run(tmp_path / "run")
    (folder / "selection.json").unlink()
    with pytest.raises(StoreError, match="has no selection yet"):
        report.build(Run(folder))


@pytest.mark.parametrize("left_out", ["preview.npy", "projection.npy"])
def test_a_run_without_some_pictures_still_has_a_report(tmp_path, left_out):
    folder = make_run(tmp_path / "run")
    for file in folder.rglob(left_out):
        file.unlink()
        list_files(file.parent)
    page = report.build(Run(folder))
    assert ("no preview in this run" in page.read_text()) == (left_out == "preview.npy")
    drawn = [candidate["tsne"] is not None for candidate in content_of(page)["candidates"]]
    assert drawn == [left_out == "preview.npy"] * len(drawn)


def test_the_t_sne_of_a_page_is_what_the_training_drew(finished):
    _, run, _ = finished
    drawn = {
        folder.name.partition("-")[0]: np.load(folder / "projection.npy") for folder in (run / "candidates").iterdir()
    }
    for candidate in content_of(run / "report.html")["candidates"]:
        shown = np.concatenate([np.transpose(candidate["tsne"][name]) for name in ("train", "augmented", "test")])
        expected = drawn[candidate["id"]]
        assert np.abs(shown - expected).max() < 1e-3 * np.abs(expected).max()


def test_neither_torch_nor_plugins_are_needed(tmp_path):
    folder = make_run(tmp_path / "run")
    program = (
        "import sys; from dsv_plugins import Run, report\n"
        f"report.build(Run({str(folder)!r}))\n"
        "sys.exit('torch' in sys.modules or any(name.startswith('dsv_plugins.builtin') for name in sys.modules))"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr


def test_the_paper_s_grid_stays_below_eight_megabytes(tmp_path):
    page = report.build(Run(make_run(tmp_path / "run", candidates=18, tests=200, side=64)))
    assert page.stat().st_size < 8 * MEGABYTE


def test_names_are_escaped(tmp_path):
    text = report.build(Run(make_run(tmp_path / "run", name=HOSTILE, file=HOSTILE))).read_text()
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_the_main_figure_has_a_marker_for_each_candidate(page):
    figure = report.plot(Run(page.parent))
    assert [len(trace.x) for trace in figure.data] == [4, 4, 4, 4]  # loss, AUC, discordance, separability


# ---------------------------------------------------------------------------
# In a browser
# ---------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="the report is not tested in a browser: install chromium and chromium-driver"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,900",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def visit(browser, page: Path, *, width: int = 1280) -> None:
    # A window of a browser has a least width, wider than a phone's; its view has none.
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser"), browser.get_log("performance")  # what earlier pages left
    browser.get(page.as_uri())


def assert_quiet(browser) -> None:
    """No line in the console, and nothing asked from anywhere but the page itself."""
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    own = ("file:", "data:", "blob:", "chrome")  # the last are of the browser's own page for a new tab
    assert [url for url in requests if not url.startswith(own)] == []
    assert sum(url.startswith("file:") for url in requests) == 1


def shown(browser) -> dict[str, Any]:
    """What the panel of the clicked candidate says."""
    return browser.execute_script(
        """
        const traces = (id) => document.getElementById(id).data.map((trace) => [...trace.x]);
        return {
          name: document.getElementById("panel-name").textContent,
          facts: document.getElementById("facts").textContent,
          embedding: traces("embedding"), histogram: traces("histogram"),
          highest: [...document.querySelectorAll("#highest img")].map((image) => image.alt),
          ring: [...document.querySelector("#panels .plot").data[0].x],
          checked: [...document.querySelectorAll('#strip [aria-checked="true"]')].map((b) => b.dataset.candidate),
        };
        """
    )


@needs_browser
def test_a_click_on_a_point_changes_every_panel(browser, page):
    visit(browser, page)
    before = shown(browser)
    assert (before["name"], before["checked"]) == ("cutpaste(patch_size=0.00151)", ["1"])
    place = browser.execute_script(
        """
        const plot = document.querySelector("#panels .plot");
        plot.scrollIntoView();
        const point = plot.querySelectorAll(".scatterlayer .trace")[1].querySelectorAll(".point")[3];
        const box = point.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
        """
    )
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        event = {"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        time.sleep(0.2)
    after = shown(browser)
    assert after["checked"] == ["3"]
    assert all(before[part] != after[part] for part in before)
    assert_quiet(browser)


@needs_browser
def test_the_keyboard_suffices(browser, page):
    from selenium.webdriver.common.keys import Keys

    visit(browser, page)
    strip = browser.find_element("css selector", '#strip [aria-checked="true"]')
    strip.send_keys(Keys.ARROW_RIGHT)
    assert shown(browser)["checked"] == ["2"]
    browser.switch_to.active_element.send_keys(Keys.HOME)
    assert shown(browser)["checked"] == ["0"]
    browser.find_element("id", "tsne").send_keys(Keys.ENTER)
    assert browser.find_element("id", "tsne").get_attribute("aria-pressed") == "true"
    assert_quiet(browser)


@needs_browser
def test_a_heading_sorts_the_table_with_failures_last(browser, page):
    visit(browser, page)
    heading = browser.find_elements("css selector", "#candidates thead button")[1]
    orders = []
    for _ in range(2):
        browser.execute_script("arguments[0].click()", heading)
        rows = browser.find_elements("css selector", "#candidates tbody tr")
        orders.append([row.get_attribute("data-candidate") for row in rows])
    assert orders == [["1", "2", "0", "3", None], ["3", "0", "2", "1", None]]


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(browser, page, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    visit(browser, page, width=390)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (int(background[4:].split(",")[0]) > 128) == (scheme == "light")
    assert_quiet(browser)


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_gallery_is_seen_below_the_answer(browser, tmp_path, width):
    folder = make_run(tmp_path / "run", tests=40, file="a_kind_of_defect_with_a_rather_long_name")
    keep_out(folder, range(19), [*range(70, 40, -1), *[0.0] * 10], flagged=30)
    visit(browser, report.build(Run(folder)), width=width)
    section = browser.find_element("css selector", "section")
    assert section.find_element("tag name", "h2").text == "Flagged test images"
    assert "6 more images are flagged and not shown." in section.text
    entries = section.find_elements("tag name", "li")
    assert len(entries) == 24
    assert entries[0].text.splitlines()[-2:] == ["p 0.05", "score 70"]
    boxes = browser.execute_script(
        """
        return [...document.querySelectorAll(".gallery li")].map((entry) => {
          const image = entry.querySelector("img"), box = image.getBoundingClientRect();
          return [image.complete && image.naturalWidth, box.width, box.height, entry.scrollWidth - entry.clientWidth];
        });
        """
    )
    assert all(loaded == 160 for loaded, *_ in boxes)
    assert all(shown >= 100 and shown == pytest.approx(high) for _, shown, high, _ in boxes)
    assert all(over <= 0 for *_, over in boxes), "a name is wider than its picture"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert_quiet(browser)


@needs_browser
def test_hostile_names_are_shown_and_not_run(browser, tmp_path):
    folder = make_run(tmp_path / "run", name=HOSTILE, file=HOSTILE)
    visit(browser, report.build(Run(keep_out(folder, range(19), [50.0, *[0.0] * 39], flagged=1))))
    assert browser.find_element("css selector", ".gallery .name").text == f"{HOSTILE.rpartition('/')[2]}/0.png"
    assert HOSTILE in shown(browser)["name"]
    assert HOSTILE.rpartition("/")[2] in shown(browser)["highest"][0]
    assert browser.execute_script("return document.querySelectorAll('img:not([src^=\"data:\"])').length") == 0
    assert_quiet(browser)


@needs_browser
def test_a_large_run_is_thinned_says_so_and_opens_in_seconds(browser, tmp_path):
    started = time.monotonic()
    page = report.build(Run(make_run(tmp_path / "run", candidates=201, tests=10_000, side=16)))
    built = time.monotonic() - started
    assert page.stat().st_size < 20 * MEGABYTE
    started = time.monotonic()
    visit(browser, page)
    opened = time.monotonic() - started
    text = browser.find_element("tag name", "footer").text
    assert "show 100 images of each set" in text
    assert "t-SNE is computed on 60 images of each set" in text
    drawn = [candidate["tsne"] for candidate in content_of(page)["candidates"]]
    assert [[len(points[name][0]) for name in ("train", "augmented", "test")] for points in drawn] == [[60] * 3] * 200
    assert (built < 120, opened < 15) == (True, True), (built, opened)  # on a busy machine; seconds on an idle one
    assert_quiet(browser)
