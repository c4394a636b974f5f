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

from dsv_plugins.testing._runner import (
    CheckResult,
    check_augmentation,
    check_detector_encoder,
    check_executor,
    check_observer,
    check_search,
    check_selector,
    parametrize_with_checks,
    run_checks,
)

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
