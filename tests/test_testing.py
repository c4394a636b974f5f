"""The conformance kit: honest plugins pass, and every check can fail."""

from __future__ import annotations

import inspect
import itertools
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from dsv_plugins import (
    AugmentationPlugin,
    ConformanceError,
    DetectorEncoder,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    InputError,
    Observer,
    ObserverPlugin,
    Outcome,
    Range,
    ScoreError,
    Search,
    SearchPlugin,
    SelectorPlugin,
    build_registry,
    interfaces,
)
from dsv_plugins.records import Plugin
from dsv_plugins.testing import (
    _detector_encoder,
    check_augmentation,
    check_detector_encoder,
    check_executor,
    check_observer,
    check_search,
    check_selector,
    parametrize_with_checks,
    run_checks,
)

pytest_plugins = ["pytester"]


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


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """On tensors this small, threads that wait for a busy core cost far more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Broken:
    """A plugin with one fault.

    `along` are the checks that it fails besides the one that is meant to find the fault; None where they are many.
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
    """Goes on with a generator of its own after the first call."""

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


BROKEN_AUGMENTATIONS = [
    Broken("has_sound_record", augmentation(honest, name="Not A Name")),
    Broken("has_all_methods", AugmentationPlugin("broken", dict), along=None),
    Broken("keeps_shape", augmentation(lambda i, g: honest(i, g)[..., 1:]), along=None),
    Broken("keeps_shape", augmentation(lambda i, g: honest(i, g).numpy(), name="numpy"), along=None),
    Broken("keeps_dtype", augmentation(lambda i, g: honest(i, g).float())),
    Broken("keeps_device", augmentation(lambda i, g: honest(i, g).to("meta")), along=None),
    Broken("keeps_range", augmentation(lambda i, g: honest(i, g) * 1.01), along=None),
    Broken("keeps_range", augmentation(lambda i, g: honest(i, g) - 0.01, name="negative"), along=None),
    Broken("returns_finite_values", augmentation(lambda i, g: honest(i, g) / 0), along=None),
    Broken("does_not_modify_its_input", augmentation(modify_input)),
    Broken("repeats_itself", AugmentationPlugin("broken", Forgetful)),
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
    """Try to connect, and go on without; only ever to a port of this machine at which nobody listens."""

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


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_detector_encoder, "time", SimpleNamespace(perf_counter=CLOCK))


def put_clock_forward(arguments):
    CLOCK.ahead += 100.0


def load_without_centre(self, folder):
    Linear.load(self, folder)
    self.centre = torch.zeros_like(self.centre)


def load_mirrored(self, folder):
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
    Broken("fits_in_seconds", detector(fit=fit_after(put_clock_forward))),
    Broken("reports_progress", detector(fit=fit_after(lambda a: a.update(progress=None)))),
    Broken(
        "reports_progress",
        detector(
            "exaggerates", fit=fit_after(lambda a: a.update(progress=lambda *_, tell=a["progress"]: tell(9, 3, 0)))
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
    Broken("loads_what_it_saved", detector("mirrored", load=load_mirrored)),
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
    return ExecutorPlugin(name, type("Broken", (), {"run": staticmethod(run)}))


class Once:
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
    return SearchPlugin("broken", lambda: SimpleNamespace(run=run), proposes=True, **flags)


def whole(problem, candidates):
    return problem.evaluate(candidates, problem.budget, None)


def outside(problem):
    return whole(problem, [problem.candidate("paste", {"size": 0.3})])


def by_the_dice(problem):
    return whole(problem, [problem.candidate("cut", {"size": random.SystemRandom().uniform(0.2, 1), "kind": "soft"})])


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
    Broken("repeats_itself", search(by_the_dice)),
    Broken("goes_on_without_those_that_fail", search(keeps_failures), along=None),
    Broken("takes_a_detector_that_tells_no_budget", search(lambda problem: problem.evaluate(problem.grid(), 90, None))),
]

# ---------------------------------------------------------------------------
# Broken observers
# ---------------------------------------------------------------------------


class Forgetful(Observer):
    def finished(self, candidate):
        """Takes no seconds."""


BROKEN_OBSERVERS = [
    Broken("has_sound_record", ObserverPlugin("broken", lambda folder: Observer()), along=None),
    Broken("is_an_observer", ObserverPlugin("broken", object), along=None),
    Broken("takes_the_events_of_a_study", ObserverPlugin("broken", Forgetful)),
]

BROKEN = (
    BROKEN_AUGMENTATIONS
    + BROKEN_DETECTOR_ENCODERS
    + BROKEN_SELECTORS
    + BROKEN_SEARCHES
    + BROKEN_EXECUTORS
    + BROKEN_OBSERVERS
)


def record_of(module: ModuleType) -> Plugin:
    registry = build_registry(plugins=[module])
    (record,) = (plugin.record for plugin in registry.plugins if plugin.provider.name == module.__name__)
    return record


def failed_checks(record: Plugin) -> set[str]:
    return {result.check for result in run_checks(record) if result.failed}


@pytest.mark.parametrize(
    ("module", "front_end"),
    [
        (STRIPE, check_augmentation),
        (LINEAR, check_detector_encoder),
        (SPREAD, check_selector),
        (SAMPLE, check_search),
        (THREADS, check_executor),
        (LINES, check_observer),
    ],
    ids=lambda value: value.__name__,
)
def test_the_examples_in_the_interfaces_pass(module: ModuleType, front_end: Callable) -> None:
    results = front_end(record_of(module))
    assert {result.status for result in results} == {"passed"}


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_broken_plugin_fails_the_check_that_is_meant_to_find_it(broken: Broken) -> None:
    failed = failed_checks(broken.record)
    if broken.along is None:
        assert broken.meant in failed
    else:
        assert failed == {broken.meant, *broken.along}


@pytest.mark.parametrize("module", [STRIPE, LINEAR, SPREAD, SAMPLE, THREADS, LINES], ids=lambda module: module.__name__)
def test_every_check_can_fail(module: ModuleType) -> None:
    record = record_of(module)
    found = {broken.meant for broken in BROKEN if broken.record.kind == record.kind}
    assert found == {result.check for result in run_checks(record)}


def test_a_failure_has_its_reason_in_one_line() -> None:
    results = {result.check: result for result in run_checks(augmentation(refuse_three, strength=[1, 2, 3]))}
    reason = "at {'strength': 3}: ZeroDivisionError: division by zero"
    assert (results["works_at_every_point"].status, results["works_at_every_point"].reason) == ("failed", reason)
    assert (results["keeps_shape"].status, results["keeps_shape"].reason) == ("passed", "")


def test_a_plugin_that_ends_the_process_does_not_end_the_kit() -> None:
    results = list(run_checks(augmentation(lambda images, generator: sys.exit("bye"))))
    assert results[-1].reason == "SystemExit: bye"


def points_tried(**space: Sequence[object] | Range) -> set[tuple[object, ...]]:
    tried = set()

    def note(images, generator, **point):
        tried.add(tuple(point.values()))
        return honest(images, generator)

    check_augmentation(augmentation(note, **space))
    return tried


def test_every_point_of_a_small_space_is_tried_and_both_ends_of_a_range() -> None:
    tried = points_tried(shape=["a", "b"], size=Range(1.0, 3.0))
    assert tried == {(shape, size) for shape in "ab" for size in (1.0, 2.0, 3.0)}


def test_a_large_space_is_sampled() -> None:
    assert 150 < len(points_tried(a=range(100), b=range(100))) < 250


def test_the_network_is_refused_and_then_given_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "local"))
        local.listen()
        with _detector_encoder._refused_network() as attempts:
            with pytest.raises(ConnectionRefusedError, match="the conformance kit refuses"):
                socket.create_connection(server.getsockname())
            with pytest.raises(ConnectionRefusedError, match="the conformance kit refuses"), socket.socket() as direct:
                direct.connect(server.getsockname())
            with socket.socket(socket.AF_UNIX) as client:  # processes of one machine may go on talking
                client.connect(str(tmp_path / "local"))
        assert len(attempts) == 2
        socket.create_connection(server.getsockname()).close()


def test_a_front_end_names_every_unexpected_failure() -> None:
    record = augmentation(lambda images, generator: torch.full_like(images, 2.0), name="two")
    with pytest.raises(ConformanceError) as error:
        check_augmentation(record, expected_failed_checks={"draws_for_each_image": "it is constant"})
    heading, *lines = str(error.value).splitlines()
    assert heading == f"augmentation 'two' fails {len(lines)} of 17 checks:"
    assert {line.split(":")[0].strip() for line in lines} == failed_checks(record) - {"draws_for_each_image"}
    assert "  keeps_range: returned pixels from 2 to 2; keep them in [0, 1]" in lines


def test_an_expected_failure_is_not_held_against_the_plugin() -> None:
    expected = {"draws_for_each_image": "one stripe for the whole batch"}
    results = check_augmentation(augmentation(draw_once), expected_failed_checks=expected)
    (result,) = (result for result in results if result.status != "passed")
    assert (result.check, result.status, result.reason, result.failed) == (
        "draws_for_each_image", "expected failure", "one stripe for the whole batch", False
    )  # fmt: skip


def test_an_expected_failure_that_passes_has_failed() -> None:
    with pytest.raises(ConformanceError, match=r"keeps_shape: unexpected pass.*it used to crop"):
        check_augmentation(augmentation(honest), expected_failed_checks={"keeps_shape": "it used to crop"})


def test_an_unknown_check_is_an_error_at_once() -> None:
    with pytest.raises(InputError, match=r"'keeps_shapes'.*did you mean 'keeps_shape'"):
        run_checks(augmentation(honest), {"keeps_shapes": "?"})


@pytest.mark.parametrize(
    "front_end", [check_detector_encoder, check_selector, check_search, check_executor, check_observer]
)
def test_a_front_end_refuses_a_record_of_another_kind(front_end: Callable) -> None:
    with pytest.raises(InputError, match="is not a record of"):
        front_end(augmentation(honest))


def test_what_is_no_record_cannot_be_checked() -> None:
    with pytest.raises(InputError, match="cannot be checked"):
        run_checks("cutpaste")


def test_pytest_front_end(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # pytest cuts its lines to fit
    pytester.makepyfile(
        """
        from dsv_plugins import AugmentationPlugin, SelectorPlugin
        from dsv_plugins.testing import parametrize_with_checks

        class Same:
            def __call__(self, images, *, generator):
                return images.clone()

        class Zero:
            def losses(self, evaluations):
                return [0.0 for _ in evaluations]

        SAME, ZERO = AugmentationPlugin("same", Same), SelectorPlugin("zero", Zero)
        EXPECTED = {"draws_from_the_generator": "nothing to draw", "keeps_shape": "a mistake"}

        @parametrize_with_checks([SAME], expected_failed_checks=EXPECTED)
        def test_one(check):
            check()

        @parametrize_with_checks([SAME, ZERO])
        def test_both(check):
            check()
        """
    )
    result = pytester.runpytest_inprocess("-rxfE", "-p", "no:cacheprovider")
    # Of test_one, draws_for_each_image fails and keeps_shape passes unexpectedly; of test_both, two fail.
    result.assert_outcomes(passed=17 - 3 + 17 - 2 + 12, xfailed=1, failed=2 + 2)
    result.stdout.fnmatch_lines(
        [
            "XFAIL *test_one?same-draws_from_the_generator? - *nothing to draw*",
            "FAILED *test_one?same-keeps_shape?*XPASS(strict)*a mistake*",
            "FAILED *test_one?same-draws_for_each_image?*let each image draw its own*",
        ]
    )
    assert "zero-survives_one_candidate" in str(pytester.runpytest_inprocess("--collect-only", "-q").stdout)


def test_pytest_front_end_refuses_what_would_check_nothing() -> None:
    with pytest.raises(InputError, match="no records"):
        parametrize_with_checks([])
    with pytest.raises(InputError, match=r"did you mean 'keeps_shape'"):
        parametrize_with_checks([augmentation(honest)], {"keeps_shapes": "?"})


def test_the_kit_is_imported_without_pytest_and_torch() -> None:
    """Scripts may run it without pytest; a worker process that runs an executor's checks has no use for torch."""
    program = "import sys; sys.modules.update(pytest=None, torch=None); import dsv_plugins.testing._executor"
    subprocess.run([sys.executable, "-c", program], check=True)
