"""The conformance kit: honest plugins pass, and every check can fail."""

from __future__ import annotations

import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from broken_plugins import (
    BROKEN,
    CLOCK,
    LINEAR,
    LINES,
    SAMPLE,
    SPREAD,
    STRIPE,
    THREADS,
    Broken,
    Distances,
    Eigenvalues,
    augmentation,
    detector,
    draw_once,
    honest,
    refuse_three,
)

from dsv_plugins import (
    AugmentationPlugin,
    ConformanceError,
    InputError,
    Range,
    SelectorPlugin,
    When,
    build_registry,
)
from dsv_plugins.plugins.records import Plugin
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
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_detector_encoder, "time", SimpleNamespace(perf_counter=CLOCK))


def record_of(module: ModuleType) -> Plugin:
    registry = build_registry(plugins=[module])
    (record,) = (plugin.record for plugin in registry.plugins if plugin.provider.name == module.__name__)
    return record


def failed_checks(record: Plugin) -> set[str]:
    """Those that fail, also those whose fault an earlier one has told already."""
    return {result.check for result in run_checks(record) if result.failed or "fails as" in result.reason}


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
    assert [result.reason for result in results if result.failed] == ["SystemExit: bye"]


def test_one_fault_is_told_once() -> None:
    class WrongSignature:
        def __call__(self, images):
            return images

    results = list(run_checks(AugmentationPlugin("wrong", WrongSignature)))
    (told,) = [result for result in results if result.failed]
    assert told.check == "can_be_called"
    assert told.reason.startswith("cannot be called as augmentation(images, generator=generator): ")
    assert {(result.status, result.reason) for result in results[3:]} == {("skipped", "because can_be_called failed")}


def test_one_fault_that_differs_in_numbers_and_points_is_told_once() -> None:
    bright = augmentation(lambda images, generator, gain: honest(images, generator) * gain, gain=[1.5, 2.0, 3.0])
    results = {result.check: result for result in run_checks(bright)}
    assert [name for name, result in results.items() if result.failed] == ["keeps_range"]
    assert results["works_at_every_point"].reason == "because it fails as keeps_range does"


def test_a_failure_knows_the_line_that_raised() -> None:
    results = {result.check: result for result in run_checks(augmentation(refuse_three, strength=[1, 2, 3]))}
    error = results["works_at_every_point"].error
    assert error is not None
    assert "refuse_three" in "".join(traceback.format_exception(error))


def test_an_object_without_the_method_is_told_which() -> None:
    results = list(run_checks(SelectorPlugin("mistyped", type("Mistyped", (), {"loss": print}))))
    (told,) = [result for result in results if result.failed]
    assert (
        told.reason
        == "the factory made an object of class Mistyped, which has no method losses, which every Selector has"
    )


def test_nothing_more_is_checked_of_what_cannot_be_made() -> None:
    first, second, *others = run_checks(AugmentationPlugin("broken", dict))
    assert (first.status, second.status, second.check) == ("passed", "failed", "has_all_methods")
    assert {(result.status, result.reason) for result in others} == {("skipped", "because has_all_methods failed")}


def test_a_selector_that_needs_images_kept_out_is_not_asked_to_do_without() -> None:
    class Holdout:
        def losses(self, evaluations):
            return [float(evaluation.scores.holdout.mean()) for evaluation in evaluations]

    check_selector(SelectorPlugin("holdout", Holdout, needs_holdout=True))
    with pytest.raises(ConformanceError, match="survives_no_holdout: AttributeError"):
        check_selector(SelectorPlugin("holdout", Holdout))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            Distances,
            "the number of images cannot vary because of torch.functional.cdist in the line 'return (torch.cdist(",
        ),
        (Eigenvalues, "ONNX has no operator for aten._linalg_eigh"),
    ],
)
def test_what_dsv_export_cannot_export_is_told_with_the_operator(module: type, reason: str) -> None:
    results = run_checks(detector("unexportable", as_module=lambda self: module(self)))
    found = next(result for result in results if result.check == "exports_the_same_scores")
    assert found.failed
    assert found.reason.startswith(f"the module of as_module cannot be exported: {reason}")
    assert found.reason.isprintable()


def test_a_point_that_the_factory_refuses_is_left_out_as_in_a_study() -> None:
    def factory(mode, size=0.1):
        if mode == "flip" and size != 0.1:
            raise ValueError("flip takes no size")
        return STRIPE.Stripe(2)

    space = {"mode": ["cut", "flip"], "size": [0.1, 0.2]}
    check_augmentation(AugmentationPlugin("choosy", factory, space=space))


def test_a_hyperparameter_that_does_not_count_is_left_out() -> None:
    tried = points_tried(shape=["a", "b"], size=When("shape", "a", [1, 2]))
    assert tried == {("a", 1), ("a", 2), ("b",)}


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
        with _detector_encoder.refused_network() as attempts:
            with pytest.raises(ConnectionRefusedError, match="the conformance kit refuses"):
                socket.create_connection(server.getsockname())
            with pytest.raises(ConnectionRefusedError, match="the conformance kit refuses"), socket.socket() as direct:
                direct.connect(server.getsockname())
            with socket.socket(socket.AF_UNIX) as client:  # processes of one machine may still talk
                client.connect(str(tmp_path / "local"))
        assert len(attempts) == 2
        socket.create_connection(server.getsockname()).close()


def test_a_front_end_names_every_unexpected_failure() -> None:
    record = augmentation(lambda images, generator: torch.full_like(images, 2.0), name="two")
    with pytest.raises(ConformanceError) as error:
        check_augmentation(record, expected_failed_checks={"draws_for_each_image": "it is constant"})
    heading, *lines = str(error.value).splitlines()
    assert heading == f"augmentation 'two' fails {len(lines)} of 19 checks:"
    assert {line.split(":")[0].strip() for line in lines} == {
        "keeps_range", "draws_from_the_generator"
    }  # fmt: skip
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
    result.assert_outcomes(passed=19 - 3 + 19 - 2 + 13, xfailed=1, failed=2 + 2)
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
