"""The built-in plugins meet the same demands as everybody's."""

from __future__ import annotations

import pytest

from dsv_plugins import (
    AugmentationPlugin,
    DetectorEncoderPlugin,
    ExecutorPlugin,
    SearchPlugin,
    SelectorPlugin,
    build_registry,
)
from dsv_plugins.testing import parametrize_with_checks

REGISTRY = build_registry()
KINDS = (AugmentationPlugin, DetectorEncoderPlugin, SelectorPlugin, SearchPlugin, ExecutorPlugin)
BUILTIN = [plugin.record for plugin in REGISTRY.plugins if plugin.provider.name == "dsv-plugins"]


@parametrize_with_checks(BUILTIN)
def test_conforms(check):
    check()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_among_them(kind):
    assert any(isinstance(record, kind) for record in BUILTIN)
