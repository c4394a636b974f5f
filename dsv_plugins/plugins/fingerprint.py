"""Fingerprints of plugins' code: an edited plugin is another plugin, whatever its version says.

A fingerprint covers the file of a factory with the files of its package, or with the files beside it that it imports;
the versions of the libraries that those files import; and what was bound to the factory while the program ran. Of our
own package it covers all files, and of another that is installed for good, its version.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from dsv_plugins.plugins.records import unwrapped

__all__ = ["CONTENT", "fingerprint", "own_source"]

CONTENT = "__plugin_content__"
"""The attribute of a module that says what was run, if that was not read from its file."""

DIGITS = 12
OWN_PACKAGE = "dsv_plugins"
INSTALLED = {"site-packages", "dist-packages"}
"""Folders whose files change with a version only. Packages that are installed to be edited lie elsewhere."""
NO_NEIGHBOURS = {OWN_PACKAGE, "torch", *sys.stdlib_module_names}
"""What a file imports from elsewhere, whatever lies beside it."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(factory: Callable[..., object]) -> str:
    """Return a hash of the code behind a factory."""
    module = inspect.getmodule(unwrapped(factory))
    files = _files(module)
    digest = hashlib.sha256("\0".join(_bound(factory, set(), in_file=bool(files))).encode())
    package = "" if module is None else module.__name__.partition(".")[0]
    if package == OWN_PACKAGE:
        digest.update(own_source().encode())
    elif any(INSTALLED & set(file.parts) for file in files):
        digest.update(_version(package).encode())
    else:
        sources = [_source(file) for file in files]
        if hasattr(module, CONTENT):  # a notebook may load a file again after an edit: what was run counts
            own = Path(str(module.__file__)).absolute()  # type: ignore[union-attr]
            sources = [getattr(module, CONTENT), *(_source(file) for file in files if file != own)]
        for content in (*sources, *_libraries(sources)):
            digest.update(content)
    return digest.hexdigest()[:DIGITS]


@functools.cache
def own_source() -> str:
    """Return a hash of all files of this package."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder).as_posix()} ".encode() + file.read_bytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------


def _files(module: ModuleType | None) -> list[Path]:
    """Return the files that a module's behaviour depends on and that belong to its author, in a fixed order."""
    if module is None:
        return []
    package = sys.modules.get(module.__name__.partition(".")[0])
    if folders := getattr(package, "__path__", None):
        return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    file = getattr(module, "__file__", None)
    return sorted(_with_neighbours(Path(file))) if file else []


def _with_neighbours(file: Path) -> set[Path]:
    """Return a file, and those beside it that it imports, directly or not."""
    found: set[Path] = set()
    waiting = [file.absolute()]
    while waiting:
        each = waiting.pop()
        if each in found or not each.is_file():
            continue
        found.add(each)
        for name in _imported(_source(each)) - NO_NEIGHBOURS:
            waiting.append(each.with_name(f"{name}.py"))
            waiting.extend(each.with_name(name).rglob("*.py"))
    return found


@functools.cache
def _source(file: Path) -> bytes:
    # Read once: a process runs the code that it loaded, whatever the file says later.
    try:
        return file.read_bytes()
    except OSError:
        return b""


@functools.cache
def _imported(source: bytes) -> frozenset[str]:
    """Return the first parts of the names that a file imports."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return frozenset()
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return frozenset(module.partition(".")[0] for module in modules)


def _libraries(sources: list[bytes]) -> list[bytes]:
    """Return the libraries that files import, with their versions. Those of torch and ours are known anyway."""
    names = {name for source in sources for name in _imported(source)} - NO_NEIGHBOURS
    return [f"{name} {_version(name)}".encode() for name in sorted(names)]


def _version(package: str) -> str:
    """Return the version of the distribution that a package comes with; empty if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # such as PIL, which comes with pillow
        names = _distributions().get(package, [])
        return metadata.version(names[0]) if names else ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


# ---------------------------------------------------------------------------
# What no file says
# ---------------------------------------------------------------------------


def _bound(value: object, seen: set[int], *, in_file: bool) -> Iterator[str]:
    """Yield what was bound while the program ran: a script may make `partial(Fog, density=float(sys.argv[1]))`.

    Of what is in no file, such as a class in a notebook, the compiled code is all there is to compare.
    """
    if not isinstance(value, (tuple, *PLAIN)):
        if id(value) in seen:  # a function that calls itself is bound to itself
            return
        seen.add(id(value))
    parts: list[object] = []
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *sorted(value.keywords.items())]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif isinstance(value, CodeType):
        parts = [value.co_code, value.co_names, *value.co_consts]
    elif isinstance(value, FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        parts = [*defaults, *(cell.cell_contents for cell in value.__closure__ or ())]
        parts += [] if in_file else [value.__code__]
    elif isinstance(value, type):
        members = [(name, getattr(member, "__func__", member)) for name, member in sorted(vars(value).items())]
        # Not lists and the like, which may be caches; nor what Python notes of a class, such as its first line.
        plain = [name for name, member in members if isinstance(member, (tuple, *PLAIN)) and name[:2] != "__"]
        parts = [pair for pair in members if pair[0] in plain or isinstance(pair[1], FunctionType)]
        parts += [base for base in value.__bases__ if base.__module__ == value.__module__]
    elif isinstance(value, (set, frozenset)):
        parts = [*sorted(map(repr, value))]
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, PLAIN):
        yield repr(value)
        return
    yield f"{getattr(value, '__qualname__', type(value).__qualname__)} of {len(parts)}"
    for part in parts:
        yield from _bound(part, seen, in_file=in_file)
