"""The number of the plugin interface: what fits, what is refused, and what is deprecated."""

from __future__ import annotations

from types import SimpleNamespace

import pluggy
import plugin_of_interface_1
import pytest

from dsv_plugins import AugmentationPlugin, build_registry, hookimpl
from dsv_plugins.plugins import specs, versions
from dsv_plugins.plugins.records import RECORDS
from dsv_plugins.testing import parametrize_with_checks

pytestmark = pytest.mark.usefixtures("nothing_disabled", "one_thread")


@parametrize_with_checks([getattr(plugin_of_interface_1, kind)() for kind in RECORDS])
def test_a_plugin_written_for_the_first_interface_still_conforms(check) -> None:
    check()


def found(plugin: object) -> tuple[list[str], list[str], list[str]]:
    """The names, the failures and the advice that come from one plugin."""
    registry = build_registry(plugins=[plugin])
    ours = "SimpleNamespace"
    return (
        [each.record.name for each in registry.plugins if each.provider.name == ours],
        [each.reason for each in registry.failures if each.provider.name == ours],
        [each.reason for each in registry.advice if each.provider.name == ours],
    )


def plugin(**attributes: object) -> SimpleNamespace:
    return SimpleNamespace(augmentation=hookimpl(lambda: AugmentationPlugin("fog", dict)), **attributes)


def test_a_plugin_of_the_first_interface_loads_beside_the_others() -> None:
    registry = build_registry(plugins=[plugin_of_interface_1])
    names = {each.record.name for each in registry.plugins if each.provider.name == "plugin_of_interface_1"}
    assert names == {"stripe", "linear", "score-spread", "sample", "threads", "lines"}


@pytest.mark.parametrize("attributes", [{}, {"dsv_api": versions.API}])
def test_a_plugin_that_fits_or_does_not_say_is_taken(attributes: dict[str, object]) -> None:
    assert found(plugin(**attributes)) == (["fog"], [], [])


def test_a_plugin_for_a_later_interface_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "API", 3)
    names, (reason,), _ = found(plugin(dsv_api=4))
    assert (names, reason) == ([], "needs the plugin interface 4, and this version has 3; upgrade dsv-plugins")


def test_a_plugin_for_an_interface_that_is_gone_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "API", 5)
    monkeypatch.setattr(versions, "OLDEST_API", 3)
    names, (reason,), _ = found(plugin(dsv_api=2))
    assert names == []
    assert reason.startswith(
        "was written for the plugin interface 2, and this version supports 3 to 5; upgrade the plugin"
    )
    assert found(plugin(dsv_api=3))[0] == ["fog"]


@pytest.mark.parametrize("value", ["1", 1.0, True, 0, -1])
def test_a_number_that_is_none_is_refused(value: object) -> None:
    names, (reason,), _ = found(plugin(dsv_api=value))
    assert names == []
    assert reason.startswith(f"dsv_api is {value!r}; give the number")


def test_a_deprecated_hook_works_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    message = DeprecationWarning("the hook 'augmentation' is deprecated; use 'pseudo_anomaly'")
    deprecated = pluggy.HookspecMarker(specs.PROJECT)(warn_on_impl=message)(lambda: None)
    monkeypatch.setattr(specs, "augmentation", deprecated)
    with pytest.warns(DeprecationWarning, match="the hook 'augmentation' is deprecated"):
        names, failures, advice = found(plugin())
    assert (names, failures, advice) == (["fog"], [], [str(message)])
