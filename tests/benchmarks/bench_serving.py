"""What a model costs on a line: loading it, judging one image, `dsv serve` alone and under load, and the exported file.

    python tests/benchmarks/bench_serving.py [RUN [IMAGES]]

Without a run folder, it makes a study of the default detector on drawn images of 700 × 700 pixels. One image goes to
`Model.predict` and to the server in turn, so that whatever else the machine does slows both.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torchvision  # noqa: F401 — what loading imports is not what it costs
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from conftest import texture

from dsv_plugins import load, select
from dsv_plugins.run.export import export_model

SIDE, TRAIN, TEST = 700, 60, 10
TURNS, REQUESTS, CLIENTS = 60, 500, 8


def study(folder: Path) -> Path:
    for name, seeds in (("good", range(TRAIN)), ("new", range(100, 100 + TEST))):
        (folder / name).mkdir()
        for seed in seeds:
            Image.fromarray(texture(seed, size=SIDE)).convert("RGB").save(folder / name / f"{seed}.png")
    sizes = {"patch_size": [0.02, 0.08, 0.32]}
    return Path(select(folder / "good", folder / "new", grid=sizes, out=folder / "run").path)


def seconds(work: object, *arguments: object) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def main(run: Path, images: Path, folder: Path) -> None:
    load(run)  # imports
    print(f"loading: {statistics.median(seconds(load, run) for _ in range(3)):.2f} s, imports not counted")
    model, files = load(run), sorted(images.rglob("*.png"))
    contents = [file.read_bytes() for file in files]
    command = [sys.executable, "-m", "dsv_plugins", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        address = re.search(r"http://\S+", server.stderr.readline())[0]

        def ask(content: bytes) -> int:
            with urllib.request.urlopen(f"{address}/predict", content, timeout=120) as response:
                return response.status

        ask(contents[0])
        model.predict(files[0])
        direct, served = [], []
        for turn in range(TURNS):
            direct.append(seconds(model.predict, files[turn % len(files)]))
            served.append(seconds(ask, contents[turn % len(files)]))
        ratio = statistics.median(served) / statistics.median(direct)
        print(f"one image: predict {1000 * statistics.median(direct):.1f} ms, ", end="")
        print(f"served {1000 * statistics.median(served):.1f} ms, ratio {ratio:.2f}")
        begin = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answered = list(pool.map(ask, [contents[number % len(files)] for number in range(REQUESTS)]))
        rate = REQUESTS / (time.perf_counter() - begin)
        print(f"{CLIENTS} clients: {answered.count(200)} of {REQUESTS} requests answered, {rate:.1f} each second")
        server.terminate()
        print(f"exit code {server.wait()}")
    print(f"export: {seconds(export_model, model, 'onnx', folder / 'model.onnx'):.1f} s")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    pixels = [np.asarray(Image.open(file).convert("RGB"))[None] for file in files]
    session.run(None, {"images": pixels[0]})
    found = [seconds(session.run, None, {"images": each}) for each in pixels]
    print(f"onnxruntime, decoded: {1000 * statistics.median(found):.1f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        given = [Path(argument) for argument in sys.argv[1:]]
        of_run = given[0] if given else study(here)
        main(of_run, given[1] if len(given) > 1 else here / "new", here)
