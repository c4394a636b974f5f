"""Plugins with one fault each, made from the honest examples in the interfaces' docstrings."""

from __future__ import annotations

import inspect
import itertools
import random
import re
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoder,
    DetectorEncoderPlugin,
    Executor,
    ExecutorPlugin,
    Observer,
    ObserverPlugin,
    Outcome,
    ScoreError,
    Search,
    SearchPlugin,
    SelectorPlugin,
)
from dsv_plugins.plugins import interfaces
from dsv_plugins.plugins.records import Plugin


def example(interface: type) -> ModuleType:
    """The complete plugin in an interface's docstring, as a module."""
    code = re.search(r"```python\n(.*?)```", inspect.getdoc(interface), flags=re.DOTALL)[1]
    module = ModuleType(f"example_{interface.__name__}")
    exec(code, vars(module))
    return module


STRIPE, LINEAR, SPREAD, SAMPLE, THREADS, LINES = (
    example(interface)
    for interface in (
        interfaces.Augmentation,
        interfaces.DetectorEncoder,
        interfaces.Selector,
        Search,
        interfaces.Executor,
        Observer,
    )
)


@dataclass(frozen=True)
class Broken:
    """A plugin with one fault.

    `along` are the checks that it fails besides the one that is meant to find the fault; None if they are many.
    """

    meant: str
    record: Plugin
    along: frozenset[str] | None = frozenset()

    def __str__(self) -> str:
        return f"{self.record.kind}-{self.meant}-{self.record.name}"


# ---------------------------------------------------------------------------
# Broken augmentations: each does to the honest one's output what it must not
# ---------------------------------------------------------------------------


def honest(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return STRIPE.Stripe(2)(images, generator=generator)


def augmentation(function: Callable[..., torch.Tensor], name: str = "broken", **space: list) -> AugmentationPlugin:
    """A record whose object calls `function(images, generator, **hyperparameters)`."""
    return AugmentationPlugin(
        name, lambda **params: lambda images, *, generator: function(images, generator, **params), space=space
    )


def modify_input(images, generator):
    return images.copy_(honest(images, generator))


class Forgetful:
    """Uses a generator of its own after the first call."""

    def __init__(self):
        self.calls = itertools.count()

    def __call__(self, images, *, generator):
        return honest(images, torch.Generator().manual_seed(generator.initial_seed() + next(self.calls)))


class Individual:
    """Draws otherwise than every other object of its class."""

    objects = itertools.count()

    def __init__(self):
        self.offset = next(self.objects)

    def __call__(self, images, *, generator):
        return honest(images, torch.Generator().manual_seed(generator.initial_seed() + self.offset))


def draw_once(images, generator):
    return honest(images[:1], generator).eq(0).logical_not() * images


def refuse_three(images, generator, strength):
    if strength == 3:
        raise ZeroDivisionError("division by zero")
    return honest(images, generator)


def spoil_three(factor: float) -> Callable[..., torch.Tensor]:
    return lambda images, generator, strength: honest(images, generator) * (factor if strength == 3 else 1.0)


def after(seed_globally: Callable[[int], object]) -> Callable[..., torch.Tensor]:
    def augment(images, generator):
        seed_globally(0)
        return honest(images, generator)

    return augment


def peek_at_global_state(images, generator):
    """Depends on a global generator and puts it back."""
    state = random.getstate()
    number = random.random()
    random.setstate(state)
    return honest(images, generator) * number


def honest_without_generator(images):
    return honest(images, torch.Generator())


class Shared:
    """Keeps the generator of a call in the object, where a call in another thread finds it."""

    def __call__(self, images, *, generator):
        self.generator = generator
        time.sleep(0.001)
        return honest(images, self.generator)


BROKEN_AUGMENTATIONS = [
    Broken("has_sound_record", augmentation(honest, name="Not A Name")),
    Broken("has_all_methods", AugmentationPlugin("broken", dict), along=None),
    Broken("keeps_shape", augmentation(lambda i, g: honest(i, g)[..., 1:]), along=None),
    Broken("can_be_called", augmentation(lambda i, g: honest(i, g).numpy(), name="numpy"), along=None),
    Broken("can_be_called", AugmentationPlugin("forgetful", lambda: honest_without_generator), along=None),
    Broken("keeps_dtype", augmentation(lambda i, g: honest(i, g).float())),
    Broken("keeps_device", augmentation(lambda i, g: honest(i, g).to("meta")), along=None),
    Broken("keeps_range", augmentation(lambda i, g: honest(i, g) * 1.01), along=None),
    Broken("keeps_range", augmentation(lambda i, g: honest(i, g) - 0.01, name="negative"), along=None),
    Broken("returns_finite_values", augmentation(lambda i, g: honest(i, g) / 0), along=None),
    Broken("does_not_modify_its_input", augmentation(modify_input)),
    Broken(
        "repeats_itself",
        AugmentationPlugin("broken", Forgetful),
        along=frozenset({"agrees_with_itself_in_threads"}),
    ),
    Broken(
        "repeats_itself",
        AugmentationPlugin("individual", Individual),
        along=frozenset({"ignores_global_randomness"}),
    ),
    Broken("draws_from_the_generator", augmentation(lambda i, g: honest(i, torch.Generator().manual_seed(0)))),
    Broken("draws_for_each_image", augmentation(draw_once)),
    Broken("takes_any_batch_size", augmentation(lambda i, g: honest(i, g).squeeze(0))),
    Broken("takes_grey_and_colour", augmentation(lambda i, g: honest(i, g) * torch.ones(1, 3, 1, 1))),
    Broken("takes_any_size", augmentation(lambda i, g: honest(i, g).mT)),
    Broken("works_at_every_point", augmentation(refuse_three, strength=[1, 2, 3])),
    Broken("works_at_every_point", augmentation(spoil_three(torch.nan), name="nan", strength=[1, 2, 3])),
    Broken("works_at_every_point", augmentation(spoil_three(2.0), name="range", strength=[1, 2, 3])),
    Broken("leaves_global_randomness_alone", augmentation(after(torch.manual_seed), name="torch")),
    Broken("leaves_global_randomness_alone", augmentation(after(np.random.seed), name="numpy")),
    Broken("leaves_global_randomness_alone", augmentation(after(random.seed), name="random")),
    Broken("ignores_global_randomness", augmentation(peek_at_global_state)),
    Broken("agrees_with_itself_in_threads", AugmentationPlugin("shared", Shared)),
]


# ---------------------------------------------------------------------------
# Broken detector encoders: the honest one with a method replaced
# ---------------------------------------------------------------------------

Linear = LINEAR.LinearDetector


def detector(name: str = "broken", **methods: Callable) -> DetectorEncoderPlugin:
    return DetectorEncoderPlugin(name, type("Replaced", (Linear,), methods))


def fit_after(prepare: Callable[[dict], object]) -> Callable[..., None]:
    """A training that first does something to its arguments, or elsewhere."""

    def fit(self, images, augmentation, **settings):
        arguments = {"images": images, "augmentation": augmentation, **settings}
        prepare(arguments)
        Linear.fit(self, **arguments)

    return fit


def connect_to(open_connection: Callable[[], object]) -> Callable[[dict], None]:
    """Try to connect, and continue without; only ever to a port of this machine at which nobody listens."""

    def connect(arguments):
        with suppress(OSError):
            open_connection()

    return connect


class Clock:
    """The real clock, which a training can put forward."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.ahead


CLOCK = Clock()


def put_clock_forward(arguments):
    CLOCK.ahead += 100.0


def load_without_centre(self, folder):
    Linear.load(self, folder)
    self.centre = torch.zeros_like(self.centre)


def load_negated(self, folder):
    """Other embeddings with the same scores."""
    Linear.load(self, folder)
    self.centre = -self.centre
    with torch.no_grad():
        for parameter in self.encoder.parameters():
            parameter.neg_()


def encode_saturated_to_nan(self, images):
    return Linear.encode(self, images).masked_fill(images.amax(dim=(1, 2, 3))[:, None] == 255, torch.nan)


def encode_halved_floats(self, images):
    return Linear.encode(self, images) * (0.5 if images.is_floating_point() else 1.0)


class Halved(torch.nn.Module):
    """The scores of a detector, halved."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def forward(self, images):
        return (self.found.score(images) / 2,)


class Distances(torch.nn.Module):
    """The right scores, by an operator that does otherwise for more than 25 rows."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def forward(self, images):
        return (torch.cdist(self.found.encode(images), self.found.centre[None])[:, 0],)


class Eigenvalues(Distances):
    """The right scores, with an operator that ONNX does not have."""

    def forward(self, images):
        rows = self.found.encode(images) - self.found.centre
        return (torch.linalg.eigvalsh(rows[:, :, None] @ rows[:, None])[:, -1].sqrt(),)


class Heating(Halved):
    """The scores of a detector, and heatmaps that it does not have."""

    def forward(self, images):
        return self.found.score(images), images.mean(dim=1)


TRAININGS = itertools.count()

BROKEN_DETECTOR_ENCODERS = [
    Broken("has_sound_record", replace(detector(), space={"width": []}), along=None),
    Broken("has_all_methods", detector(score=DetectorEncoder.score), along=None),
    Broken("starts_alike", detector(shared_updates=5)),
    Broken(
        "uses_no_network",
        detector("connects", fit=fit_after(connect_to(lambda: socket.socket().connect(("127.0.0.1", 9))))),
    ),
    Broken(
        "uses_no_network",
        detector("resolves", fit=fit_after(connect_to(lambda: socket.create_connection(("localhost", 9))))),
    ),
    Broken("can_be_trained", detector("raises", fit=fit_after(lambda a: 1 / 0)), along=None),
    Broken("fits_in_seconds", detector(fit=fit_after(put_clock_forward))),
    Broken("reports_progress", detector(fit=fit_after(lambda a: a.update(progress=None)))),
    Broken(
        "reports_progress",
        detector(
            "exaggerates", fit=fit_after(lambda a: a.update(progress=lambda *_, report=a["progress"]: report(9, 3, 0)))
        ),
    ),
    Broken(
        "encodes_to_one_row_for_each_image",
        detector(
            encode=lambda self, images: Linear.encode(self, images)[:, None],
            score=lambda self, images: Linear.score(self, images).mean(dim=1),
        ),
    ),
    Broken(
        "encodes_to_finite_values",
        detector(encode=encode_saturated_to_nan),
        along=frozenset({"encodes_each_image_on_its_own", "loads_what_it_saved", "scores_anomalies_higher"}),
    ),
    Broken(
        "encodes_each_image_on_its_own",
        detector(encode=lambda self, images: Linear.encode(self, images) * len(images)),
    ),
    Broken(
        "encodes_augmented_copies",
        detector(encode_augmented=lambda self, images, *_, **__: Linear.encode(self, images)[:, 1:]),
    ),
    Broken(
        "encodes_augmented_copies",
        detector("nan", encode_augmented=lambda self, images, *_, **__: Linear.encode(self, images) * torch.nan),
    ),
    Broken(
        "learns_from_the_augmentation",
        detector(fit=fit_after(lambda a: a.update(augmentation=STRIPE.Stripe(2)))),
    ),
    Broken("scores_each_image", detector(score=lambda self, images: Linear.score(self, images)[:, None])),
    Broken("scores_each_image", detector("nan", score=lambda self, images: torch.full([12], torch.nan)), along=None),
    Broken("scores_anomalies_higher", detector(score=lambda self, images: -Linear.score(self, images))),
    Broken("repeats_itself", detector(fit=fit_after(lambda a: a.update(seed=next(TRAININGS))))),
    Broken(
        "repeats_itself",
        detector("peeks", fit=fit_after(lambda a: a.update(seed=torch.initial_seed()))),
    ),
    Broken("takes_integers_and_floats", detector(encode=encode_halved_floats)),
    Broken("does_not_modify_its_input", detector(fit=fit_after(lambda a: a["images"][0].zero_()))),
    Broken("loads_what_it_saved", detector(load=load_without_centre)),
    Broken("loads_what_it_saved", detector("negated", load=load_negated)),
    Broken("exports_the_same_scores", detector(as_module=lambda self: Halved(self))),
    Broken("exports_the_same_scores", detector("heats", as_module=lambda self: Heating(self))),
    Broken(
        "saves_no_pickle",
        detector(
            save=lambda self, folder: torch.save([self.encoder, self.centre], folder / "linear.pt"),
            load=lambda self, folder: vars(self).update(
                zip(("encoder", "centre"), torch.load(folder / "linear.pt", weights_only=False), strict=True)
            ),
        ),
    ),
    Broken("saves_no_pickle", detector("forgets", save=lambda self, folder: None), along=None),
    Broken("leaves_global_randomness_alone", detector(fit=fit_after(lambda a: torch.manual_seed(a["seed"])))),
]


# ---------------------------------------------------------------------------
# Broken selectors
# ---------------------------------------------------------------------------


def gap(evaluation) -> float:
    return -float(evaluation.scores.test.mean() - evaluation.scores.train.mean())


def gaps(evaluations) -> list[float]:
    return [gap(evaluation) for evaluation in evaluations]


def selector(losses: Callable[[Sequence], object], name: str = "broken", **fields: object) -> SelectorPlugin:
    return SelectorPlugin(name, type("Broken", (), {"losses": staticmethod(losses)}), **fields)


class IgnoresTheRows:
    """Gives every resample the losses of all test images."""

    def losses(self, evaluations):
        return gaps(evaluations)

    def resampled_losses(self, evaluations, test_rows):
        return torch.tensor([gaps(evaluations)] * len(test_rows))


class ForgetsTheResamples(IgnoresTheRows):
    def resampled_losses(self, evaluations, test_rows):
        return gaps(evaluations)


def reverse_in_place(evaluations):
    evaluations.reverse()
    return gaps(evaluations)[::-1]


def mark_candidates(evaluations):
    for evaluation in evaluations:
        evaluation.candidate.params["seen"] = True
    return gaps(evaluations)


def zero_embeddings(evaluations):
    for evaluation in evaluations:
        evaluation.embeddings.augmented.zero_()
    return gaps(evaluations)


def refuse_nan_silently(evaluations):
    if any(loss != loss for loss in gaps(evaluations)):
        raise ScoreError
    return gaps(evaluations)


def over_pool_mean(evaluations):
    mean = sum(gaps(evaluations)) / len(evaluations)
    return [loss - mean for loss in gaps(evaluations)]


BROKEN_SELECTORS = [
    Broken("has_sound_record", selector(gaps, name="")),
    Broken("has_all_methods", SelectorPlugin("broken", object), along=None),
    Broken("returns_one_float_for_each_candidate", selector(lambda es: gaps(es)[1:]), along=None),
    Broken("returns_one_float_for_each_candidate", selector(lambda es: min(gaps(es)), name="best"), along=None),
    Broken("returns_one_float_for_each_candidate", selector(lambda es: map(str, gaps(es)), name="text"), along=None),
    Broken(
        "ranks_ordinary_candidates",
        selector(lambda es: [float("nan") for _ in es]),
        along=frozenset({"survives_nan_in_one_candidate"}),
    ),
    Broken(
        "follows_the_order_of_candidates",
        selector(lambda es: [gap(evaluation) + index for index, evaluation in enumerate(es)]),
    ),
    Broken("repeats_itself", selector(lambda es: [loss * torch.initial_seed() for loss in gaps(es)])),
    Broken("does_not_modify_its_input", selector(reverse_in_place, name="list")),
    Broken("does_not_modify_its_input", selector(mark_candidates, name="candidate")),
    Broken("does_not_modify_its_input", selector(zero_embeddings, name="tensors")),
    Broken(
        "judges_alone_if_it_says_so",
        selector(lambda es: [loss * len(es) for loss in gaps(es)], judges_alone=True),
    ),
    Broken("resamples_as_it_judges", SelectorPlugin("rows", IgnoresTheRows)),
    Broken("resamples_as_it_judges", SelectorPlugin("shape", ForgetsTheResamples)),
    Broken("survives_one_candidate", selector(lambda es: [gap(e) / bool(len(es) - 1) for e in es])),
    Broken("survives_constant_scores", selector(lambda es: [1 / gap(e) for e in es])),
    Broken("survives_nan_in_one_candidate", selector(over_pool_mean)),
    Broken("survives_nan_in_one_candidate", selector(refuse_nan_silently, name="silent")),
    Broken("survives_no_holdout", selector(lambda es: [gap(e) + float(e.scores.holdout.mean()) for e in es])),
]


# ---------------------------------------------------------------------------
# Broken executors
# ---------------------------------------------------------------------------


def outcome(work: Callable, index: int, job: object) -> Outcome:
    try:
        return Outcome(index, work(job))
    except ValueError as error:
        return Outcome(index, error=error)


def outcomes(work: Callable, jobs: Sequence) -> list[Outcome]:
    return [outcome(work, index, job) for index, job in enumerate(jobs)]


def executor(run: Callable, name: str = "broken") -> ExecutorPlugin:
    return ExecutorPlugin(name, type("Broken", (Executor,), {"run": staticmethod(run)}))


class Once(Executor):
    """Has one pool for its life, and shuts it down with the first run."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(1)

    def run(self, work, jobs):
        with self.pool as pool:
            return list(pool.map(lambda job: outcome(work, *job), enumerate(jobs)))


BROKEN_EXECUTORS = [
    Broken("has_sound_record", ExecutorPlugin("broken", lambda workers: THREADS.Threads(workers)), along=None),
    Broken("has_all_methods", ExecutorPlugin("broken", object), along=None),
    Broken("returns_one_outcome_for_each_job", executor(lambda work, jobs: outcomes(work, jobs)[1:]), along=None),
    Broken("returns_one_outcome_for_each_job", executor(lambda work, jobs: map(work, jobs), "bare"), along=None),
    Broken(
        "returns_one_outcome_for_each_job",
        executor(lambda work, jobs: outcomes(work, jobs) + outcomes(work, jobs)[:1], "twice"),
        along=None,
    ),
    Broken(
        "returns_one_outcome_for_each_job",
        executor(lambda work, jobs: [SimpleNamespace(**asdict(o)) for o in outcomes(work, jobs)], "duck"),
        along=None,
    ),
    Broken(
        "returns_one_outcome_for_each_job",
        executor(lambda work, jobs: [replace(o, value=o.value or None) for o in outcomes(work, jobs)], "falsy"),
        along=frozenset({"reports_an_error_in_its_outcome"}),
    ),
    Broken(
        "reports_an_error_in_its_outcome",
        executor(lambda work, jobs: [Outcome(index, work(job)) for index, job in enumerate(jobs)]),
    ),
    Broken(
        "reports_an_error_in_its_outcome",
        executor(lambda work, jobs: [replace(o, error=None) for o in outcomes(work, jobs)], "silent"),
    ),
    Broken("takes_no_jobs", executor(lambda work, jobs: outcomes(work, jobs or [0]), "eager")),
    Broken("takes_no_jobs", executor(lambda work, jobs: [outcome(work, 0, jobs[0]), *outcomes(work, jobs)[1:]])),
    Broken("runs_again", ExecutorPlugin("broken", Once)),
]

# ---------------------------------------------------------------------------
# Broken searches
# ---------------------------------------------------------------------------


def search(run: Callable, **flags: bool) -> SearchPlugin:
    return SearchPlugin("broken", type("Broken", (Search,), {"run": staticmethod(run)}), proposes=True, **flags)


def whole(problem, candidates):
    return problem.evaluate(candidates, problem.budget, None)


def outside(problem):
    return whole(problem, [problem.candidate("paste", {"size": 0.3})])


def counts_everything(problem):
    return whole(problem, [problem.candidate("cut", {"size": 0.3, "kind": [0, 1], "angle": 45})])


def by_the_dice(problem):
    return whole(problem, [problem.candidate("cut", {"size": random.SystemRandom().uniform(0.2, 1), "kind": [0, 1]})])


def keeps_failures(problem):
    reached = whole(problem, problem.grid())
    return {
        candidate.id: reached.get(candidate.id, SimpleNamespace(candidate=candidate)) for candidate in problem.grid()
    }


def without_the_rest(problem):
    return problem.evaluate(problem.grid(), 10, None)


def from_nowhere(problem):
    return problem.evaluate(problem.grid(), problem.budget, 10)


BROKEN_SEARCHES = [
    Broken("has_sound_record", SearchPlugin("broken", lambda storage: None), along=None),
    Broken("has_all_methods", SearchPlugin("broken", object), along=None),
    Broken("returns_what_got_the_whole_budget", search(without_the_rest, parts=True)),
    Broken("returns_what_got_the_whole_budget", search(from_nowhere), along=None),
    Broken("stays_in_the_search_spaces", search(outside)),
    Broken("stays_in_the_search_spaces", search(counts_everything)),
    Broken("repeats_itself", search(by_the_dice)),
    Broken("continues_without_those_that_fail", search(keeps_failures), along=None),
    Broken("takes_a_detector_without_a_budget", search(lambda problem: problem.evaluate(problem.grid(), 90, None))),
]

# ---------------------------------------------------------------------------
# Broken observers
# ---------------------------------------------------------------------------


class Impatient(Observer):
    def finished(self, candidate):
        """Takes no seconds."""


class Unready(Observer):
    def study_failed(self, error):
        self.writer.close()


BROKEN_OBSERVERS = [
    Broken("has_sound_record", ObserverPlugin("broken", lambda folder: Observer()), along=None),
    Broken("has_all_methods", ObserverPlugin("broken", object), along=None),
    Broken("has_no_misspelled_events", ObserverPlugin("broken", type("Deaf", (Observer,), {"finnished": print}))),
    Broken("takes_the_events_of_a_study", ObserverPlugin("broken", Impatient)),
    Broken("takes_the_events_of_a_study", ObserverPlugin("unready", Unready)),
]

BROKEN = (
    BROKEN_AUGMENTATIONS
    + BROKEN_DETECTOR_ENCODERS
    + BROKEN_SELECTORS
    + BROKEN_SEARCHES
    + BROKEN_EXECUTORS
    + BROKEN_OBSERVERS
)
