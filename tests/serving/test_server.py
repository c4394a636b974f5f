"""`dsv serve`: the numbers of `Model.predict`, from a real process, and what it refuses."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import dsv_here, texture
from PIL import Image

from dsv_plugins import Model
from dsv_plugins.data.overlay import overlay
from dsv_plugins.pixels import decode

WAITING = 9
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@contextlib.contextmanager
def serving(run: Path, *options: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "dsv_plugins", "serve", run, "--port", 0, *options]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        line = process.stderr.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+) judges images", line)
        assert found, line
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture(scope="module")
def address(calibrated_run: Path) -> Iterator[str]:
    with serving(calibrated_run, "--max-megabytes", 0.2, "--max-megapixels", 0.1, "--max-waiting", WAITING) as (
        _,
        address,
    ):
        yield address


def ask(address: str, body: bytes | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data=body), timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def judged(address: str, photo: Path, **query: str) -> dict[str, Any]:
    status, text = ask(f"{address}/predict?{'&'.join(map('='.join, query.items()))}", photo.read_bytes())
    assert status == 200, text
    return json.loads(text)


def test_an_image_gets_what_predict_says(address: str, calibrated_model: Model, photos: list[Path]):
    expected = calibrated_model.predict(photos)
    for place, photo in enumerate(photos):
        answer = judged(address, photo)
        assert answer == {
            "score": pytest.approx(float(expected.scores[place]), abs=1e-4),
            "p_value": float(expected.p_values[place]),
            "verdict": "anomalous" if expected.anomalous[place] else "normal",
            "false_alarms": calibrated_model.false_alarms,
        }
    assert judged(address, photos[1])["verdict"] == "anomalous"


def test_a_heatmap_if_it_is_asked_for(address: str, calibrated_model: Model, photos: list[Path]):
    found = Image.open(io.BytesIO(base64.b64decode(judged(address, photos[1], heatmap="true")["heatmap"])))
    expected = overlay(
        decode(photos[1], None),
        calibrated_model.predict(photos[1]).heatmaps[0].numpy(),
        calibrated_model.record.heat_scale,
    )
    assert np.abs(np.asarray(found).astype(int) - np.asarray(expected)).max() <= 1


def test_many_clients_share_calls_of_the_model(address: str, calibrated_model: Model, photos: list[Path]):
    scores = calibrated_model.predict(photos).scores.tolist()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda place: judged(address, photos[place % 6])["score"], range(120)))
    assert answers == pytest.approx([scores[place % 6] for place in range(120)], abs=1e-4)
    numbers = dict(re.findall(r"^(dsv_\S+) (\S+)$", ask(f"{address}/metrics")[1], re.MULTILINE))
    calls, images = float(numbers["dsv_batch_size_count"]), float(numbers["dsv_batch_size_sum"])
    assert images >= 120
    assert calls < images
    of_verdicts = [float(value) for name, value in numbers.items() if name.startswith("dsv_images_total")]
    assert sum(of_verdicts) == images == float(numbers["dsv_seconds_count"]) == float(numbers["dsv_p_value_count"])


def test_health(address: str, calibrated_run: Path, calibrated_model: Model):
    status, text = ask(f"{address}/health")
    found = json.loads(text)
    assert (status, found["status"], found["run"]) == (200, "ready", calibrated_run.name)
    assert found["held_out_images"] == len(calibrated_model.calibration.held_out)


def test_it_says_once_that_the_images_have_changed_and_sigterm_ends_it(calibrated_run: Path):
    content = [io.BytesIO() for _ in range(60)]
    for number, file in enumerate(content):
        Image.fromarray(texture(300 + number, size=70) // 2).save(file, "PNG")
    with serving(calibrated_run) as (process, address):
        assert json.loads(ask(f"{address}/health")[1])["changed"] is None
        for file in content:
            assert ask(f"{address}/predict", file.getvalue())[0] == 200
        changed = json.loads(ask(f"{address}/health")[1])["changed"]
        assert changed.startswith("the images have changed, or more than 30% of them are anomalous: their brightness")
        assert "\ndsv_changed 1.0\n" in ask(f"{address}/metrics")[1]
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1] == f"note: {changed}\n"
        assert process.returncode == 0


def png(height: int, width: int, *, noise: bool = False) -> bytes:
    pixels = np.zeros((height, width), np.uint8)
    if noise:
        pixels[:] = np.random.default_rng(0).integers(0, 256, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "the image cannot be read as an image"),
        (b"no image", 400, "it is no PNG, JPEG"),
        (png(50, 50, noise=True)[:1000], 400, "cannot be read"),
        (png(500, 500, noise=True), 413, "the file has more than 0.2 MB"),
        (png(400, 300), 413, "the image has more than 0.1 megapixels"),
    ],
    ids=["empty", "text", "cut-off", "large-file", "large-image"],
)
def test_what_is_refused(address: str, photos: list[Path], body: bytes, status: int, reason: str):
    code, text = ask(f"{address}/predict", body)
    assert code == status
    assert reason in json.loads(text)["detail"]
    assert judged(address, photos[0])["verdict"]  # others are still served
    assert f'dsv_refused_total{{status="{status}"}}' in ask(f"{address}/metrics")[1]


def test_more_requests_at_once_are_told_to_try_again(address: str, photos: list[Path]):
    host, port = address.removeprefix("http://").split(":")
    with contextlib.ExitStack() as slow:
        for _ in range(WAITING):  # clients that have announced an image, and do not send it
            client = slow.enter_context(socket.create_connection((host, int(port))))
            client.sendall(b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n")
        while (answer := ask(f"{address}/predict", photos[0].read_bytes()))[0] == 200:
            pass  # until the last of them is accepted
        assert answer[0] == 503
        assert "try again" in answer[1]
    while ask(f"{address}/predict", photos[0].read_bytes())[0] != 200:
        pass  # until the server has seen that they are gone


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="install chromium and chromium-driver")
def test_the_page_shows_a_dropped_image_and_nothing_of_its_name_runs(address: str, photos: list[Path], tmp_path: Path):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=900,700"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    photo = tmp_path / "<img src=x onerror=document.title=1>.png"
    photo.write_bytes(photos[1].read_bytes())
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        browser.get(address)
        browser.find_element("css selector", "input").send_keys(str(photo))
        browser.implicitly_wait(30)
        assert browser.find_element("css selector", "p.anomalous").text == "anomalous"
        shown = browser.find_element("css selector", "article img")
        assert shown.size["width"] > 50
        assert browser.find_element("css selector", "h2").text == photo.name
        assert browser.title == "<b>run · dsv serve"
        assert len(browser.find_elements("css selector", "article img, b")) == 1
        assert [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]] == []
        browser.save_screenshot(os.environ.get("DSV_SCREENSHOT", str(tmp_path / "page.png")))
    finally:
        browser.quit()


def test_ctrl_c_ends_it_cleanly(calibrated_run: Path, photos: list[Path]):
    with serving(calibrated_run) as (process, address):
        assert judged(address, photos[0])["verdict"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_one_line(calibrated_run: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        completed = dsv_here("serve", calibrated_run, "--port", port)
    assert completed.returncode == 2
    assert completed.stderr == (
        f"dsv serve: the address 127.0.0.1:{port} cannot be used (Address already in use); "
        "give another --host or --port\n"
    )


def test_a_missing_package_is_one_line(calibrated_run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    completed = dsv_here("serve", calibrated_run)
    assert completed.returncode == 2
    assert completed.stderr == "dsv serve: dsv serve needs the package uvicorn; pip install 'dsv-plugins[serve]'\n"
