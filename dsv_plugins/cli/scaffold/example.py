"""The examples in the documentation of the interfaces, taken apart: what is tested there is what a new plugin gets."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from typing import Any

from dsv_plugins.plugins.records import RECORDS

__all__ = ["Example"]


@dataclass(frozen=True, slots=True)
class Example:
    """The complete plugin in the documentation of an interface, taken apart.

    Attributes:
        code: All of it, under the new name.
        implementation: What comes before the hook.
        hook: The hook.
        made: Name of the class that the factory makes.
        parameters: The parameters of that class, as they are declared.
        arguments: The same, as they are passed on.
        summary: The record's summary.
    """

    code: str
    implementation: str
    hook: str
    made: str
    parameters: str
    arguments: str
    summary: str

    @classmethod
    def of(cls, kind: str, name: str) -> Example:
        """The example of an interface, with another name for the plugin."""
        documented = inspect.getdoc(RECORDS[kind].product) or ""
        code = documented.partition("```python\n")[2].partition("```")[0]
        record = _record(code)
        code = code.replace(f'name="{record["name"]}"', f'name="{name}"')
        before, mark, hook = code.partition("@hookimpl\n")
        made = record["factory"]
        parameters, arguments = _signature(code, made)
        return cls(
            code=code,
            implementation=_without_hook_names(before).strip(),
            hook=f"{mark}{hook}".replace(f"factory={made}", "factory=make").strip(),
            made=made,
            parameters=parameters,
            arguments=arguments,
            summary=record["summary"],
        )


def _record(code: str) -> dict[str, Any]:
    """The name, the factory and the summary of the record that the example's hook returns."""
    (call,) = (
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Plugin")
    )
    values = {argument.arg: argument.value for argument in call.keywords}
    return {
        "name": ast.literal_eval(values["name"]),
        "factory": ast.unparse(values["factory"]),
        "summary": ast.literal_eval(values["summary"]),
    }


def _signature(code: str, made: str) -> tuple[str, str]:
    """The parameters of a class of the example, as text, and how to pass them on."""
    (found,) = (node for node in ast.parse(code).body if isinstance(node, ast.ClassDef) and node.name == made)
    for method in found.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            names = [argument.arg for argument in method.args.args[1:]]
            return ast.unparse(method.args).removeprefix("self").removeprefix(", "), ", ".join(names)
    return "", ""


def _without_hook_names(code: str) -> str:
    """The code without the names that only the hook needs."""
    lines = []
    for line in code.splitlines():
        start = "from dsv_plugins import "
        if line.startswith(start):
            names = [name.strip() for name in line.removeprefix(start).split(",")]
            kept = [name for name in names if name != "hookimpl" and not name.endswith("Plugin")]
            lines += [start + ", ".join(kept)] if kept else []
        else:
            lines.append(line)
    return "\n".join(lines)
