"""A plugin of every kind, as it was written for the plugin interface 1.

Do not adapt this file to a new interface. It may fail only if `OLDEST_API` has grown beyond 1; then delete it.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoder,
    DetectorEncoderPlugin,
    Executor,
    ExecutorPlugin,
    Observer,
    ObserverPlugin,
    Outcome,
    Search,
    SearchPlugin,
    SelectorPlugin,
    hookimpl,
)

dsv_api = 1


class Stripe:
    """Blackens one row of each image."""

    def __init__(self, thickness):
        self.thickness = thickness

    def __call__(self, images, *, generator):
        count, _, height, _ = images.shape
        tops = torch.randint(height, (count, 1), generator=generator, device=images.device)
        rows = torch.arange(height, device=images.device)
        striped = (rows >= tops) & (rows < tops + self.thickness)
        return images.masked_fill(striped[:, None, :, None], 0.0)


@hookimpl
def augmentation():
    return AugmentationPlugin(
        name="stripe", factory=Stripe, space={"thickness": [1, 2, 4]}, summary="One black row of each image"
    )


class LinearDetector(DetectorEncoder):
    """One linear layer on a small version of the image, trained to tell normal from augmented."""

    def __init__(self, width=8):
        self.width = width

    def fit(self, images, augmentation, *, updates=None, seed=0, progress=None):
        generator = torch.Generator().manual_seed(seed)
        normal = pixels(images)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.encoder = nn.Linear(192, self.width)
            head = nn.Linear(self.width, 1)
        optimizer = torch.optim.Adam([*self.encoder.parameters(), *head.parameters()], lr=0.01)
        updates = updates or 50
        for update in range(updates):
            augmented = pixels(augmentation(as_float(images), generator=generator))
            logits = head(self.encoder(torch.cat([normal, augmented]))).squeeze(1)
            target = torch.cat([torch.zeros(len(normal)), torch.ones(len(augmented))])
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if progress:
                progress(update + 1, updates, loss.item())
        self.centre = self.encode(images).mean(dim=0)

    @torch.no_grad()
    def encode(self, images):
        return self.encoder(pixels(images))

    def score(self, images):
        return (self.encode(images) - self.centre).norm(dim=1)

    def save(self, folder):
        save_file({**self.encoder.state_dict(), "centre": self.centre}, folder / "linear.safetensors")

    def load(self, folder):
        tensors = load_file(folder / "linear.safetensors")
        self.centre = tensors.pop("centre")
        self.encoder = nn.Linear(192, self.width)
        self.encoder.load_state_dict(tensors)


def as_float(images):
    return images if images.is_floating_point() else images.float() / 255


def pixels(images):
    rgb = as_float(images).expand(-1, 3, -1, -1)
    return nn.functional.adaptive_avg_pool2d(rgb, 8).flatten(1)


@hookimpl
def detector_encoder():
    return DetectorEncoderPlugin(
        name="linear", factory=LinearDetector, summary="One linear layer", check_params={"width": 4}
    )


class ScoreSpread:
    """Prefers the detector whose test scores are spread the most, relative to its train scores."""

    def losses(self, evaluations):
        return [-float(e.scores.test.std() / (e.scores.train.std() + 1e-12)) for e in evaluations]


@hookimpl
def selector():
    return SelectorPlugin(
        name="score-spread", factory=ScoreSpread, judges_alone=True, summary="Largest spread of the test scores"
    )


class Threads(Executor):
    def __init__(self, workers=2):
        self.workers = workers

    def run(self, work, jobs):
        with ThreadPoolExecutor(self.workers) as pool:
            futures = {pool.submit(work, job): index for index, job in enumerate(jobs)}
            for future in as_completed(futures):
                error = future.exception()
                yield Outcome(futures[future], None if error else future.result(), error)


@hookimpl
def executor():
    return ExecutorPlugin(name="threads", factory=Threads, summary="Threads of this process")


class Sample(Search):
    """Some points of the grid, drawn at random."""

    def __init__(self, trials=3):
        self.trials = trials

    def run(self, problem):
        candidates = problem.grid()
        drawn = random.Random(problem.seed).sample(candidates, min(self.trials, len(candidates)))
        return problem.evaluate(drawn, problem.budget, None)


@hookimpl
def search():
    return SearchPlugin(name="sample", factory=Sample, proposes=True, summary="Some points of the grid")


class Lines(Observer):
    """Writes events as lines of JSON beside the run; MLflow or TensorBoard would be called in their place."""

    def started(self, run, candidates):
        self.file = run / "events.jsonl"

    def updated(self, candidate, update, planned, loss):
        self.write(event="updated", candidate=str(candidate), update=update, loss=loss)

    def finished(self, candidate, seconds):
        self.write(event="finished", candidate=str(candidate), seconds=seconds)

    def selected(self, selector, candidate, loss):
        self.write(event="selected", selector=selector, candidate=str(candidate), loss=loss)

    def write(self, **event):
        with self.file.open("a") as file:
            print(json.dumps(event), file=file)


@hookimpl
def observer():
    return ObserverPlugin(name="lines", factory=Lines, summary="Events as lines of JSON")
