"""Write a new plugin to start from: a package with tests, or a single file."""

from __future__ import annotations

import datetime
from importlib import metadata
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from dsv_plugins.cli.options import kind_of
from dsv_plugins.cli.scaffold.example import Example
from dsv_plugins.cli.terminal import Terminal, literal
from dsv_plugins.errors import InputError, quoted
from dsv_plugins.plugins.records import NAME_RULE, RECORDS, Plugin, is_name
from dsv_plugins.plugins.registry import build_registry
from dsv_plugins.plugins.versions import API

__all__ = ["add_arguments", "run"]

FILES = {
    "pyproject.toml.jinja": "pyproject.toml",
    "hooks.py.jinja": "src/{package}/__init__.py",
    "plugin.py.jinja": "src/{package}/plugin.py",
    "test_plugin.py.jinja": "tests/test_plugin.py",
    "README.md.jinja": "README.md",
    "LICENSE.jinja": "LICENSE",
    "test.yml.jinja": ".github/workflows/test.yml",
}
"""The files of a package, each with the template it is made from."""
USES = {
    "augmentation": "dsv select parts --augmentation {name}",
    "detector_encoder": "dsv select parts --detector {name}",
    "selector": "dsv select parts --selector {name}",
    "search": "dsv select parts --search {name}",
    "executor": "dsv select parts --executor {name}",
    "observer": "dsv select parts --observers {name}",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", help="the name that users will type, such as fog")
    parser.add_argument("--kind", type=kind_of, default="augmentation", help=f"the kind: {', '.join(RECORDS)}")
    parser.add_argument("--file", action="store_true", help="one file to use with --plugins, instead of a package")
    parser.add_argument("--out", type=str, default=".", help="the folder in which to write it")


def run(arguments: Namespace) -> int:
    """Write the plugin, and say what to do next."""
    name, kind = arguments.name, arguments.kind
    _check_name(name, RECORDS[kind])
    terminal, use = Terminal(), USES[kind].format(name=name)
    example = Example.of(kind, name)
    if arguments.file:
        file = Path(arguments.out, f"{name.replace('-', '_')}.py")
        _write({file: example.code})
        steps = [f"edit {file}", f"dsv check {name} --plugins {quoted(file)}", f"{use} --plugins {quoted(file)}"]
    else:
        folder = Path(arguments.out, f"dsv-{name}")
        _write({folder / path: content for path, content in _package(name, kind, example).items()})
        source = folder / "src" / _module(name) / "plugin.py"
        settings = f"{source.with_name('__init__.py')}, which has its name, settings and space"
        steps = [f"edit {source}, and {settings}", f"pip install --editable {quoted(folder)}", f"dsv check {name}", use]
    terminal.print(literal("Written. Next:"))
    for step in steps:
        terminal.print(literal(f"  {step}"), soft_wrap=True)
    return 0


def _check_name(name: str, kind: type[Plugin[object]]) -> None:
    if not is_name(name):
        raise InputError(f"{name!r} cannot be the name of a plugin; give {NAME_RULE}, such as fog or film-grain")
    for plugin in build_registry().plugins:
        if (plugin.record.kind, plugin.record.name) == (kind.kind, name):
            raise InputError(f"{kind.kind} {name!r} is there already, from {plugin.provider}; choose another name")


def _module(name: str) -> str:
    return f"dsv_{name.replace('-', '_')}"


def _write(files: dict[Path, str]) -> None:
    """Write all files, or none if one of them or the package's folder is there already."""
    first = next(iter(files))
    taken = first.parent if len(files) > 1 else first
    if taken.exists():
        raise InputError(f"{taken} is there already; nothing was written")
    try:
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written ({error.strerror}); give another --out") from error


def _package(name: str, kind: str, example: Example) -> dict[str, str]:
    """The files of a package, by their path."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701 — these are no pages
        loader=PackageLoader("dsv_plugins.cli", "scaffold"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    words = kind.replace("_", " ")
    content = {
        "name": name,
        "package": _module(name),
        "distribution": f"dsv-{name}",
        "kind": kind,
        "a_kind": f"{'an' if words[0] in 'aeiou' else 'a'} {words}",
        "record": RECORDS[kind].__name__,
        "hook_name": kind,
        "bound": _bound(),
        "api": API,
        "use": USES[kind].format(name=name),
        "year": datetime.date.today().year,
        **{field: getattr(example, field) for field in ("implementation", "hook", "made", "parameters", "arguments")},
        "summary": example.summary,
    }
    return {
        path.format(package=_module(name)): environment.get_template(template).render(content)
        for template, path in FILES.items()
    }


def _bound() -> str:
    """The versions that a plugin of today works with: those until the next that may change the interfaces."""
    major, minor = metadata.version("dsv-plugins").split(".")[:2]
    following = f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f">={major}.{minor},<{following}"
