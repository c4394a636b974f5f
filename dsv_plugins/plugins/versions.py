"""The number of the plugin interface, and whether a plugin fits it."""

from __future__ import annotations

from dsv_plugins.errors import shown

__all__ = ["API", "API_ATTRIBUTE", "OLDEST_API", "api_problem"]

API = 2
"""Grows by one in every version that adds something a plugin can use: a hook, a field of a record, a method."""

OLDEST_API = 1
"""Grows when something is removed or means something else: plugins written for an earlier number are refused."""

API_ATTRIBUTE = "dsv_api"
"""Where a module or an object with hooks says which number it was written for. It need not say so."""


def api_problem(plugin: object) -> str:
    """Return why a plugin does not fit this version; empty if it does, or if it does not say what it needs."""
    needed = getattr(plugin, API_ATTRIBUTE, None)
    if needed is None:
        return ""
    if isinstance(needed, bool) or not isinstance(needed, int) or needed < 1:
        return f"{API_ATTRIBUTE} is {shown(needed)}; give the number of the plugin interface, such as {API}"
    if needed > API:
        return f"needs the plugin interface {needed}, and this version has {API}; upgrade dsv-plugins"
    if needed < OLDEST_API:
        return (
            f"was written for the plugin interface {needed}, and this version supports {OLDEST_API} to {API}; "
            f"upgrade the plugin, or see the changelog for what to change in it"
        )
    return ""
