"""The conformance kit: whether a plugin does what its interface promises.

```python
from dsv_plugins.testing import parametrize_with_checks


@parametrize_with_checks([augmentation()])
def test_conformance(check):
    check()
```

The same checks run in a script with `check_augmentation(record)` and its siblings, and on an installed plugin with
`dsv check NAME`. A check that a plugin fails for a good reason is named in `expected_failed_checks={check: reason}`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dsv_plugins.errors import ConformanceError, InputError, describe_error, did_you_mean
from dsv_plugins.plugins.records import (
    RECORDS,
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    ObserverPlugin,
    Plugin,
    SearchPlugin,
    SelectorPlugin,
)
from dsv_plugins.testing._suite import PREREQUISITES, Suite, names_of

if TYPE_CHECKING:
    import pytest

__all__ = [
    "CheckResult",
    "check_augmentation",
    "check_detector_encoder",
    "check_executor",
    "check_observer",
    "check_search",
    "check_selector",
    "parametrize_with_checks",
    "run_checks",
]

POINT = re.compile(r"^at \{.*?\}: ")
NUMBER = re.compile(r"-?\d[\d.e+-]*")

Expected = Mapping[str, str]
"""Names of checks that a plugin is known to fail, each with the reason."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one check ended.

    Attributes:
        check: Its name.
        status: A check that was expected to fail and passed has failed. One that could only tell the fault of an
            earlier check once more is skipped.
        reason: What is wrong, why a failure was expected, or why the check was skipped; empty if it passed.
        error: What was raised, if it failed.
    """

    check: str
    status: Literal["passed", "failed", "expected failure", "skipped"]
    reason: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def failed(self) -> bool:
        """Whether the plugin's author has something to do."""
        return self.status == "failed"


def run_checks(record: Plugin[Any], expected_failed_checks: Expected | None = None) -> Iterator[CheckResult]:
    """Run all checks of the plugin's kind, and yield each result as it comes.

    Args:
        record: What the plugin's hook returns.
        expected_failed_checks: Names of checks that the plugin is known to fail, each with the reason.

    Raises:
        InputError: The record is of no known kind, or there is no check of an expected name.
    """
    expected = expected_failed_checks or {}
    checks = _checks(record)
    _demand_known(expected, checks)
    return _run_all(checks, expected)


def check_augmentation(
    record: AugmentationPlugin, *, expected_failed_checks: Expected | None = None
) -> list[CheckResult]:
    """Run the conformance checks on an augmentation; `ConformanceError` names every unexpected failure."""
    return _check(AugmentationPlugin, record, expected_failed_checks)


def check_detector_encoder(
    record: DetectorEncoderPlugin, *, expected_failed_checks: Expected | None = None
) -> list[CheckResult]:
    """Run the conformance checks on a detector encoder; `ConformanceError` names every unexpected failure."""
    return _check(DetectorEncoderPlugin, record, expected_failed_checks)


def check_selector(record: SelectorPlugin, *, expected_failed_checks: Expected | None = None) -> list[CheckResult]:
    """Run the conformance checks on a selector; `ConformanceError` names every unexpected failure."""
    return _check(SelectorPlugin, record, expected_failed_checks)


def check_search(record: SearchPlugin, *, expected_failed_checks: Expected | None = None) -> list[CheckResult]:
    """Run the conformance checks on a search; `ConformanceError` names every unexpected failure."""
    return _check(SearchPlugin, record, expected_failed_checks)


def check_executor(record: ExecutorPlugin, *, expected_failed_checks: Expected | None = None) -> list[CheckResult]:
    """Run the conformance checks on an executor; `ConformanceError` names every unexpected failure."""
    return _check(ExecutorPlugin, record, expected_failed_checks)


def check_observer(record: ObserverPlugin, *, expected_failed_checks: Expected | None = None) -> list[CheckResult]:
    """Run the conformance checks on an observer; `ConformanceError` names every unexpected failure."""
    return _check(ObserverPlugin, record, expected_failed_checks)


def parametrize_with_checks(
    records: Iterable[Plugin[Any]], expected_failed_checks: Expected | None = None
) -> pytest.MarkDecorator:
    """Make a pytest test of each check of each plugin.

    ```python
    @parametrize_with_checks([record])
    def test_conformance(check):
        check()
    ```

    Args:
        records: What the plugins' hooks return; of one kind or of several.
        expected_failed_checks: Names of checks that every one of these plugins is known to fail, each with the reason;
            they become strict xfails.

    Raises:
        InputError: There is no record, one is of no known kind, or there is no check of an expected name.
    """
    import pytest

    expected = expected_failed_checks or {}
    bound = [(record.name, name, check) for record in records for name, check in _checks(record).items()]
    if not bound:
        raise InputError("there are no records to check; give at least one")
    _demand_known(expected, [name for _, name, _ in bound])
    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(
                check,
                id=f"{plugin}-{name}",
                marks=[pytest.mark.xfail(reason=expected[name], strict=True)] if name in expected else [],
            )
            for plugin, name, check in bound
        ],
    )


def _checks(record: Plugin[Any]) -> dict[str, Callable[[], None]]:
    if not isinstance(record, tuple(RECORDS.values())):
        known = ", ".join(kind.__name__ for kind in RECORDS.values())
        raise InputError(f"{record!r:.80} cannot be checked; give a record of {known}")
    # By name, so that this package can be imported without torch: see _suite.
    suite: Suite[Any] = importlib.import_module(f"dsv_plugins.testing._{record.kind}").Checks(record)
    return {name: getattr(suite, name) for name in names_of(type(suite))}


def _demand_known(expected: Iterable[str], checks: Iterable[str]) -> None:
    known = sorted(set(checks))
    for name in expected:
        if name not in known:
            hint = did_you_mean(name, known) or f"the checks are {', '.join(known)}"
            raise InputError(f"expected_failed_checks names {name!r}, which is no check of this kind of plugin; {hint}")


def _run_all(checks: Mapping[str, Callable[[], None]], expected: Expected) -> Iterator[CheckResult]:
    """The result of each check; a fault is told by the first check that finds it."""
    told: dict[str, str] = {}
    unusable = ""
    for name, check in checks.items():
        if unusable:
            yield CheckResult(name, "skipped", f"because {unusable} failed")
            continue
        result = _run(name, check, expected.get(name))
        if result.failed and (first := told.setdefault(_fault(result.reason), name)) != name:
            result = CheckResult(name, "skipped", f"because it fails as {first} does")
        elif result.failed and name in PREREQUISITES:
            unusable = name
        yield result


def _fault(reason: str) -> str:
    """What two checks that found the same fault both say: not at which point of the space, nor the numbers."""
    return NUMBER.sub("#", POINT.sub("", reason))


def _run(name: str, check: Callable[[], None], expected: str | None) -> CheckResult:
    raised: BaseException
    try:
        check()
    except AssertionError as error:
        raised, reason = error, str(error) or "an assertion failed"
    except (Exception, SystemExit) as error:  # a failing plugin must not stop the other checks
        raised, reason = error, describe_error(error)
    else:
        if expected is None:
            return CheckResult(name, "passed")
        return CheckResult(name, "failed", f"unexpected pass: no longer fails as expected ({expected})")
    if expected is not None:
        return CheckResult(name, "expected failure", expected)
    return CheckResult(name, "failed", reason, raised)


def _check(kind: type[Plugin[Any]], record: Plugin[Any], expected: Expected | None) -> list[CheckResult]:
    if not isinstance(record, kind):
        raise InputError(f"{record!r:.80} is not a record of {kind.__name__}")
    results = list(run_checks(record, expected))
    failures = [result for result in results if result.failed]
    if failures:
        lines = [f"  {result.check}: {result.reason}" for result in failures]
        heading = f"{record.kind} {record.name!r} fails {len(failures)} of {len(results)} checks:"
        raise ConformanceError("\n".join([heading, *lines]))
    return results
